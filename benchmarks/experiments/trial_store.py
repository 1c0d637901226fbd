"""Finished cells on disk, so that none is computed twice: one safetensors file a config and model, for all tables.

A file holds the test predictions of its cells, the truth and the run numbers once for all cells that share them, and
in its header a line of JSON a cell. It is replaced whole after every cell.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from benchmarks.experiments.trial import Cell, Outcome
from zoo.storage.atomic import write_atomically
from zoo.storage.lock import exclusive

ARRAYS = ("predicted", "truth", "runs")


class CellStore:
    """The cells below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "cells"

    def path(self, cell: Cell) -> Path:
        return self.folder / f"{cell.config}.{cell.model}.safetensors"

    def find(self, cells: list[Cell]) -> dict[Cell, Outcome]:
        """Those of the cells that are finished."""
        files = {path: read(path) for path in {self.path(cell) for cell in cells}}
        found = {cell: files[self.path(cell)].get(cell.key) for cell in cells}
        return {cell: outcome for cell, outcome in found.items() if outcome is not None}

    def add(self, outcomes: dict[Cell, Outcome]) -> None:
        """Adds finished cells; one that is there already is replaced."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with exclusive(self.folder, busy=None):
            for path in sorted({self.path(cell) for cell in outcomes}):
                new = {cell.key: outcome for cell, outcome in outcomes.items() if self.path(cell) == path}
                write_atomically(path, pack(read(path) | new))


def pack(outcomes: dict[str, Outcome]) -> bytes:
    arrays: dict[str, np.ndarray] = {}
    header = {}
    for key, one in outcomes.items():
        names = {name: content_name(getattr(one, name)) for name in ARRAYS}
        arrays |= {names[name]: getattr(one, name) for name in ARRAYS}
        header[key] = json.dumps({"arrays": names, "notes": one.notes})
    return save(arrays, metadata=header)


def content_name(array: np.ndarray) -> str:
    """The same for the same numbers, so that they are stored once."""
    return hashlib.sha256(array.dtype.str.encode() + array.tobytes()).hexdigest()[:16]


def read(path: Path) -> dict[str, Outcome]:
    """The outcomes in a file by key; none where there is no file."""
    if not path.exists():
        return {}
    try:
        with safe_open(path, framework="np") as file:
            cells = {key: json.loads(text) for key, text in (file.metadata() or {}).items()}
            names = {name for cell in cells.values() for name in cell["arrays"].values()}
            arrays = {name: np.array(file.get_tensor(name)) for name in names}
            return {
                key: Outcome(**{name: arrays[cell["arrays"][name]] for name in ARRAYS}, notes=cell["notes"])
                for key, cell in cells.items()
            }
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it, its cells are then computed again") from error
