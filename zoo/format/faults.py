"""The rules that the rows of a zoo must keep; ``publish`` and ``join`` refuse what breaks one, ``verify`` reports it.

Most of a row follows from the rest of it: ids and seeds of runs from the configuration, the best epoch from the curve,
the epoch of a checkpoint from its name, its labels from its run's curve. A rule yields a mask of the rows that break
it, and a line about them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
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
_Fault = tuple[_Mask, str]
Located = tuple[pa.Table, Callable[[int], tuple[Path, int]]]
"""A table, and for each of its rows the file it is in and its number there."""
SeenWeights = dict[tuple[str, int], tuple[str, int]]
"""(Task, hash of weights) → (run, epoch)."""


def config_faults(
    record: TrainingRecord,
    shards: Sequence[int],
    runs: Located,
    rows: Located,
    weights: Iterable[Float32[np.ndarray, "n d"]],
    seen: SeenWeights,
    *,
    splits: Sequence[str] | None = None,
    whole: bool = True,
) -> Iterator[str]:
    """A line for each rule that a config breaks; it names the first row that breaks it, and how many more do.

    ``weights`` are those of the rows, in order, and ``seen`` gathers them over the configs of a zoo. ``splits`` has the
    split that each row of a published config lies in; without ``whole``, checkpoints may be missing.
    """
    table, locate = rows
    known = runs[0].column("run_id").combine_chunks()
    found = pc.call_function("index_in", [table.column("run_id").combine_chunks()], pc.SetLookupOptions(known))
    present: dict[tuple[str, str], int] = {}
    checkpoints = list(zip(*(table.column(name).to_pylist() for name in ("run_id", "checkpoint")), strict=True))
    twice = np.array([present.setdefault(key, row) != row for row, key in enumerate(checkpoints)], dtype=bool)
    yield from _lines(runs, _run_faults(runs[0], record, shards))
    yield from _lines(rows, _checkpoint_faults(table, runs[0], found, record))
    for row in np.flatnonzero(twice)[:1].tolist():
        (run, checkpoint), (path, number) = checkpoints[row], locate(present[checkpoints[row]])
        yield from _lines(rows, [(twice, f"{checkpoint} of run {run} is also in {path}, row {number}")])
    if splits is not None:
        assert isinstance(record, ConfigDetails)
        yield from _lines(rows, _misplaced(table, splits, record))
    yield from _lines(rows, _weight_faults(table, weights, record.task, seen))
    if whole:
        completed = ~_unlisted(runs[0].column("status"), ["completed"])
        lacking = [any((run, name) not in present for name in record.checkpoints) for run in known.to_pylist()]
        fault = f"the run is completed, but one of {', '.join(record.checkpoints)} is missing"
        yield from _lines(runs, [(completed & np.array(lacking, dtype=bool), fault)])


def _lines(located: Located, faults: Iterable[_Fault]) -> Iterator[str]:
    for faulty, fault in faults:
        rows = np.flatnonzero(faulty)
        if len(rows):
            path, row = located[1](int(rows[0]))
            more = f" (and {len(rows) - 1:,} more)" if len(rows) > 1 else ""
            yield f"{path}, row {row}{more}: {fault}"


def _run_faults(table: pa.Table, record: TrainingRecord, shards: Sequence[int]) -> Iterator[_Fault]:
    """Faults in a table of runs whose names are sound, also against the record and the shards it should belong to."""
    yield _missing(table), "a value is missing"
    ids = table.column("run_id").to_pylist()
    first = {run: row for row, run in reversed(list(enumerate(ids)))}
    yield np.array([first[run] != row for row, run in enumerate(ids)], dtype=bool), "the run is there twice"
    yield _unlisted(table.column("task"), [record.task]), f"the task is not {record.task}"
    yield ~np.isin(_numbers_of(table, "shard"), list(shards)), "the shard is not one of the manifest's"
    yield from _hyperparameter_faults(table)
    yield from _recipe_faults(table, record)
    epochs, best = _numbers_of(table, "epochs"), _numbers_of(table, "best_epoch")
    completed = ~_unlisted(table.column("status"), ["completed"])
    yield epochs != record.protocol["epochs"], "the number of epochs is not the protocol's"
    for field in CURVES:
        yield from _curve_faults(field.name, table.column(field.name), epochs, completed)
    label, more = usual_label(record.spec)
    values, lengths = _flat_curves(table.column(label))
    curves = np.split(values if more else -values, lengths.cumsum()[:-1])
    expected = [int(curve.argmax()) + 1 if len(curve) else 0 for curve in curves]
    fault = f"best_epoch is not the first epoch of the {'highest' if more else 'lowest'} {label.replace('_', ' ')}"
    yield completed & (best != np.array(expected[: len(best)])), fault
    if "wall_seconds" in table.column_names:
        seconds = _numbers_of(table, "wall_seconds")
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
    """The values of all curves, one after the other, and the length of each."""
    lengths = _as_numbers(pc.call_function("list_value_length", [curves]))
    return _as_numbers(pc.call_function("list_flatten", [curves])), np.nan_to_num(lengths).astype(np.int64)


def _curve_faults(name: str, curves: pa.ChunkedArray, epochs: _Numbers, completed: _Mask) -> Iterator[_Fault]:
    """A completed run has a finite value per epoch; a diverged one stops early, and its losses may not be finite."""
    numbers, lengths = _flat_curves(curves)
    long, short = lengths > epochs, lengths < epochs
    yield _as_mask(curves.is_null()) | long | (completed & short), f"{name} does not have a value for each epoch"
    rows = np.repeat(np.arange(len(curves)), lengths)
    missing = _as_mask(pc.call_function("list_flatten", [curves]).is_null())
    wrong = missing | ~np.isfinite(numbers) & completed[rows]
    if name == "test_accuracy":
        wrong |= ~((numbers >= 0) & (numbers <= 1))
    faulty = np.zeros(len(epochs), dtype=bool)
    faulty[rows[wrong]] = True
    yield faulty, f"{name} holds a value that is missing or out of range"


def _checkpoint_faults(rows: pa.Table, runs: pa.Table, found: pa.Array, record: TrainingRecord) -> Iterator[_Fault]:
    """Faults in checkpoints, also against their runs, the rows ``found`` of that table, and the record."""
    accuracy, *losses = (_numbers_of(rows, name) for name in labels_of(record.spec))
    finite = np.isfinite([accuracy, *losses]).all(axis=0)
    yield _missing(rows) | ~finite, "a value is missing"
    yield ~((accuracy >= 0) & (accuracy <= 1)), "test_accuracy is outside [0, 1]"
    yield np.min(losses, axis=0) < 0, "a loss is negative"
    yield _unlisted(rows.column("task"), [record.task]), f"the task is not {record.task}"
    labels = record.checkpoints
    yield _unlisted(rows.column("checkpoint"), labels), f"the checkpoint is none of {', '.join(labels)}"
    recorded = runs.drop_columns([field.name for field in CURVES]).take(found)
    yield _unlisted(recorded.column("status"), ["completed"]), "not a completed run of this config"
    for name in HYPERPARAMETERS:
        same = pc.call_function("equal", [rows.column(name), recorded.column(name)])
        yield ~_as_mask(same), f"{name} is not its run's"
    yield from _hyperparameter_faults(rows)
    epoch, best = _numbers_of(rows, "epoch"), _numbers_of(recorded, "best_epoch")
    expected = np.full(len(rows), np.nan)
    for label, after in (*epochs_of_checkpoints(record.protocol).items(), (BEST, best)):
        expected = np.where(_unlisted(rows.column("checkpoint"), [label]), expected, after)
    yield epoch != expected, "the epoch is not that of the checkpoint"
    examples = _FEW_EXAMPLES / max(1, record.data.test_rows) if record.data else 0.0
    for name, least in (("test_accuracy", examples), ("test_loss", 0.0)):
        curve = _curves_at(runs.column(name), found, epoch)
        allowed_difference = np.maximum(least, _LABEL_TOLERANCE * np.maximum(1, curve))
        agree = np.abs(_numbers_of(rows, name) - curve) <= allowed_difference
        yield ~agree, f"{name} is not that of its run's curve at this epoch"


def _curves_at(curves: pa.ChunkedArray, runs: pa.Array, epochs: _Numbers) -> _Numbers:
    """The values after these epochs of the curves of these runs; NaN where there is none."""
    values, lengths = _flat_curves(curves)
    run = pc.fill_null(runs, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    starts, lengths = np.append(lengths.cumsum() - lengths, 0), np.append(lengths, 0)
    inside = _as_mask(runs.is_valid()) & (epochs >= 1) & (epochs <= lengths[run])
    places = np.where(inside, starts[run] + np.nan_to_num(epochs).astype(np.int64) - 1, len(values))
    return np.append(values, np.nan)[places]


def _misplaced(rows: pa.Table, lies_in: Sequence[str], details: ConfigDetails) -> Iterator[_Fault]:
    placed = details.splits_of(lambda name: rows.column(name).to_pylist())
    for split in SPLITS:
        wrong = [here == split != right for here, right in zip(lies_in, placed, strict=True)]
        yield np.array(wrong, dtype=bool), f"the run does not belong in {split}"


def _weight_faults(
    rows: pa.Table, weights: Iterable[Float32[np.ndarray, "n d"]], task: str, seen: SeenWeights
) -> Iterator[_Fault]:
    """Weights that are not finite, that belong to another run or epoch, or that differ within one.

    Their hash is Python's own, 64 bits under a key of this process: only equal weights have to be found.
    """
    finite, hashes = list[bool](), list[int]()
    for part in weights:
        finite += np.all(np.isfinite(part), axis=1).tolist()
        hashes += [hash(row.tobytes()) for row in part]
    yield ~np.array(finite, dtype=bool), "weights hold NaN or infinity"
    taken = list(zip(*(rows.column(name).to_pylist() for name in ("run_id", "epoch")), strict=True))
    copied = [seen.setdefault((task, each), key) != key for each, key in zip(hashes, taken, strict=True)]
    yield np.array(copied, dtype=bool), "the weights are those of another run or epoch"
    first: dict[tuple[str, int], int] = {}
    other = [first.setdefault(key, each) != each for each, key in zip(hashes, taken, strict=True)]
    yield np.array(other, dtype=bool), "the weights are not those of its run's other checkpoint at this epoch"


def _hyperparameter_faults(table: pa.Table) -> Iterator[_Fault]:
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


def _numbers_of(table: pa.Table, name: str) -> _Numbers:
    return _as_numbers(table.column(name))


def _as_mask(values: pa.ChunkedArray | pa.Array) -> _Mask:
    """Where a column of truth values is true; null is not."""
    return pc.fill_null(values, False).to_numpy(zero_copy_only=False)


def _as_numbers(values: pa.ChunkedArray | pa.Array) -> _Numbers:
    """A column as float64, with NaN for null; seeds beyond 2^53 are rounded."""
    return values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
