"""One config of a zoo as the columns a page filters, counts and draws, predictions of its accuracies, and the text
that carries them into the page.

Runs are numbered as in the zoo's table of runs, diverged ones included. A hyperparameter is a list of its values and,
for each run, the index of its value in that list. A checkpoint is a row with the number of its run.
"""

import base64
import gzip
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from zoo.checked import checked
from zoo.format.schema import MEASURED, labels_of, usual_label
from zoo.plots import by_epoch
from zoo.reading.reader import ZooReader
from zoo.storage.untrusted import parse_json, read_bounded

_NOT_VARIED = ("run_id", "task", "checkpoint", "epoch")
_EXACT_IN_JAVASCRIPT = 2**53
_MAX_BYTES = 64 << 20  # of a file of predictions
_MOST_POINTS = 2000
"""A page shows at most this many points of a predictor; of more, it shows every second, third, …"""
_QUANTILES = (0.05, 0.5, 0.95)
_DIGITS = 5
"""Significant digits of labels and curves. The label that filters compare keeps all bits."""


def run_columns(reader: ZooReader) -> dict[str, Any]:
    """The facts about each run, apart from its hyperparameters and its curves."""
    runs = reader.runs
    return {
        "id": runs["run_id"].tolist(),
        "status": runs["status"].tolist(),
        "split": reader.details.splits_of(runs.__getitem__),
        "epochs": runs["epochs"].tolist(),
    }


def hyperparameters(reader: ZooReader) -> list[dict[str, Any]]:
    """Every column of the checkpoints that is neither a measurement nor a name, for all runs."""
    coded = []
    for name in reader.metadata.columns.difference([*_NOT_VARIED, *labels_of(reader.spec)], sort=False):
        column = reader.runs[name].to_numpy()
        numeric = bool(np.issubdtype(column.dtype, np.number))
        values, codes = np.unique(column, return_inverse=True)
        # JavaScript reads smaller whole numbers without a change; larger ones become text
        exact = [str(v) if isinstance(v, int) and abs(v) > _EXACT_IN_JAVASCRIPT else v for v in values.tolist()]
        coded.append({"name": name, "numeric": numeric, "values": exact, "codes": codes.tolist()})
    return coded


def checkpoint_columns(reader: ZooReader) -> dict[str, Any]:
    """One row per checkpoint: the number of its run, the index of its label, its epoch and its measurements."""
    rows = reader.metadata
    usual, _ = usual_label(reader.spec)
    found = rows["checkpoint"].unique()
    labels = pd.Index(sorted(found, key=[*reader.details.checkpoints, *found].index))  # in the order of the protocol
    return {
        "labels": labels.tolist(),
        "run": pd.Index(reader.runs["run_id"]).get_indexer(pd.Index(rows["run_id"])).tolist(),
        "label": labels.get_indexer(pd.Index(rows["checkpoint"])).tolist(),
        "epoch": rows["epoch"].tolist(),
        **{name: plain(rows[name], digits=None if name == usual else _DIGITS) for name in labels_of(reader.spec)},
    }


def band(curves_of_runs: pd.Series) -> dict[str, list[float | None]]:
    """The median and the middle nine tenths of the runs' curves in each epoch, over the runs that reached it."""
    padded = by_epoch(curves_of_runs)
    low, middle, high = np.nanquantile(padded, _QUANTILES, axis=1) if len(padded) else np.empty((3, 0))
    return {"low": plain(low), "middle": plain(middle), "high": plain(high)}


def curves(runs: pd.DataFrame) -> list[dict[str, list[float | None]]]:
    """The curves of each run, one value per epoch."""
    return [{name: plain(run[name]) for name in MEASURED} for run in runs[[*MEASURED]].to_dict("records")]


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
    texts = map(str, array) if digits is None else (f"{number:.{digits}g}" for number in array.tolist())
    return [number if math.isfinite(number) else None for number in map(float, texts)]


def as_bytes(shares: Any) -> str:
    """Numbers in [0, 1] as bytes 0 … 255, in base64."""
    return base64.b64encode(np.rint(np.asarray(shares) * 255).astype(np.uint8).tobytes()).decode()


@dataclass(frozen=True)
class Predictions:
    """The accuracies that one predictor predicts for checkpoints of a config, in the order of the measured ones.

    As JSON, ``tau``, ``interval`` and ``reads_weights`` may be left out; text is shown as it is, never read as HTML:

    [{"config": "mnist", "predictor": "Transformer-NFN", "data": "test split of 2,000 runs", "predicted": [0.91, …],
      "measured": [0.93, …], "tau": 0.845, "interval": [0.816, 0.870], "reads_weights": true}, …]

    ``tau`` is Kendall's rank correlation of the two and ``interval`` its 95% interval, over several fits where there
    are more than the one shown; ``data`` describes these checkpoints, which may be of another zoo than the page's.
    """

    config: str
    predictor: str
    data: str
    predicted: list[float]
    measured: list[float]
    tau: float | None = None
    interval: list[float] | None = None
    reads_weights: bool = True

    def __post_init__(self) -> None:
        if self.interval is not None and len(self.interval) != 2:
            raise ValueError(f"{self.predictor!r} has an interval of {len(self.interval)} numbers: it has two")
        if len(self.predicted) != len(self.measured) or not self.predicted:
            counts = f"{len(self.predicted):,} predictions for {len(self.measured):,} measurements"
            raise ValueError(f"{self.predictor!r} has {counts}: one for each is needed")

    def shown(self) -> dict[str, Any]:
        """As a page holds it: at most ``_MOST_POINTS`` points."""
        step = -(-len(self.predicted) // _MOST_POINTS)
        points = {"predicted": plain(self.predicted[::step]), "measured": plain(self.measured[::step])}
        return asdict(self) | points | {"count": len(self.predicted)}


def read_predictions(path: Path) -> list[Predictions]:
    """The predictions in a file of JSON; whatever is wrong with it is a ValueError that names the file."""
    raw = parse_json(read_bounded(path, _MAX_BYTES), str(path))
    return checked(raw, list[Predictions], f"{path} does not hold predictions: ")
