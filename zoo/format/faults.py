"""The rules that the rows of a zoo must keep; ``publish`` refuses what breaks one, and ``verify`` reports it.

A rule yields a mask of the rows that break it, and a line about them.
"""

from collections.abc import Iterator, Sequence
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Float64
from msgspec import Meta

from zoo.checked import allowed
from zoo.format.hyperparameters import HYPERPARAMETERS, TYPES
from zoo.format.record import TrainingRecord
from zoo.format.schema import CURVES

_Mask = Bool[np.ndarray, " n"]
_Numbers = Float64[np.ndarray, " n"]
Fault = tuple[_Mask, str]


def run_faults(table: pa.Table, task: str, shards: Sequence[int]) -> Iterator[Fault]:
    """Faults in a table of runs whose names are sound, also against the task and the shards it should belong to."""
    yield _missing(table), "a value is missing"
    ids = table.column("run_id").to_pylist()
    first = {run: row for row, run in reversed(list(enumerate(ids)))}
    yield np.array([first[run] != row for row, run in enumerate(ids)], dtype=bool), "the run is there twice"
    yield _unlisted(table.column("task"), [task]), f"the task is not {task}"
    yield ~np.isin(numbers_of(table, "shard"), list(shards)), "the shard is not one of the manifest's"
    yield from _hyperparameter_faults(table)
    epochs, best = numbers_of(table, "epochs"), numbers_of(table, "best_epoch")
    completed = ~_unlisted(table.column("status"), ["completed"])
    yield ~(epochs >= 1), "the number of epochs is not positive"
    yield completed & ~((best >= 1) & (best <= epochs)), "best_epoch is not one of its epochs"
    for field in CURVES:
        yield from _curve_faults(field.name, table.column(field.name), epochs, completed)
    if "wall_seconds" in table.column_names:
        seconds = numbers_of(table, "wall_seconds")
        yield ~(np.isfinite(seconds) & (seconds >= 0)), "wall_seconds is not a length of time"


def _curve_faults(name: str, curves: pa.ChunkedArray, epochs: _Numbers, completed: _Mask) -> Iterator[Fault]:
    """A completed run has a finite value per epoch; a diverged one stops early, and its losses may not be finite."""
    lengths = _as_numbers(pc.call_function("list_value_length", [curves]))
    long, short = lengths > epochs, lengths < epochs
    yield np.isnan(lengths) | long | (completed & short), f"{name} does not have a value for each epoch"
    values = pc.call_function("list_flatten", [curves])
    numbers, rows = _as_numbers(values), np.repeat(np.arange(len(curves)), np.nan_to_num(lengths).astype(int))
    wrong = _as_mask(values.is_null()) | ~np.isfinite(numbers) & completed[rows]
    if name == "test_accuracy":
        wrong |= ~((numbers >= 0) & (numbers <= 1))
    faulty = np.zeros(len(epochs), dtype=bool)
    faulty[rows[wrong]] = True
    yield faulty, f"{name} holds a value that is missing or out of range"


def checkpoint_faults(rows: pa.Table, runs: pa.Table, record: TrainingRecord) -> Iterator[Fault]:
    """Faults in checkpoints, also against their runs and the record of the training."""
    accuracy, *losses = (numbers_of(rows, name) for name in ("test_accuracy", "test_loss", "train_loss"))
    finite = np.isfinite([accuracy, *losses]).all(axis=0)
    yield _missing(rows) | ~finite, "a value is missing"
    yield ~((accuracy >= 0) & (accuracy <= 1)), "test_accuracy is outside [0, 1]"
    yield np.minimum(*losses) < 0, "a loss is negative"
    yield _unlisted(rows.column("task"), [record.task]), f"the task is not {record.task}"
    labels = record.checkpoints
    yield _unlisted(rows.column("checkpoint"), labels), f"the checkpoint is none of {', '.join(labels)}"
    known = runs.column("run_id").combine_chunks()
    rows_of_runs = pc.call_function("index_in", [rows.column("run_id").combine_chunks()], pc.SetLookupOptions(known))
    recorded = runs.take(rows_of_runs)
    yield _unlisted(recorded.column("status"), ["completed"]), "not a completed run of this config"
    for name in HYPERPARAMETERS:
        same = pc.call_function("equal", [rows.column(name), recorded.column(name)])
        yield ~_as_mask(same), f"{name} is not its run's"
    epoch = numbers_of(rows, "epoch")
    yield ~((epoch >= 1) & (epoch <= numbers_of(recorded, "epochs"))), "the epoch is not one of its run's"
    yield from _hyperparameter_faults(rows)


def _hyperparameter_faults(table: pa.Table) -> Iterator[Fault]:
    """Rows with values that no run can be trained with."""
    for name, kind in TYPES.items():
        column = table.column(name)
        choices = get_args(get_args(kind)[0])
        wrong = _unlisted(column, choices) if choices else _outside(_as_numbers(column), kind)
        yield wrong, f"{name} must be {allowed(kind)}"


def _outside(values: _Numbers, kind: Any) -> _Mask:
    """The rows whose number is not within the limits of its type, or is missing."""
    inside = np.isfinite(values)
    for limits in (each for each in get_args(kind) if isinstance(each, Meta)):
        for name, compare in (("gt", np.greater), ("ge", np.greater_equal), ("lt", np.less), ("le", np.less_equal)):
            if (limit := getattr(limits, name)) is not None:
                inside &= compare(values, limit)
    return ~inside


def _missing(table: pa.Table) -> _Mask:
    """The rows with a null in any column."""
    nulls = [_as_mask(column.is_null()) for column in table.columns if column.null_count]
    return np.any(nulls, axis=0) if nulls else np.zeros(len(table), dtype=bool)


def _unlisted(column: pa.ChunkedArray, known: Sequence[str]) -> _Mask:
    """The rows whose text is none of the known ones."""
    return ~_as_mask(pc.call_function("is_in", [column.combine_chunks()], pc.SetLookupOptions(pa.array(known))))


def numbers_of(table: pa.Table, name: str) -> _Numbers:
    return _as_numbers(table.column(name))


def _as_mask(values: pa.ChunkedArray | pa.Array) -> _Mask:
    """Where a column of truth values is true; null is not."""
    return pc.fill_null(values, False).to_numpy(zero_copy_only=False)


def _as_numbers(values: pa.ChunkedArray | pa.Array) -> _Numbers:
    """A column as float64, with NaN for null; seeds beyond 2^53 are rounded."""
    return values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
