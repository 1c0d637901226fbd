"""One config of a zoo as the columns a page filters, counts and draws, and the text that carries them into the page.

Runs are numbered as in the zoo's table of runs, diverged ones included. A hyperparameter is a list of its values and,
for each run, the index of its value in that list. A checkpoint is a row with the number of its run.
"""

import base64
import gzip
import json
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float64

from zoo.format.schema import LANGUAGE_LABELS
from zoo.reading.reader import ZooReader

_MEASURED = ("test_accuracy", "test_loss", "train_loss")
_NOT_VARIED = ("run_id", "task", "checkpoint", "epoch", *_MEASURED, *LANGUAGE_LABELS)
_EXACT_IN_JAVASCRIPT = 2**53
_QUANTILES = (0.05, 0.5, 0.95)
_DIGITS = 5
"""Significant digits of losses and curves. Accuracies keep all bits, since filters compare them."""


def run_columns(reader: ZooReader) -> dict[str, Any]:
    """The facts about each run, apart from its hyperparameters and its curves."""
    runs = reader.runs
    return {
        "id": runs["run_id"].tolist(),
        "status": runs["status"].tolist(),
        "split": reader.details.splits_of(lambda name: runs[name].tolist()),
        "epochs": runs["epochs"].tolist(),
    }


def hyperparameters(reader: ZooReader) -> list[dict[str, Any]]:
    """Every column of the checkpoints that is neither a measurement nor a name, for all runs."""
    names = [name for name in reader.metadata.columns if name not in _NOT_VARIED]
    return [_coded(name, reader.runs[name].to_numpy()) for name in names]


def _coded(name: str, column: np.ndarray) -> dict[str, Any]:
    """A column as its distinct values in order, and the index of each run's value among them."""
    values, codes = np.unique(column, return_inverse=True)
    return {
        "name": name,
        "numeric": bool(np.issubdtype(column.dtype, np.number)),
        "values": [_exact(value) for value in values.tolist()],
        "codes": codes.tolist(),
    }


def _exact(value: Any) -> Any:
    """A value that JavaScript reads without a change: whole numbers too large for it become text."""
    return str(value) if isinstance(value, int) and abs(value) > _EXACT_IN_JAVASCRIPT else value


def checkpoint_columns(reader: ZooReader) -> dict[str, Any]:
    """One row per checkpoint: the number of its run, the index of its label, its epoch and its measurements."""
    rows = reader.metadata
    number = {run: index for index, run in enumerate(reader.runs["run_id"])}
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
    """The median and the middle nine tenths of the runs' test accuracy in each epoch, over the runs that reached it."""
    curves = [np.asarray(curve, dtype=np.float64) for curve in runs["test_accuracy"]]
    longest = max(map(len, curves), default=0)
    padded = np.array([np.pad(curve, (0, longest - len(curve)), constant_values=np.nan) for curve in curves])
    low, middle, high = np.nanquantile(padded, _QUANTILES, axis=0) if longest else np.empty((3, 0))
    return {"low": plain(low), "middle": plain(middle), "high": plain(high)}


def curves(runs: pd.DataFrame) -> list[dict[str, list[float | None]]]:
    """The curves of each run, one value per epoch."""
    columns = {name: runs[name].tolist() for name in _MEASURED}
    return [{name: plain(columns[name][run]) for name in _MEASURED} for run in range(len(runs))]


def packed(value: Any) -> str:
    """The JSON of a value, gzipped, in base64: no character of it means anything to HTML or JavaScript.

    The same value always gives the same text. NaN is an error: see ``plain``.
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode()


def plain(numbers: Any, digits: int | None = _DIGITS) -> list[float | None]:
    """Numbers as JSON has them: rounded to significant digits, or to the fewest that identify a float32.

    A number that is not finite, such as the loss of a run in the epoch it diverged in, is None.
    """
    array = np.asarray(numbers, dtype=np.float32)
    finite = np.isfinite(array)
    if digits is None:
        values = [float(str(number)) for number in array]
    else:
        values = _rounded(np.where(finite, array, 0).astype(np.float64), digits).tolist()
    return [value if good else None for value, good in zip(values, finite.tolist(), strict=True)]


def _rounded(numbers: Float64[np.ndarray, " n"], digits: int) -> Float64[np.ndarray, " n"]:
    """The nearest numbers with this many significant digits."""
    size = np.floor(np.log10(np.abs(numbers), where=numbers != 0, out=np.zeros_like(numbers)))
    shift = digits - 1 - size
    small, large = 10.0 ** np.maximum(shift, 0), 10.0 ** np.maximum(-shift, 0)
    return np.rint(numbers / large * small) / small * large


def as_bytes(shares: Any) -> str:
    """Numbers in [0, 1] as bytes 0 … 255, in base64."""
    return base64.b64encode(np.rint(np.asarray(shares) * 255).astype(np.uint8).tobytes()).decode()
