"""What may be wrong with the rows of a zoo: the one list of rules that readers, ``publish`` and ``verify`` go by.

A rule yields the rows that break it, as a mask, and says what is wrong with them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool

from zoo.format.schema import CHECKPOINTS, CURVES, HYPERPARAMETERS, OPTIMIZERS, STATUSES

RUN_ID = r"\A[0-9a-f]{16}\z"
Mask = Bool[np.ndarray, " n"]
Fault = tuple[Mask, str]
Locate = Callable[[int], tuple[Path, int]]
"""From a row to its file and its number there."""


def name_faults(table: pa.Table) -> Iterator[Fault]:
    """Names that are none of ours. They end up in paths and on terminals, so every reader looks at them first."""
    if len(table):
        ids = pc.call_function("match_substring_regex", [table.column("run_id")], pc.MatchSubstringOptions(RUN_ID))
        yield ~as_mask(ids), "the run_id is not 16 hexadecimal digits"
        for column, known in (("checkpoint", CHECKPOINTS), ("status", STATUSES)):
            if column in table.column_names:
                listed = pc.call_function("is_in", [table.column(column)], pc.SetLookupOptions(pa.array(known)))
                yield ~as_mask(listed), f"the {column} is none of {', '.join(known)}"


def run_faults(table: pa.Table, task: str, shards: Sequence[int]) -> Iterator[Fault]:
    """Faults in a table of runs, in itself and beside the task and the shards it should be of."""
    runs = table.drop_columns([field.name for field in CURVES]).to_pandas()
    yield from name_faults(table)
    yield np.asarray(runs.isna().any(axis=1)), "a value is missing"
    yield np.asarray(runs["run_id"].duplicated()), "the run is there twice"
    yield np.asarray(runs["task"] != task), f"the task is not {task}"
    yield np.asarray(~runs["shard"].isin(list(shards))), "the shard is not one of the manifest's"
    yield from hyperparameter_faults(runs)
    epochs, completed = runs["epochs"].to_numpy(), np.asarray(runs["status"] == "completed")
    yield ~(epochs >= 1), "the number of epochs is not positive"
    yield completed & ~np.asarray(runs["best_epoch"].between(1, runs["epochs"])), "best_epoch is not one of its epochs"
    for field in CURVES:
        yield from curve_faults(field.name, table.column(field.name), epochs, completed)
    if "wall_seconds" in runs:
        yield ~(np.isfinite(runs["wall_seconds"]) & (runs["wall_seconds"] >= 0)).to_numpy(), "wall_seconds is no time"


def curve_faults(name: str, curves: pa.ChunkedArray, epochs: np.ndarray, completed: Mask) -> Iterator[Fault]:
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


def checkpoint_faults(rows: pd.DataFrame, runs: pd.DataFrame, task: str) -> Iterator[Fault]:
    """Faults in checkpoints, in themselves and beside the table of the runs they were taken from."""
    measures = rows[["test_accuracy", "test_loss", "train_loss"]]
    missing = rows.isna().any(axis=1) | ~np.isfinite(measures).all(axis=1)
    yield np.asarray(missing), "a value is missing"
    yield np.asarray(~rows["test_accuracy"].between(0, 1)), "test_accuracy is outside [0, 1]"
    yield np.asarray((measures < 0).any(axis=1)), "a loss is negative"
    yield np.asarray(rows["task"] != task), f"the task is not {task}"
    recorded = runs.drop_duplicates("run_id").set_index("run_id").reindex(rows["run_id"])
    yield (recorded["status"] != "completed").to_numpy(), "not a completed run of this config"
    for field in HYPERPARAMETERS:
        same = rows[field.name].to_numpy() == recorded[field.name].to_numpy()
        yield ~same, f"{field.name} is not its run's"
    epoch = rows["epoch"].to_numpy()
    yield ~((epoch >= 1) & (epoch <= recorded["epochs"].to_numpy())), "the epoch is not one of its run's"
    yield from hyperparameter_faults(rows)


def hyperparameter_faults(rows: pd.DataFrame) -> Iterator[Fault]:
    """Values that no run can be trained with."""
    yield np.asarray(~rows["optimizer"].isin(OPTIMIZERS)), f"the optimizer is none of {', '.join(OPTIMIZERS)}"
    ranges = {
        "learning_rate": (0.0, np.inf, "neither"),
        "weight_decay": (0.0, np.inf, "left"),
        "init_std": (0.0, np.inf, "neither"),
        "dropout": (0.0, 1.0, "left"),
        "train_fraction": (0.0, 1.0, "right"),
        "seed": (0, 2**32, "left"),
    }
    for name, (low, high, inclusive) in ranges.items():
        yield np.asarray(~rows[name].between(low, high, inclusive=inclusive)), f"{name} is out of range"


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


def as_mask(values: pa.ChunkedArray | pa.Array) -> Mask:
    """Where a column of truth values is true; null is not."""
    return pc.fill_null(values, False).to_numpy(zero_copy_only=False)


def as_numbers(values: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """A column as float64, with NaN for null."""
    return values.cast(pa.float64()).to_numpy(zero_copy_only=False)
