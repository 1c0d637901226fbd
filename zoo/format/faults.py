"""The rules that the rows of a zoo must keep; ``publish`` and ``join`` refuse what breaks one, ``verify`` reports it.

Most of a row follows from the rest of it: ids and seeds of runs from the configuration, the best epoch from the curve,
the epoch of a checkpoint from its name, its labels from its run's curve. A rule yields a mask of the rows that break
it, and a line about them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Float32, Float64, Int64
from msgspec import Meta

from zoo.checked import allowed
from zoo.format.hyperparameters import CONFIGURATION, HYPERPARAMETERS, TYPES
from zoo.format.published import ConfigDetails
from zoo.format.recipe import epochs_of_checkpoints
from zoo.format.record import TrainingRecord
from zoo.format.schema import BEST, CURVES, labels_of, usual_label
from zoo.format.splits import SPLITS

_LABEL_TOLERANCE, _FEW_EXAMPLES = 0.005, 3
"""The fused engine measures curves in half precision and checkpoints in float32. In 1,200 rows of three zoos no two
accuracies differ by more than 0.001, and no two losses; the other engine's are equal."""
_RUNS_AT_ONCE = 1024  # as Python objects, since a table may be large
_Mask = Bool[np.ndarray, " n"]
_Numbers = Float64[np.ndarray, " n"]
_Weights = Iterable[Float32[np.ndarray, "n d"]]
_Fault = tuple[_Mask | pd.Series, str]
Located = tuple[pa.Table, Callable[[int], tuple[Path, int]]]
"""A table, and for each of its rows the file it is in and its number there."""
SeenWeights = dict[tuple[str, int], tuple[str, int]]
"""(Task, hash of weights) → (run, epoch)."""


def config_faults(
    record: TrainingRecord,
    shards: Sequence[int],
    runs: Located,
    rows: Located,
    weights: _Weights,
    seen: SeenWeights,
    *,
    splits: Sequence[str] | None = None,
    thinned: Sequence[str] = (),
) -> Iterator[str]:
    """A line for each rule that a config breaks; it names the first row that breaks it, and how many more do.

    ``weights`` are those of the rows, in order, and ``seen`` gathers them over the configs of a zoo. ``splits`` has the
    split that each row of a published config lies in. Of runs of ``thinned`` shards, checkpoints may be missing.
    """
    facts, table = runs[0].drop_columns([field.name for field in CURVES]).to_pandas(), rows[0].to_pandas()
    yield from _lines(runs, _run_faults(runs[0], facts, record, shards))
    yield from _lines(rows, _checkpoint_faults(table, _missing(rows[0]), runs[0], facts, record))
    keys = table[["run_id", "checkpoint"]]
    twice = keys.duplicated()
    for row in np.flatnonzero(twice)[:1]:
        path, number = rows[1](int(np.flatnonzero((keys == keys.iloc[row]).all(axis=1))[0]))
        run, checkpoint = keys.iloc[row]
        yield from _lines(rows, [(twice, f"{checkpoint} of run {run} is also in {path}, row {number}")])
    if splits is not None:
        assert isinstance(record, ConfigDetails)
        belongs, lies = (np.array(each, dtype=str) for each in (record.splits_of(table.__getitem__), splits))
        for split in SPLITS:
            wrong = (lies == split) & (belongs != split)
            yield from _lines(rows, [(wrong, f"the run does not belong in {split}")])
    yield from _lines(rows, _weight_faults(table, weights, record.task, seen))
    kept = keys[keys["checkpoint"].isin(record.checkpoints) & ~twice]["run_id"].value_counts()
    lacking = facts["run_id"].map(kept).fillna(0) < len(record.checkpoints)
    whole = (facts["status"] == "completed") & ~facts["shard"].astype(str).isin(thinned)
    fault = f"the run is completed, but one of {', '.join(record.checkpoints)} is missing"
    yield from _lines(runs, [(whole & lacking, fault)])


def _lines(located: Located, faults: Iterable[_Fault]) -> Iterator[str]:
    for faulty, fault in faults:
        rows = np.flatnonzero(faulty)
        if len(rows):
            path, row = located[1](int(rows[0]))
            more = f" (and {len(rows) - 1:,} more)" if len(rows) > 1 else ""
            yield f"{path}, row {row}{more}: {fault}"


