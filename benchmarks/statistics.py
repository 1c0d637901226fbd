"""Kendall's τ-b, the measure of every table, and how uncertain it is.

    τ_b = Σ_{i<j} s_ij / √(Σ_{i<j} |x_ij| · Σ_{i<j} |y_ij|)     x_ij = sign(x_i − x_j),  y_ij = sign(y_i − y_j),
                                                                s_ij = x_ij·y_ij

In a cross-validation both sums go over the pairs of runs in the same fold, which one fit has predicted.
``kendall_tau`` is scipy's, the reference. The other two follow the formula, with n² signs: slower for one ranking of
thousands of rows, and far faster for the many rankings of an epoch or the thousand resamples of a bootstrap, which
draws runs with all their checkpoints.

Within a configuration τ shows whether a model tells apart runs that differ in nothing but their seed; configurations
count that have two runs or more, unless their accuracies are all the same:

    τ_within = mean over configurations c of τ_b(predictions of the runs of c, their accuracies)
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Integer
from torch import Tensor

_SIGNS_AT_ONCE = 2**20  # 8 MB
_RESAMPLES = 1000
_COVERAGE = 0.95
_CEILING_DRAWS = 200
_Values = Float[np.ndarray, " n"]
_Numbers = Integer[np.ndarray, " n"]
_Folds = _Numbers | None
_Units = np.ndarray | None
_Counts = Float[np.ndarray, "b n"]
"""How often each row is in each resample."""
_Resampled = Float[np.ndarray, " b"]
"""One number for each resample."""


def kendall_tau(predicted: _Values, truth: _Values, folds: _Folds = None) -> float:
    """τ-b of one prediction, over the pairs within a fold where there are folds; NaN if either side is constant."""
    from scipy.stats import kendalltau

    if is_constant(predicted, folds) or is_constant(truth, folds):
        return math.nan
    if folds is not None:
        return float(_resampled_taus(predicted, truth, np.ones((1, len(truth))), folds)[0])
    result: Any = kendalltau(predicted, truth)
    return float(result.statistic)


def is_constant(values: _Values, folds: _Folds = None) -> bool:
    """Whether no two values, or no two of the same fold, differ: there is nothing to rank."""
    return all(len(values[part]) == 0 or np.ptp(values[part]) == 0 for part in _parts(folds))


def _parts(folds: _Folds) -> list[Any]:
    """The rows whose pairs count: those of each fold, or all."""
    return [slice(None)] if folds is None else [np.flatnonzero(folds == fold) for fold in np.unique(folds)]


def tau_or_zero(predicted: _Values, truth: _Values, folds: _Folds = None) -> float:
    """The same, but a constant prediction ranks nothing and counts as 0."""
    return float(np.nan_to_num(kendall_tau(predicted, truth, folds)))


def many_kendall_taus(predicted: Float[Tensor, "m n"], truth: Float[Tensor, " n"]) -> Float[Tensor, " m"]:
    """τ-b of m predictions of the same rows, on the device they are on; NaN where it is undefined."""
    y = torch.sign(truth[:, None] - truth[None, :])
    untied = y.abs().sum(dtype=torch.float64)
    taus = []
    for row in predicted:
        x = torch.sign(row[:, None] - row[None, :])
        taus.append((x * y).sum(dtype=torch.float64) / (x.abs().sum(dtype=torch.float64) * untied).sqrt())
    return torch.stack(taus)


def _resampled_taus(
    predicted: _Values, truth: _Values, counts: _Counts, folds: _Folds = None, units: _Units = None
) -> _Resampled:
    """τ-b of b resamples of the rows; ``counts[k, i]`` is how often row i is in resample k.

    Copies of one row are tied with each other on both sides, so with c the counts Σ_{i<j} s_ij = ½·cᵀSc: a matrix
    product for all resamples instead of b rankings, with so few columns of S at a time that memory does not grow as n².
    Signs and counts are whole numbers, so every partial sum is exact. Rows of one of the ``units`` are drawn together,
    and its copies are not compared: their pairs count c times instead of c². NaN where τ of a resample is undefined.
    """
    sums = np.zeros((3, len(counts)))  # of agreeing pairs, of those untied in the prediction, and in the truth
    units = np.arange(len(truth)) if units is None else np.unique(units, return_inverse=True)[1]
    for part in _parts(folds):
        x, y, unit, drawn = predicted[part], truth[part], units[part], counts[:, part]
        width = max(1, _SIGNS_AT_ONCE // max(1, len(x)))
        for columns in (slice(start, start + width) for start in range(0, len(x), width)):
            of_x, of_y = (np.sign(side[:, None] - side[columns]) for side in (x, y))
            together = unit[:, None] == unit[columns]
            for total, signs in zip(sums, (of_x * of_y, np.abs(of_x), np.abs(of_y)), strict=True):
                apart = np.einsum("bj,bj->b", drawn @ np.where(together, 0.0, signs), drawn[:, columns])
                total += apart + drawn[:, columns] @ np.where(together, signs, 0.0).sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return sums[0] / np.sqrt(sums[1] * sums[2])


def interval_of(values: _Resampled) -> tuple[float, float] | None:
    """The middle 95 % of the values of a bootstrap; None if too few resamples have a value."""
    defined = values[np.isfinite(values)]
    if len(defined) < len(values) / 2 or len(defined) < 2:
        return None
    low, high = np.quantile(defined, [(1 - _COVERAGE) / 2, (1 + _COVERAGE) / 2])
    return float(low), float(high)


def standard_error(values: Sequence[float]) -> float | None:
    """s/√n with s² = Σ(x − mean)²/(n − 1); None for fewer than two values."""
    if len(values) < 2:
        return None
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))


def resample_runs(runs: _Numbers, resamples: int = _RESAMPLES) -> np.ndarray:
    """How often each row is in each resample [b, n]: runs are drawn with replacement, with all their rows."""
    different, numbers = np.unique(runs, return_inverse=True)
    shares = np.full(len(different), 1 / len(different))
    drawn = np.random.default_rng(0).multinomial(len(different), shares, size=resamples)
    return np.take(drawn, numbers, axis=1).astype(np.float64)


def bootstrap_taus(
    predictions: Sequence[_Values], truth: _Values, counts: _Counts, folds: _Folds = None, units: _Units = None
) -> _Resampled:
    """The mean τ over seeds in every resample; ``predictions`` has one per seed. A constant prediction counts as 0."""
    nothing, others = np.zeros(len(counts)), (truth, counts, folds, units)
    per_seed = [nothing if is_constant(each, folds) else _resampled_taus(each, *others) for each in predictions]
    return np.mean(per_seed, axis=0)


def tau_with_interval(predicted: _Values, truth: _Values, units: _Numbers) -> tuple[float, tuple[float, float] | None]:
    """τ of one prediction, and its interval over units: runs or configurations.

    A constant prediction ranks nothing and counts as 0. τ is NaN where there is nothing to rank. One unit alone has no
    interval: its resamples are all the same.
    """
    if is_constant(truth):
        return math.nan, None
    tau = tau_or_zero(predicted, truth)
    if len(np.unique(units)) < 2:
        return tau, None
    return tau, interval_of(bootstrap_taus([predicted], truth, resample_runs(units), units=units))


def coefficient_of_determination(predicted: _Values, truth: _Values) -> float:
    """R² = 1 − Σ(y − ŷ)² / Σ(y − mean y)²; NaN if the truth is constant."""
    spread = float(np.square(truth - truth.mean(dtype=np.float64)).sum())
    if spread == 0:
        return math.nan
    return 1 - float(np.square(truth.astype(np.float64) - predicted).sum()) / spread


def noise_ceiling(accuracy: _Values, test_examples: int, folds: _Folds = None) -> float | None:
    """The τ of a perfect predictor of true accuracies, which cannot predict the sampling error of measured ones.

    An accuracy measured on N examples scatters around the true one like a binomial: this is the mean τ between the
    accuracies and N fresh coin flips for each. It is an estimate for two reasons: the measured accuracies stand in for
    the unknown true ones and are slightly more spread out (too high), and runs share their test examples, so that part
    of the scatter cancels in a comparison (too low). None if no draw can be ranked.
    """
    clipped = np.clip(accuracy.astype(np.float64), 0, 1)
    draws = np.random.default_rng(0).binomial(test_examples, clipped, size=(_CEILING_DRAWS, len(accuracy)))
    taus = [kendall_tau(drawn / test_examples, accuracy, folds) for drawn in draws]
    defined = [tau for tau in taus if not math.isnan(tau)]
    return float(np.mean(defined)) if defined else None


def taus_within(predicted: _Values, truth: _Values, configurations: _Numbers) -> Float[np.ndarray, " m"]:
    """τ-b of each configuration that can be ranked, in the order of their numbers."""
    taus = [tau_or_zero(predicted[rows], truth[rows]) for rows in _rankable(truth, configurations)]
    return np.array(taus, dtype=np.float64)


def noise_ceiling_within(truth: _Values, configurations: _Numbers, test_examples: int) -> float | None:
    """The mean noise ceiling of the configurations that can be ranked; None where there are none.

    Too high where runs of a configuration differ by little more than the sampling error, since the measured accuracies
    stand in for the true ones. Simulated for 16 runs measured on 10,000 examples: 0.58 instead of 0.43 where the true
    accuracies have a standard deviation of 0.002, 0.72 instead of 0.66 at 0.005, 0.850 instead of 0.844 at 0.01.
    """
    ceilings = [noise_ceiling(truth[rows], test_examples) for rows in _rankable(truth, configurations)]
    known = [ceiling for ceiling in ceilings if ceiling is not None]
    return float(np.mean(known)) if known else None


def _rankable(truth: _Values, configurations: _Numbers) -> list[Any]:
    """The rows of each configuration whose accuracies are not all the same."""
    return [rows for rows in _parts(configurations) if not is_constant(truth[rows])]


def resampled_means(values: _Values, units: _Numbers | None = None, resamples: int = _RESAMPLES) -> _Resampled:
    """The mean of each resample: as many values, drawn with replacement, or as many units with all their values."""
    counts = resample_runs(np.arange(len(values)) if units is None else units, resamples)
    return counts @ values / counts.sum(1)
