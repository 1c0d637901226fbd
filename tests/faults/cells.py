"""Single cells that are missing, meaningless or out of range: publish refuses what verify finds, and nothing else.

A cell of a shard is changed, with a manifest that fits, and the shard is published; the same cell of the zoo published
from the sound shard is changed, and the zoo is verified. Either both object or neither does.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.fabricated import TINY_MNIST, fabricate_shard, publish
from tests.faults.rewriting import Rows, rewrite
from zoo.format.published import RUNS_FILE, split_file
from zoo.format.schema import RUN_SCHEMA, checkpoint_schema
from zoo.format.shard import CHECKPOINTS_FILE
from zoo.format.splits import SPLITS
from zoo.verify import _verify

NUMBERS = (None, math.nan, math.inf, -math.inf, -0.1, -1.0, 0.5, 1.7, 1e30)
VALUES: dict[Any, tuple[Any, ...]] = {
    pa.string(): (None, "", "x", "../x", "/x", "a\0b", "\x1b[2J", "0" * 16, "completed", "best", "sgd", "agnews"),
    pa.float32(): NUMBERS,
    pa.float64(): NUMBERS,
    pa.int32(): (None, -1, 0, 1, 7, 2**31 - 1),
    pa.int64(): (None, -1, 0, 1, 2**32, 2**63 - 1),
}
CURVE = (None, [], [None], [None] * 100, [math.nan] * 100, [1.7] * 100, [-0.1] * 100, [0.5] * 99, [0.5] * 100)
FOLDER = "mnist/shard-00000"


@dataclass(frozen=True)
class Cell:
    """A change: of which file of a shard, in which column, and to what."""

    file: str
    column: str
    value: Any


def all_cells() -> list[Cell]:
    """Every column of both tables with every value for its type."""
    weightless = list(checkpoint_schema(TINY_MNIST))[:-1]
    fields = [(RUNS_FILE, field) for field in RUN_SCHEMA] + [(CHECKPOINTS_FILE, field) for field in weightless]
    return [Cell(file, field.name, value) for file, field in fields for value in VALUES.get(field.type, CURVE)]


def outcomes(folder: Path, cells: list[Cell]) -> Iterator[tuple[Cell, list[str]]]:
    """Each cell and its faults; an assertion fails where publish and verify do not agree about it."""
    shard = fabricate_shard(folder / "runs", TINY_MNIST, count=4, diverged=1)
    publish(folder / "runs", folder / "zoo")
    names = {RUNS_FILE: f"mnist/{RUNS_FILE}", CHECKPOINTS_FILE: split_file("mnist", SPLITS[0], 0, 1)}
    for cell in cells:
        published = folder / "zoo" / names[cell.file]
        sound = {path: path.read_bytes() for path in (shard / cell.file, published)}
        sound |= {path: path.read_bytes() for path in (shard / "manifest.json", folder / "zoo" / "manifest.json")}
        # the first row of the zoo's file, wherever the shard has it
        key: dict[str, Any] = {}
        rewrite(folder / "zoo", names[cell.file], lambda rows, cell=cell, key=key: change_first(rows, cell, key))
        rewrite(shard, cell.file, lambda rows, cell=cell, key=key: change_same(rows, cell, key))
        found = _verify(folder / "zoo")
        try:
            publish(folder / "runs", folder / "again")
            refusal = None
        except ValueError as error:
            refusal = str(error)
            assert str(shard) in refusal or key["run_id"] in refusal, refusal
        assert bool(found) == bool(refusal), f"{cell}: verify says {found}, publish says {refusal}"
        assert refusal or _verify(folder / "again") == []
        for path, data in sound.items():
            path.write_bytes(data)
        yield cell, found


def change_first(rows: Rows, cell: Cell, key: dict[str, Any]) -> None:
    key |= {name: rows[0][name] for name in ("run_id", "checkpoint") if name in rows[0]}
    rows[0][cell.column] = cell.value


def change_same(rows: Rows, cell: Cell, key: dict[str, Any]) -> None:
    (row,) = (row for row in rows if all(row[name] == value for name, value in key.items()))
    row[cell.column] = cell.value