def _missing(table: pa.Table) -> _Mask:
    """The rows with a null in any column."""
    return np.any([column.is_null().to_numpy() for column in table.columns], axis=0)


def _run_faults(table: pa.Table, runs: pd.DataFrame, record: TrainingRecord, shards: Sequence[int]) -> Iterator[_Fault]:
    """Faults in a table of runs whose names are sound, also against the record and the shards it should belong to."""
    yield _missing(table), "a value is missing"
    yield runs["run_id"].duplicated(), "the run is there twice"
    yield runs["task"] != record.task, f"the task is not {record.task}"
    yield ~runs["shard"].isin(shards), "the shard is not one of the manifest's"
    yield from _hyperparameter_faults(runs)
    yield from _recipe_faults(table, record)
    epochs, completed = runs["epochs"].to_numpy(), (runs["status"] == "completed").to_numpy()
    yield epochs != record.protocol["epochs"], "the number of epochs is not the protocol's"
    for field in CURVES:
        yield from _curve_faults(field.name, table.column(field.name), epochs, completed)
    label, more = usual_label(record.spec)
    values, lengths = _flat_curves(table.column(label))
    parts = np.split(values if more else -values, lengths.cumsum()[:-1])[: len(runs)]
    expected = np.array([int(curve.argmax()) + 1 if len(curve) else 0 for curve in parts])
    fault = f"best_epoch is not the first epoch of the {'highest' if more else 'lowest'} {label.replace('_', ' ')}"
    yield completed & (runs["best_epoch"] != expected), fault
    if "wall_seconds" in runs:
        seconds = runs["wall_seconds"]
        yield ~(np.isfinite(seconds) & (seconds >= 0)), "wall_seconds is not a length of time"


def _recipe_faults(table: pa.Table, record: TrainingRecord) -> Iterator[_Fault]:
    """Runs whose id or seed is not the one that follows from their configuration."""
    other, foreign, last, seeds = list[bool](), list[bool](), dict[str, Any](), list[int]()
    for batch in table.select(["run_id", *HYPERPARAMETERS]).to_batches(_RUNS_AT_ONCE):
        for run in batch.to_pylist():
            other.append(run.pop("run_id") != record.run_id(run))
            configuration = {name: run[name] for name in CONFIGURATION}
            if configuration != last:  # repeats stand next to each other
                last, seeds = configuration, record.seeds_of(run)
            foreign.append(run["seed"] not in seeds)
    yield np.array(other, dtype=bool), "the run_id is not the hash of the configuration"
    yield np.array(foreign, dtype=bool), f"the seed does not follow from the policy, seeds {record.seeds!r}"


def _flat_curves(curves: pa.ChunkedArray) -> tuple[_Numbers, Int64[np.ndarray, " curves"]]:
    """The values of all curves, one after the other, NaN for null, and the length of each."""
    values, lengths = (pc.call_function(name, [curves]) for name in ("list_flatten", "list_value_length"))
    return values.to_numpy().astype(np.float64), pc.fill_null(lengths, 0).to_numpy().astype(np.int64)


def _curve_faults(name: str, curves: pa.ChunkedArray, epochs: np.ndarray, completed: _Mask) -> Iterator[_Fault]:
    """A completed run has a finite value per epoch; a diverged one stops early, and its losses may not be finite."""
    numbers, lengths = _flat_curves(curves)
    long, short = lengths > epochs, lengths < epochs
    yield curves.is_null().to_numpy() | long | (completed & short), f"{name} does not have a value for each epoch"
    rows = np.repeat(np.arange(len(curves)), lengths)
    missing = pc.call_function("list_flatten", [curves]).is_null().to_numpy()
    wrong = missing | ~np.isfinite(numbers) & completed[rows]
    if name == "test_accuracy":
        wrong |= ~((numbers >= 0) & (numbers <= 1))
    yield np.isin(np.arange(len(curves)), rows[wrong]), f"{name} holds a value that is missing or out of range"


