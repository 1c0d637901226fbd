"""One config of a zoo as the columns a page filters, counts and draws.

Runs are numbered as in the zoo's table of runs, diverged ones included. A hyperparameter is a list of its values and,
for each run, the place of its value in that list. A checkpoint is a row with the number of its run.
"""

from typing import Any

import numpy as np
import pandas as pd

from zoo.format.splits import splits_of
from zoo.reading.reader import ZooReader
from zoo.site.packing import plain

MEASURED = ("test_accuracy", "test_loss", "train_loss")
NOT_VARIED = ("run_id", "task", "checkpoint", "epoch", *MEASURED)
EXACT_IN_JAVASCRIPT = 2**53
QUANTILES = (0.05, 0.5, 0.95)


def run_columns(reader: ZooReader) -> dict[str, Any]:
    """What is known of each run, apart from its hyperparameters and its curves."""
    runs = reader.runs
    return {
        "id": runs["run_id"].tolist(),
        "status": runs["status"].tolist(),
        "split": splits_of(lambda name: runs[name].tolist(), repeats=reader.details.repeats is not None),
        "epochs": runs["epochs"].tolist(),
    }


def hyperparameters(reader: ZooReader) -> list[dict[str, Any]]:
    """Every column of the checkpoints that is neither a measurement nor a name, for all runs."""
    names = [name for name in reader.metadata.columns if name not in NOT_VARIED]
    return [coded(name, reader.runs[name].to_numpy()) for name in names]


def coded(name: str, column: np.ndarray) -> dict[str, Any]:
    """A column as its distinct values in order, and the place of each run's value among them."""
    values, places = np.unique(column, return_inverse=True)
    return {
        "name": name,
        "numeric": bool(np.issubdtype(column.dtype, np.number)),
        "values": [exact(value) for value in values.tolist()],
        "codes": places.tolist(),
    }


def exact(value: Any) -> Any:
    """A value that JavaScript reads without a change: larger whole numbers than it knows become text."""
    return str(value) if isinstance(value, int) and abs(value) > EXACT_IN_JAVASCRIPT else value


def checkpoint_columns(reader: ZooReader) -> dict[str, Any]:
    """One row per checkpoint: the number of its run, the place of its label, its epoch and its measurements."""
    rows = reader.metadata
    number = {run: place for place, run in enumerate(reader.runs["run_id"])}
    labels = list(dict.fromkeys(rows["checkpoint"]))  # in the order of the first run's checkpoints
    return {
        "labels": labels,
        "run": [number[run] for run in rows["run_id"]],
        "label": [labels.index(label) for label in rows["checkpoint"]],
        "epoch": rows["epoch"].tolist(),
        "test_accuracy": plain(rows["test_accuracy"], digits=None),
        "test_loss": plain(rows["test_loss"]),
        "train_loss": plain(rows["train_loss"]),
    }


def band(runs: pd.DataFrame) -> dict[str, list[float | None]]:
    """The middle nine tenths and the median of all runs' test accuracy in each epoch, over those that got there."""
    curves = [np.asarray(curve, dtype=np.float64) for curve in runs["test_accuracy"]]
    longest = max(map(len, curves), default=0)
    padded = np.array([np.pad(curve, (0, longest - len(curve)), constant_values=np.nan) for curve in curves])
    low, middle, high = np.nanquantile(padded, QUANTILES, axis=0) if longest else np.empty((3, 0))
    return {"low": plain(low), "middle": plain(middle), "high": plain(high)}


def curves(runs: pd.DataFrame) -> list[dict[str, list[float | None]]]:
    """The curves of each run, one value per epoch."""
    columns = {name: runs[name].tolist() for name in MEASURED}
    return [{name: plain(columns[name][place]) for name in MEASURED} for place in range(len(runs))]
