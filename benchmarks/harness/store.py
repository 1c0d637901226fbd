"""Finished cells on disk, so that none is computed twice: one safetensors file a benchmark, config and model.

A file holds the test predictions of its cells, the truth and the run numbers, and in its header a line of JSON a cell.
It is replaced whole after every cell.
"""

import json
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from benchmarks.harness.cell import Cell, Outcome
from zoo.atomic import write_atomically
from zoo.lock import exclusive

ARRAYS = ("predicted", "truth", "runs")


class CellStore:
    """The cells below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "cells"

    def path(self, cell: Cell) -> Path:
        return self.folder / f"{cell.benchmark}.{cell.config}.{cell.model}.safetensors"

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
    arrays = {f"{key}.{name}": getattr(one, name) for key, one in outcomes.items() for name in ARRAYS}
    return save(arrays, metadata={key: json.dumps(one.notes) for key, one in outcomes.items()})


def read(path: Path) -> dict[str, Outcome]:
    """The outcomes in a file by key; none where there is no file."""
    if not path.exists():
        return {}
    try:
        with safe_open(path, framework="np") as file:
            notes = file.metadata() or {}
            return {
                key: Outcome(*(np.array(file.get_tensor(f"{key}.{name}")) for name in ARRAYS), json.loads(text))
                for key, text in notes.items()
            }
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it, its cells are then computed again") from error
