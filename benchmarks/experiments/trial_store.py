"""Finished trials on disk, so that none is computed twice: one safetensors file per config and model, for all tables.

A file holds the test predictions of its trials and, once for all trials that share them, the truth, the run numbers
and, where there are repeats, the numbers of the configurations. Its header has one line of JSON per trial. The whole
file is replaced when trials are added.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from benchmarks.experiments.trial import Outcome, Trial
from zoo.storage.atomic import exclusive, write_atomically

FOLDER = "cells"
ARRAYS = ("predicted", "truth", "runs")
OPTIONAL = ("configurations",)


class TrialStore:
    """The finished trials below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / FOLDER

    def path(self, trial: Trial) -> Path:
        model = trial.model.replace(":", "-")  # my_module:MyPredictor; not every file system has colons
        return self.folder / f"{trial.config}.{model}.safetensors"

    def find(self, trials: list[Trial]) -> dict[Trial, Outcome]:
        """Those of the trials that are finished."""
        files = {path: read(path) for path in {self.path(trial) for trial in trials}}
        outcomes = {trial: files[self.path(trial)].get(trial.key) for trial in trials}
        return {trial: outcome for trial, outcome in outcomes.items() if outcome is not None}

    def add(self, outcomes: dict[Trial, Outcome]) -> None:
        """Adds finished trials; a trial that is already stored is replaced."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with exclusive(self.folder, busy=None):
            for path in sorted({self.path(trial) for trial in outcomes}):
                new = {trial.key: outcome for trial, outcome in outcomes.items() if self.path(trial) == path}
                write_atomically(path, pack(read(path) | new))


def pack(outcomes: dict[str, Outcome]) -> bytes:
    arrays: dict[str, np.ndarray] = {}
    header = {}
    for key, outcome in outcomes.items():
        present = {name: array for name in (*ARRAYS, *OPTIONAL) if (array := getattr(outcome, name)) is not None}
        names = {name: content_name(array) for name, array in present.items()}
        arrays |= {names[name]: array for name, array in present.items()}
        header[key] = json.dumps({"arrays": names, "notes": outcome.notes})
    return save(arrays, metadata=header)


def content_name(array: np.ndarray) -> str:
    """The same name for the same numbers, so that they are stored once."""
    return hashlib.sha256(array.dtype.str.encode() + array.tobytes()).hexdigest()[:16]


def read(path: Path) -> dict[str, Outcome]:
    """The outcomes in a file by key; none if there is no file."""
    if not path.exists():
        return {}
    if not path.is_file():
        raise ValueError(f"{path} is not a file: move it away, trials are stored under this name")
    try:
        with safe_open(path, framework="np") as file:
            trials = {key: json.loads(text) for key, text in (file.metadata() or {}).items()}
            names = {name for trial in trials.values() for name in trial["arrays"].values()}
            arrays = {name: np.array(file.get_tensor(name)) for name in names}
            return {
                key: Outcome(**{name: arrays[trial["arrays"][name]] for name in names_in(trial)}, notes=trial["notes"])
                for key, trial in trials.items()
            }
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it, its trials are then computed again") from error


def names_in(trial: dict[str, Any]) -> list[str]:
    """The arrays to read of a stored trial: those that every trial must have, and those it has besides."""
    return [*ARRAYS, *(name for name in OPTIONAL if name in trial["arrays"])]
