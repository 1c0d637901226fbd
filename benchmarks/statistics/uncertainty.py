"""How uncertain a number is: its error over seeds, its interval over test runs, paired differences, the noise ceiling.

Seeds alone understate the error, since they all share one test set. The interval resamples the runs of the test set,
with all checkpoints of a run together, since these are not independent measurements.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Integer

from benchmarks.statistics.ranking import kendall_tau, resampled_taus

RESAMPLES = 1000
COVERAGE = 0.95
CEILING_DRAWS = 200


@dataclass(frozen=True)
class Interval:
    """The middle 95 % of the values of a bootstrap."""

    low: float
    high: float

    @classmethod
    def of(cls, values: Float[np.ndarray, " b"]) -> "Interval | None":
        """None if too few resamples have a value."""
        defined = values[np.isfinite(values)]
        if len(defined) < len(values) / 2 or len(defined) < 2:
            return None
        low, high = np.quantile(defined, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
        return cls(float(low), float(high))


def standard_error(values: Sequence[float]) -> float | None:
    """s/√n with s² = Σ(x − mean)²/(n − 1); None for fewer than two values."""
    if len(values) < 2:
        return None
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))


def resample_runs(runs: Integer[np.ndarray, " n"], seed: int = 0, resamples: int = RESAMPLES) -> np.ndarray:
    """How often each row is in each resample [b, n]: runs are drawn with replacement, with all their rows."""
    _, numbers = np.unique(runs, return_inverse=True)
    count = int(numbers.max()) + 1
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=resamples)
    return drawn[:, numbers].astype(np.float64)


def bootstrap_taus(
    predictions: Sequence[Float[np.ndarray, " n"]], truth: Float[np.ndarray, " n"], counts: Float[np.ndarray, "b n"]
) -> Float[np.ndarray, " b"]:
    """The mean τ over seeds in every resample; ``predictions`` has one per seed. A constant prediction counts as 0."""
    per_seed = [
        np.zeros(len(counts)) if np.ptp(predicted) == 0 else resampled_taus(predicted, truth, counts)
        for predicted in predictions
    ]
    return np.mean(per_seed, axis=0)


def coefficient_of_determination(predicted: Float[np.ndarray, " n"], truth: Float[np.ndarray, " n"]) -> float:
    """R² = 1 − Σ(y − ŷ)² / Σ(y − mean y)²; NaN if the truth is constant."""
    spread = float(np.square(truth - truth.mean(dtype=np.float64)).sum())
    if spread == 0:
        return math.nan
    return 1 - float(np.square(truth.astype(np.float64) - predicted).sum()) / spread


def noise_ceiling(accuracy: Float[np.ndarray, " n"], test_examples: int, seed: int = 0) -> float | None:
    """The τ of a predictor that knows every true accuracy but not the sampling error of the measured one.

    An accuracy measured on N examples scatters around the true one like a binomial: this is the mean τ between the
    accuracies and N fresh coin flips for each. It is an estimate for two reasons: the measured accuracies stand in for
    the unknown true ones and are slightly more spread out (too high), and runs share their test examples, so that part
    of the scatter cancels in a comparison (too low). None if no draw can be ranked.
    """
    generator = np.random.default_rng(seed)
    clipped = np.clip(accuracy.astype(np.float64), 0, 1)
    draws = generator.binomial(test_examples, clipped, size=(CEILING_DRAWS, len(accuracy))) / test_examples
    taus = [kendall_tau(drawn, accuracy) for drawn in draws]
    defined = [tau for tau in taus if not math.isnan(tau)]
    return float(np.mean(defined)) if defined else None