def _checkpoint_faults(
    rows: pd.DataFrame, missing: _Mask, curves: pa.Table, runs: pd.DataFrame, record: TrainingRecord
) -> Iterator[_Fault]:
    """Faults in checkpoints, also against their runs and the record."""
    measured = rows[list(labels_of(record.spec))]
    yield missing | ~np.isfinite(measured).all(axis=1), "a value is missing"
    yield ~rows["test_accuracy"].between(0, 1), "test_accuracy is outside [0, 1]"
    yield (measured.drop(columns="test_accuracy") < 0).any(axis=1), "a loss is negative"
    yield rows["task"] != record.task, f"the task is not {record.task}"
    labels = record.checkpoints
    yield ~rows["checkpoint"].isin(labels), f"the checkpoint is none of {', '.join(labels)}"
    known = runs.assign(number=np.arange(len(runs))).drop_duplicates("run_id").set_index("run_id")
    recorded = known.reindex(rows["run_id"]).reset_index()
    yield recorded["status"] != "completed", "not a completed run of this config"
    for name in HYPERPARAMETERS:
        yield rows[name] != recorded[name], f"{name} is not its run's"
    yield from _hyperparameter_faults(rows)
    fixed = rows["checkpoint"].map(epochs_of_checkpoints(record.protocol))
    expected = fixed.where(rows["checkpoint"] != BEST, recorded["best_epoch"])
    yield rows["epoch"] != expected, "the epoch is not that of the checkpoint"
    examples = _FEW_EXAMPLES / max(1, record.data.test_rows) if record.data else 0.0
    for name, least in (("test_accuracy", examples), ("test_loss", 0.0)):
        curve = _curves_at(curves.column(name), recorded["number"], rows["epoch"].to_numpy())
        allowed_difference = np.maximum(least, _LABEL_TOLERANCE * np.maximum(1, curve))
        agree = np.abs(rows[name] - curve) <= allowed_difference
        yield ~agree, f"{name} is not that of its run's curve at this epoch"


def _curves_at(curves: pa.ChunkedArray, runs: pd.Series, epochs: np.ndarray) -> _Numbers:
    """The values after these epochs of the curves of these runs; NaN where there is none."""
    values, lengths = _flat_curves(curves)
    starts, lengths = (pd.Series(each).reindex(runs).to_numpy() for each in (lengths.cumsum() - lengths, lengths))
    inside = (epochs >= 1) & (epochs <= lengths)
    return np.append(values, np.nan)[np.where(inside, starts + epochs - 1, len(values)).astype(np.int64)]


def _weight_faults(rows: pd.DataFrame, weights: _Weights, task: str, seen: SeenWeights) -> Iterator[_Fault]:
    """Weights that are not finite, that belong to another run or epoch, or that differ within one.

    Their hash is Python's own, 64 bits under a key of this process: only equal weights have to be found.
    """
    finite, hashes = list[bool](), list[int]()
    for part in weights:
        finite += np.all(np.isfinite(part), axis=1).tolist()
        hashes += [hash(row.tobytes()) for row in part]
    yield ~np.array(finite, dtype=bool), "weights hold NaN or infinity"
    taken = list(zip(rows["run_id"], rows["epoch"], strict=True))
    copied = [seen.setdefault((task, each), key) != key for each, key in zip(hashes, taken, strict=True)]
    yield np.array(copied, dtype=bool), "the weights are those of another run or epoch"
    first: dict[tuple[str, int], int] = {}
    other = [first.setdefault(key, each) != each for each, key in zip(hashes, taken, strict=True)]
    yield np.array(other, dtype=bool), "the weights are not those of its run's other checkpoint at this epoch"


def _hyperparameter_faults(table: pd.DataFrame) -> Iterator[_Fault]:
    """Rows with values that no run can be trained with."""
    for name, kind in TYPES.items():
        choices = get_args(get_args(kind)[0])
        wrong = ~table[name].isin(choices) if choices else _outside(table[name], kind)
        yield wrong, f"{name} must be {allowed(kind)}"


def _outside(values: pd.Series, kind: Any) -> _Mask | pd.Series:
    """The rows whose number is not within the limits of its type, or is missing."""
    inside = np.isfinite(values)
    for limits in (each for each in get_args(kind) if isinstance(each, Meta)):
        for compare in ("gt", "ge", "lt", "le"):  # of Meta and of pandas
            if (limit := getattr(limits, compare)) is not None:
                inside &= getattr(values, compare)(limit)
    return ~inside
