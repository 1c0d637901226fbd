"""Kendall's τ-b, the measure of every table: for one pair of rankings, for many at once, and for resamples of rows.

    τ_b = Σ_{i<j} s_ij / √(Σ_{i<j} |x_ij| · Σ_{i<j} |y_ij|)     x_ij = sign(x_i − x_j),  y_ij = sign(y_i − y_j),
                                                                s_ij = x_ij·y_ij

``kendall_tau`` is scipy's, the reference. The other two follow the formula, with n² signs: slower for one ranking of
thousands of rows, and far faster for the many rankings of an epoch or the thousand resamples of a bootstrap.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

SIGNS_AT_ONCE = 2**21  # 16 MB


def kendall_tau(predicted: Float[np.ndarray, " n"], truth: Float[np.ndarray, " n"]) -> float:
    """τ-b of one prediction; NaN if either side is constant or there are fewer than two rows."""
    from scipy.stats import kendalltau

    if len(truth) < 2 or np.ptp(predicted) == 0 or np.ptp(truth) == 0:
        return math.nan
    result: Any = kendalltau(predicted, truth)
    return float(result.statistic)


def many_kendall_taus(predicted: Float[Tensor, "m n"], truth: Float[Tensor, " n"]) -> Float[Tensor, " m"]:
    """τ-b of m predictions of the same rows, on the device they are on; NaN where it is undefined."""
    y = torch.sign(truth[:, None] - truth[None, :])
    untied = y.abs().sum(dtype=torch.float64)
    taus = []
    for row in predicted:
        x = torch.sign(row[:, None] - row[None, :])
        taus.append((x * y).sum(dtype=torch.float64) / (x.abs().sum(dtype=torch.float64) * untied).sqrt())
    return torch.stack(taus)


def resampled_taus(
    predicted: Float[np.ndarray, " n"], truth: Float[np.ndarray, " n"], counts: Float[np.ndarray, "b n"]
) -> Float[np.ndarray, " b"]:
    """τ-b of b resamples of the rows; ``counts[k, i]`` is how often row i is in resample k.

    Copies of one row are tied with each other on both sides, so with c the counts Σ_{i<j} s_ij = ½·cᵀSc, and likewise
    for the ties: matrix products for all resamples instead of b rankings. NaN where τ of a resample is undefined.
    """
    agreeing = quadratic_form(lambda columns: signs(predicted, columns) * signs(truth, columns), counts)
    with np.errstate(invalid="ignore", divide="ignore"):
        return agreeing / np.sqrt(untied_pairs(predicted, counts) * untied_pairs(truth, counts))


def untied_pairs(values: Float[np.ndarray, " n"], counts: Float[np.ndarray, "b n"]) -> Float[np.ndarray, " b"]:
    """cᵀ|S|c: ordered pairs of different values in each resample. Without ties, all but those of a row with itself."""
    if len(np.unique(values)) == len(values):
        return counts.sum(1) ** 2 - (counts**2).sum(1)
    return quadratic_form(lambda columns: np.abs(signs(values, columns)), counts)


def quadratic_form(matrix: Callable[[slice], np.ndarray], counts: Float[np.ndarray, "b n"]) -> Float[np.ndarray, " b"]:
    """cᵀSc = Σ_j c_j·(cᵀS)_j of each resample, with so few columns of S at a time that memory does not grow as n².

    Signs and counts are whole numbers, so every partial sum is exact, however the columns are grouped.
    """
    rows, total = counts.shape[1], np.zeros(len(counts))
    width = max(1, SIGNS_AT_ONCE // max(1, rows))
    for start in range(0, rows, width):
        columns = slice(start, start + width)
        total += np.einsum("bj,bj->b", counts @ matrix(columns), counts[:, columns])
    return total


def signs(values: Float[np.ndarray, " n"], columns: slice) -> Float[np.ndarray, "n k"]:
    """sign(x_i − x_j) for all rows i and some j."""
    return np.sign(values[:, None] - values[None, columns]).astype(np.float64)
