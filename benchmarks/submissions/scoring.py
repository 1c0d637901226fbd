"""The score of a submission: Kendall's τ with its interval, at each threshold, and within configurations.

The statistics are those of the tables (``benchmarks.statistics``). The interval is a bootstrap over test runs, or over
configurations where each was trained several times. Within a configuration, runs are ranked at the same checkpoint, and
the mean over its checkpoints is one value of the mean over configurations:

    τ_within = mean over configurations c of (mean over checkpoints k of τ_b(predictions of c at k, accuracies))
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from benchmarks.statistics import (
    Interval,
    bootstrap_taus,
    coefficient_of_determination,
    kendall_tau,
    resample_runs,
    resampled_means,
    taus_within,
)
from benchmarks.submissions.held_out import HeldOutRows
from benchmarks.tables.paper import THRESHOLDS


@dataclass(frozen=True)
class Tau:
    """τ over ``count`` rows (or configurations) with the interval of its bootstrap, None where it is not defined."""

    count: int
    value: float | None
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, count: int, value: float, resamples: Float[np.ndarray, " b"]) -> "Tau":
        interval = Interval.of(resamples)
        return cls(count, value, *((interval.low, interval.high) if interval else (None, None)))

    def text(self) -> str:
        if self.value is None:
            return "–"
        return f"{self.value:.3f}" + ("" if self.low is None else f" [{self.low:.3f}, {self.high:.3f}]")


@dataclass(frozen=True)
class Score:
    """What a set of predictions is worth; ``thresholds`` has the rows of at least each accuracy, 0 for all of them."""

    thresholds: dict[float, Tau]
    within: Tau | None
    r2: float | None

    @property
    def tau(self) -> Tau:
        return self.thresholds[0.0]


def score(predicted: Float[np.ndarray, " n"], rows: HeldOutRows) -> Score:
    """The score of predictions of these rows, in their order."""
    r2 = coefficient_of_determination(predicted, rows.truth)
    return Score(
        thresholds={threshold: tau_from(predicted, rows, threshold) for threshold in THRESHOLDS},
        within=within(predicted, rows),
        r2=None if math.isnan(r2) else r2,
    )


def tau_from(predicted: Float[np.ndarray, " n"], rows: HeldOutRows, threshold: float) -> Tau:
    """τ of the rows whose accuracy reaches the threshold; a constant prediction ranks nothing and counts as 0."""
    chosen = np.flatnonzero(rows.truth >= np.float32(threshold))
    part, truth = predicted[chosen], rows.truth[chosen]
    if len(chosen) < 2 or np.ptp(truth) == 0:
        return Tau(len(chosen), None)
    units = rows.runs if rows.configurations is None else rows.configurations
    tau = kendall_tau(part, truth)
    resamples = bootstrap_taus([part], truth, resample_runs(units[chosen]))
    return Tau.of(len(chosen), 0.0 if math.isnan(tau) else tau, resamples)


def within(predicted: Float[np.ndarray, " n"], rows: HeldOutRows) -> Tau | None:
    """τ within configurations; None where the zoo has no repeats, or no configuration that can be ranked."""
    if rows.configurations is None:
        return None
    labels = np.unique([checkpoint for _, checkpoint in rows.keys], return_inverse=True)[1]
    means = []
    for number in np.unique(rows.configurations):
        chosen = np.flatnonzero(rows.configurations == number)
        taus = taus_within(predicted[chosen], rows.truth[chosen], labels[chosen].astype(np.int32))
        if len(taus):
            means.append(float(taus.mean()))
    if not means:
        return None
    values = np.array(means)
    return Tau.of(len(means), float(values.mean()), resampled_means(values))
