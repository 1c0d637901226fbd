"""The test rows that a submission is scored on, its score, and the signs that it was made from the test labels.

Within a configuration, runs are ranked at the same checkpoint:

    τ_within = mean over configurations c of (mean over checkpoints k of τ_b(predictions of c at k, accuracies))
"""

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Integer

from benchmarks import statistics
from benchmarks.data import Checkpoints, chosen_checkpoint, count_test_examples
from benchmarks.paper import THRESHOLDS
from zoo.reading.reader import open_zoo

Score = dict[str, Any]
_TOO_NEAR = 1 / 6
_MOST_EQUAL = 0.5
_FEWEST_ROWS = 8
"""With fewer rows, chance alone may put all of them in the right order."""


@dataclass(frozen=True)
class HeldOutRows:
    """The test split of a config at one checkpoint, or at ``all``; without a choice at the usual one.

    A key is a run and a checkpoint. ``sha256`` is of the rows alone (run ids, checkpoints, accuracies, weights),
    however they are divided into files: adding runs to a zoo changes it only where some of them are in the test split.
    ``units`` are what a bootstrap draws: the run of each row, or the number of its configuration where the zoo has
    several runs of each. ``configurations`` is None elsewhere.
    """

    config: str
    checkpoint: str
    keys: tuple[tuple[str, str], ...]
    truth: Float[np.ndarray, " n"]
    units: np.ndarray
    configurations: Integer[np.ndarray, " n"] | None
    test_examples: int
    sha256: str

    @classmethod
    def read(cls, zoo: str | Path, config: str | None, checkpoint: str | None) -> "HeldOutRows":
        reader = open_zoo(zoo, config, "test")
        checkpoint = chosen_checkpoint(reader.details, reader.config, checkpoint)
        rows = Checkpoints.read(reader, checkpoint, torch.device("cpu"))
        labels = rows.metadata["checkpoint"].to_numpy(dtype=str)
        repeats = reader.details.repeats is not None
        return cls(
            config=reader.config,
            checkpoint=checkpoint,
            keys=tuple(zip(rows.runs.tolist(), labels.tolist(), strict=True)),
            truth=rows.truth(),
            units=rows.units(repeats=repeats),
            configurations=rows.configurations() if repeats else None,
            test_examples=count_test_examples(reader.details),
            sha256=hashlib.sha256("\n".join([rows.digest(), *labels]).encode()).hexdigest(),
        )

    @cached_property
    def ceiling(self) -> float | None:
        """The noise ceiling, which many submissions are compared with."""
        return statistics.noise_ceiling(self.truth, self.test_examples)

    @property
    def title(self) -> str:
        return f"{self.config}, {'all checkpoints' if self.checkpoint == 'all' else self.checkpoint}"


def score(predicted: Float[np.ndarray, " n"], rows: HeldOutRows) -> Score:
    """The score of predictions of these rows, in their order, as it is stored: R² and each τ rounded to six digits.

    A τ has the ``count`` of its rows (or configurations), its ``value`` and the interval from ``low`` to ``high``, None
    where it is not defined. ``thresholds`` has τ of the rows of at least each accuracy: first 0, all rows. ``error`` is
    the median error in sampling errors.
    """
    return {
        "error": _rounded(float(np.median(_errors(predicted, rows)))),
        "r2": _rounded(statistics.coefficient_of_determination(predicted, rows.truth)),
        "thresholds": [{"threshold": at} | _tau_from(predicted, rows, at) for at in THRESHOLDS],
        "within": _tau_within(predicted, rows),
    }


def _tau_from(predicted: Float[np.ndarray, " n"], rows: HeldOutRows, threshold: float) -> Score:
    """τ of the rows whose accuracy reaches the threshold; a constant prediction ranks nothing and counts as 0."""
    chosen = np.flatnonzero(rows.truth >= np.float32(threshold))
    return _tau(len(chosen), *statistics.tau_with_interval(predicted[chosen], rows.truth[chosen], rows.units[chosen]))


def _tau_within(predicted: Float[np.ndarray, " n"], rows: HeldOutRows) -> Score | None:
    """τ within configurations; None where the zoo has no repeats, or no configuration that can be ranked."""
    if rows.configurations is None:
        return None
    labels = np.unique([checkpoint for _, checkpoint in rows.keys], return_inverse=True)[1].astype(np.int32)
    members = [np.flatnonzero(rows.configurations == number) for number in np.unique(rows.configurations)]
    taus = [statistics.taus_within(predicted[chosen], rows.truth[chosen], labels[chosen]) for chosen in members]
    means = np.array([each.mean() for each in taus if len(each)])
    if not len(means):
        return None
    return _tau(len(means), float(means.mean()), statistics.interval_of(statistics.resampled_means(means)))


def _tau(count: int, value: float, interval: tuple[float, float] | None) -> Score:
    low, high = interval or (math.nan, math.nan)
    return {"count": count, "value": _rounded(value), "low": _rounded(low), "high": _rounded(high)}


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 6)


def _errors(predicted: Float[np.ndarray, " n"], rows: HeldOutRows) -> Float[np.ndarray, " n"]:
    """How far each prediction is from the accuracy p measured on N examples, in sampling errors: √(p(1−p)/N).

    At least 3/N, so that a sixth of it is half a test example.
    """
    truth, examples = np.clip(rows.truth.astype(np.float64), 0, 1), rows.test_examples
    return np.abs(predicted - truth) / np.maximum(np.sqrt(truth * (1 - truth) / examples), 3 / examples)


def leaked_labels(predicted: Float[np.ndarray, " n"], rows: HeldOutRows) -> str | None:
    """Why these predictions look like the test labels, in one line; None where they do not.

    A test accuracy is measured on some thousand examples, so a predictor with perfect knowledge of a transformer would
    still miss the measured number by its sampling error, and would reach only the τ of the noise ceiling. Two signs
    that the labels themselves were read: most predictions agree with the accuracies to within a sixth of the sampling
    error (with few rows, half a test example); τ is nearer to 1 than to the noise ceiling (labels behind some monotone
    map).

    Labels with more noise than that cannot be told from good predictions: all transformers are measured on the same
    examples, so a part of the sampling error is common to training and test labels, and can be learned.
    """
    few = len(predicted) < _FEWEST_ROWS
    half = np.abs(predicted - rows.truth) <= 0.5 / rows.test_examples
    near = half if few else _errors(predicted, rows) <= _TOO_NEAR
    if near.mean() > _MOST_EQUAL:
        within = "half a test example" if few else "a sixth of their sampling error"
        return f"{near.mean():.0%} of the predictions are the measured test accuracies, to within {within}"
    if few:
        return None
    tau, ceiling = statistics.kendall_tau(predicted, rows.truth), rows.ceiling
    if ceiling is not None and tau > (1 + ceiling) / 2:
        return (
            f"τ is {tau:.4f}, where a predictor of each true accuracy would have about {ceiling:.4f}: "
            "the order is that of the test labels"
        )
    return None
