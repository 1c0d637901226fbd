"""A file of predictions: CSV, one line for each test row, sorted, so that a diff shows which predictions changed.

run_id,checkpoint,predicted
0b7c3f1d5e9a2468,epoch_50,0.9182
"""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from zoo.storage.untrusted import read_bounded

HEADER = "run_id,checkpoint,predicted"
MAX_BYTES = 16 << 20
"""The test rows of the paper's whole grid, 2,400 runs at four checkpoints, take half a megabyte."""
LINE = re.compile(r"([0-9a-f]{16}),([a-z0-9_]{1,48}),([^,\s]{1,40})", re.ASCII)
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
LEAST, MOST = -0.5, 1.5
"""A prediction is an accuracy; that of a linear model may lie a little outside 0 and 1."""
Key = tuple[str, str]
"""A test row: its run and its checkpoint."""


def read_predictions(path: Path) -> dict[Key, float]:
    """The predictions of a file by row; whatever is wrong with a line is a ValueError that names it."""
    if path.is_symlink() or not path.is_file():
        raise ValueError(f"{path} is missing, or is not a file, though the card names it")
    try:
        lines = read_bounded(path, MAX_BYTES).decode("ascii").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a CSV file of run ids and numbers: {error}") from error
    if not lines or lines[0] != HEADER:
        raise ValueError(f"{path}, line 1: must be {HEADER}")
    predictions: dict[Key, float] = {}
    for number, line in enumerate(lines[1:], start=2):
        where = f"{path}, line {number}"
        if not (parts := LINE.fullmatch(line)):
            raise ValueError(f"{where}: must be a run id, a checkpoint and a number with commas between, got {line!r}")
        run, checkpoint, text = parts.groups()
        if (run, checkpoint) in predictions:
            raise ValueError(f"{where}: {checkpoint} of run {run} is there twice")
        predictions[run, checkpoint] = prediction(text, where)
    return predictions


def prediction(text: str, where: str) -> float:
    """The number in a line."""
    if not NUMBER.fullmatch(text):
        raise ValueError(f"{where}: a prediction must be a finite number, got {text!r}")
    value = float(text)
    if not LEAST <= value <= MOST:
        raise ValueError(
            f"{where}: a prediction is an accuracy, a share from 0 to 1; {LEAST:g} to {MOST:g} is read, got {text}"
        )
    return value


def in_order(predictions: dict[Key, float], keys: Sequence[Key], where: str) -> Float[np.ndarray, " n"]:
    """The predictions of these test rows, in their order; every row must be there and no other."""
    if foreign := sorted(predictions.keys() - set(keys)):
        run, checkpoint = foreign[0]
        raise ValueError(f"{where}: {checkpoint} of run {run} is no test row, as are {len(foreign):,} in all")
    if missing := sorted(set(keys) - predictions.keys()):
        run, checkpoint = missing[0]
        raise ValueError(
            f"{where}: {checkpoint} of run {run} is missing, as are {len(missing):,} of {len(keys):,} test rows"
        )
    return np.array([predictions[key] for key in keys], dtype=np.float64)


def predictions_text(keys: Sequence[Key], predicted: Float[np.ndarray, " n"]) -> str:
    """The file: nine digits give back every float32."""
    rows = sorted(zip(keys, predicted.tolist(), strict=True))
    return "\n".join([HEADER, *(f"{run},{checkpoint},{value:.9g}" for (run, checkpoint), value in rows)]) + "\n"
