"""What may be wrong with the rows of a zoo: the one list of rules that readers, ``publish`` and ``verify`` go by.

A rule yields the rows that break it, as a mask, and says what is wrong with them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Float64
from msgspec import Meta

from zoo.checked import allowed
from zoo.format.hyperparameters import HYPERPARAMETERS, TYPES
from zoo.format.record import TrainingRecord
from zoo.format.schema import CHECKPOINT, CURVES, STATUSES

RUN_ID = "[0-9a-f]{16}"
Mask = Bool[np.ndarray, " n"]
Numbers = Float64[np.ndarray, " n"]
Fault = tuple[Mask, str]
Locate = Callable[[int], tuple[Path | str, int]]
"""From a row to its file and its number there."""


def name_faults(table: pa.Table) -> Iterator[Fault]:
    """Names that are none of ours. They end up in paths and on terminals, so every reader looks at them first."""
    if len(table):
        yield not_matching(table.column("run_id"), RUN_ID), "the run_id is not 16 hexadecimal digits"
        if "checkpoint" in table.column_names:
            fault = "the checkpoint is neither epoch_N nor best"
            yield not_matching(table.column("checkpoint"), CHECKPOINT), fault
        if "status" in table.column_names:
            yield unlisted(table.column("status"), STATUSES), f"the status is none of {', '.join(STATUSES)}"


def run_faults(table: pa.Table, task: str, shards: Sequence[int]) -> Iterator[Fault]:
    """Faults in a table of runs whose names are sound, in itself and beside the task and the shards it should be of."""
    yield missing(table), "a value is missing"
    ids = table.column("run_id").to_pylist()
    first = {run: row for row, run in reversed(list(enumerate(ids)))}
    yield np.array([first[run] != row for row, run in enumerate(ids)], dtype=bool), "the run is there twice"
    yield unlisted(table.column("task"), [task]), f"the task is not {task}"
    yield ~np.isin(numbers_of(table, "shard"), list(shards)), "the shard is not one of the manifest's"
    yield from hyperparameter_faults(table)
    epochs, best = numbers_of(table, "epochs"), numbers_of(table, "best_epoch")
    completed = ~unlisted(table.column("status"), ["completed"])
    yield ~(epochs >= 1), "the number of epochs is not positive"
    yield completed & ~((best >= 1) & (best <= epochs)), "best_epoch is not one of its epochs"
    for field in CURVES:
        yield from curve_faults(field.name, table.column(field.name), epochs, completed)
    if "wall_seconds" in table.column_names:
        seconds = numbers_of(table, "wall_seconds")
        yield ~(np.isfinite(seconds) & (seconds >= 0)), "wall_seconds is no time"


def curve_faults(name: str, curves: pa.ChunkedArray, epochs: Numbers, completed: Mask) -> Iterator[Fault]:
    """A completed run has a finite value per epoch; a diverged one stops early, and its losses may not be finite."""
    lengths = as_numbers(pc.call_function("list_value_length", [curves]))
    long, short = lengths > epochs, lengths < epochs
    yield np.isnan(lengths) | long | (completed & short), f"{name} does not have a value for each epoch"
    values = pc.call_function("list_flatten", [curves])
    numbers, rows = as_numbers(values), np.repeat(np.arange(len(curves)), np.nan_to_num(lengths).astype(int))
    wrong = as_mask(values.is_null()) | ~np.isfinite(numbers) & completed[rows]
    if name == "test_accuracy":
        wrong |= ~((numbers >= 0) & (numbers <= 1))
    faulty = np.zeros(len(epochs), dtype=bool)
    faulty[rows[wrong]] = True
    yield faulty, f"{name} holds a value that is missing or out of range"


def checkpoint_faults(rows: pa.Table, runs: pa.Table, record: TrainingRecord) -> Iterator[Fault]:
    """Faults in checkpoints, in themselves and beside their runs and the record of the training."""
    accuracy, *losses = (numbers_of(rows, name) for name in ("test_accuracy", "test_loss", "train_loss"))
    finite = np.isfinite([accuracy, *losses]).all(axis=0)
    yield missing(rows) | ~finite, "a value is missing"
    yield ~((accuracy >= 0) & (accuracy <= 1)), "test_accuracy is outside [0, 1]"
    yield np.minimum(*losses) < 0, "a loss is negative"
    yield unlisted(rows.column("task"), [record.task]), f"the task is not {record.task}"
    labels = record.checkpoints
    yield unlisted(rows.column("checkpoint"), labels), f"the checkpoint is none of {', '.join(labels)}"
    known = runs.column("run_id").combine_chunks()
    places = pc.call_function("index_in", [rows.column("run_id").combine_chunks()], pc.SetLookupOptions(known))
    recorded = runs.take(places)
    yield unlisted(recorded.column("status"), ["completed"]), "not a completed run of this config"
    for name in HYPERPARAMETERS:
        same = pc.call_function("equal", [rows.column(name), recorded.column(name)])
        yield ~as_mask(same), f"{name} is not its run's"
    epoch = numbers_of(rows, "epoch")
    yield ~((epoch >= 1) & (epoch <= numbers_of(recorded, "epochs"))), "the epoch is not one of its run's"
    yield from hyperparameter_faults(rows)


def hyperparameter_faults(table: pa.Table) -> Iterator[Fault]:
    """Values that no run can be trained with."""
    for name, kind in TYPES.items():
        column = table.column(name)
        choices = get_args(get_args(kind)[0])
        wrong = unlisted(column, choices) if choices else outside(as_numbers(column), kind)
        yield wrong, f"{name} must be {allowed(kind)}"


def outside(values: Numbers, kind: Any) -> Mask:
    """The rows whose number is not within the limits of its type, or is missing."""
    inside = np.isfinite(values)
    for limits in (each for each in get_args(kind) if isinstance(each, Meta)):
        for name, compare in (("gt", np.greater), ("ge", np.greater_equal), ("lt", np.less), ("le", np.less_equal)):
            if (limit := getattr(limits, name)) is not None:
                inside &= compare(values, limit)
    return ~inside


def fault_lines(path: Path, faults: Iterable[Fault]) -> Iterator[str]:
    """One line for each broken rule; it names the first row that breaks it, and how many there are."""
    for faulty, fault in faults:
        rows = np.flatnonzero(faulty)
        if len(rows):
            more = f" (and {len(rows) - 1:,} more)" if len(rows) > 1 else ""
            yield f"{path}, row {rows[0]}{more}: {fault}"


def refuse(faults: Iterable[Fault], locate: Locate) -> None:
    """Raises a ValueError that names the file and the row of the first fault."""
    for faulty, fault in faults:
        if faulty.any():
            path, row = locate(int(faulty.argmax()))
            raise ValueError(f"{path}, row {row}: {fault}")


def missing(table: pa.Table) -> Mask:
    """The rows with a null in any column."""
    nulls = [as_mask(column.is_null()) for column in table.columns if column.null_count]
    return np.any(nulls, axis=0) if nulls else np.zeros(len(table), dtype=bool)


def unlisted(column: pa.ChunkedArray, known: Sequence[str]) -> Mask:
    """The rows whose text is none of the known ones."""
    return ~as_mask(pc.call_function("is_in", [column.combine_chunks()], pc.SetLookupOptions(pa.array(known))))


def not_matching(column: pa.ChunkedArray, pattern: str) -> Mask:
    """The rows whose text is not, as a whole, what the pattern says."""
    options = pc.MatchSubstringOptions(rf"\A{pattern}\z")
    return ~as_mask(pc.call_function("match_substring_regex", [column.combine_chunks()], options))


def numbers_of(table: pa.Table, name: str) -> Numbers:
    return as_numbers(table.column(name))


def as_mask(values: pa.ChunkedArray | pa.Array) -> Mask:
    """Where a column of truth values is true; null is not."""
    return pc.fill_null(values, False).to_numpy(zero_copy_only=False)


def as_numbers(values: pa.ChunkedArray | pa.Array) -> Numbers:
    """A column as float64, with NaN for null; seeds beyond 2^53 are rounded."""
    return values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
