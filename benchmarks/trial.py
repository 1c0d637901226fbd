"""A trial is a model fitted once, at one seed: what identifies it, and where finished ones are stored.

No trial is computed twice: there is one safetensors file per config and model, for all tables. A file holds the test
predictions of its trials and, once for all trials that share them, the truth, the run numbers and, where there are
repeats, the numbers of the configurations. Its header has one line of JSON per trial. The whole file is replaced when
trials are added.
"""

import functools
import hashlib
import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from benchmarks.data import Elsewhere, Outcome
from benchmarks.models.registry import known_models
from benchmarks.models.training import RECIPES
from benchmarks.results import Result, Setting
from zoo.reading.selection import Selection
from zoo.storage.atomic import exclusive, write_atomically

# raised when fitting or choosing changes for all models; when it changes for one, its edition is raised instead
_PROTOCOL = 2
_STANDARD_CHANNELS = (10,)  # the default of Transformer-NFN
_FOLDER = "cells"
_ARRAYS = ("predicted", "truth", "runs", "configurations")


@dataclass(frozen=True)
class Trial:
    """Everything that the outcome depends on, and the benchmark it is for."""

    benchmark: str
    config: str
    model: str
    seed: int
    zoo: str
    threshold: float = 0.0
    checkpoint: str = "epoch_75"
    recipe: str = "paper"
    epochs: int | None = None
    components: tuple[str, ...] | None = None
    channels: tuple[int, ...] | None = None
    entry_range: float | None = None
    where: Selection | None = None
    elsewhere: Elsewhere | None = None
    """Where it is tested, if not on the test split of the same data."""
    rows: int | None = None
    """How many of the training rows it is fitted on; None for all."""

    def __post_init__(self) -> None:
        if self.recipe not in RECIPES:
            raise ValueError(f"unknown training recipe {self.recipe!r}: one of {', '.join(RECIPES)}")

    @property
    def key(self) -> str:
        """The same for trials of different benchmarks that are the same fit."""
        model = known_models()[self.model]
        what = self.to_dict() | {"protocol": _PROTOCOL}
        del what["benchmark"], what["where"]  # the fingerprint is of the very rows
        if self.channels == _STANDARD_CHANNELS:
            what["channels"] = None
        edition = model.edition if model.edition > 1 else None
        others = {"edition": edition, "source": model.source, "parts": [part.key for part in self.parts] or None}
        text = json.dumps(what | {name: value for name, value in others.items() if value is not None}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def normalized(self) -> "Trial":
        """The same without values that its model does not use: the seed of boosting, the epochs of trees or of
        training until convergence."""
        model = known_models()[self.model]
        return replace(
            self,
            epochs=self.epochs if model.neural and not RECIPES[self.recipe].converged else None,
            seed=self.seed if model.seeded else 0,
            recipe=self.recipe if model.neural else "paper",
        )

    @property
    def parts(self) -> "tuple[Trial, ...]":
        """The trials that this one is the average of; none where it is a fit."""
        names = known_models()[self.model].parts
        return tuple(replace(self, model=name).normalized() for name in names)

    @property
    def fit(self) -> "Trial":
        """The same for trials that are one fit tested on several test splits."""
        return replace(self, elsewhere=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values by name; the selection as its text. Names that older trials lack are there only where set."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["where"] = None if self.where is None else self.where.expression
        elsewhere, rows = values.pop("elsewhere"), values.pop("rows")
        return values | ({} if elsewhere is None else asdict(elsewhere)) | ({} if rows is None else {"rows": rows})

    def setting(self) -> Setting:
        """The values that a result row stores besides benchmark, config and model. Seeds are averaged over."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self.to_dict().items()
            if value is not None and name not in ("benchmark", "config", "model", "seed")
        }

    @classmethod
    def of_row(cls, row: Result, seed: int) -> "Trial":
        """The trial that a result row was made from, at one of its seeds."""
        assert row.model is not None, "only rows of a model come from trials"
        setting: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in row.setting.items()
        }
        if "where" in setting:
            setting["where"] = Selection.parse(setting["where"])
        tested = {field.name: setting.pop(field.name) for field in fields(Elsewhere) if field.name in setting}
        if tested:
            setting["elsewhere"] = Elsewhere(**tested)
        return cls(row.benchmark, row.config, row.model, seed, **setting)


class TrialStore:
    """The finished trials below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / _FOLDER

    def path(self, trial: Trial) -> Path:
        model = trial.model.replace(":", "-")  # my_module:MyPredictor; not every file system has colons
        return self.folder / f"{trial.config}.{model}.safetensors"

    def find(self, trials: list[Trial]) -> dict[Trial, Outcome]:
        """The finished ones among the trials."""
        files = {path: _read(path) for path in {self.path(trial) for trial in trials}}
        outcomes = {trial: files[self.path(trial)].get(trial.key) for trial in trials}
        return {trial: outcome for trial, outcome in outcomes.items() if outcome is not None}

    def add(self, outcomes: dict[Trial, Outcome]) -> None:
        """Adds finished trials; a trial that is already stored is replaced."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with exclusive(self.folder, busy=None):
            for path in sorted({self.path(trial) for trial in outcomes}):
                new = {trial.key: outcome for trial, outcome in outcomes.items() if self.path(trial) == path}
                write_atomically(path, _pack(_read(path) | new))


def _pack(outcomes: dict[str, Outcome]) -> bytes:
    arrays: dict[str, np.ndarray] = {}
    header = {}
    for key, outcome in outcomes.items():
        present = {name: array for name in _ARRAYS if (array := getattr(outcome, name)) is not None}
        # the same name for the same numbers, so that they are stored once
        names = {
            name: hashlib.sha256(array.dtype.str.encode() + array.tobytes()).hexdigest()[:16]
            for name, array in present.items()
        }
        arrays |= {names[name]: array for name, array in present.items()}
        header[key] = json.dumps({"arrays": names, "notes": outcome.notes})
    return save(arrays, metadata=header)


def _read(path: Path) -> dict[str, Outcome]:
    """The outcomes in a file by key; none if there is no file."""
    if not path.exists():
        return {}
    if not path.is_file():
        raise ValueError(f"{path} is not a file: move it away, trials are stored under this name")

    try:
        with safe_open(path, framework="np") as file:
            read = functools.cache(lambda name: np.array(file.get_tensor(name)))
            trials = {key: json.loads(text) for key, text in (file.metadata() or {}).items()}
            return {
                key: Outcome(**{name: read(of) for name, of in trial["arrays"].items()}, notes=trial["notes"])
                for key, trial in trials.items()
            }
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it, its trials are then computed again") from error
