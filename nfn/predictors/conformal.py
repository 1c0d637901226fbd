"""Intervals around predicted accuracies, by conformal prediction with bins of predicted values.

Rows that the predictor was not fitted on are sorted by their prediction into bins of equal counts. The half-width of a
bin with n rows is the k-th smallest of its errors |accuracy − prediction|, k = ⌈(n + 1)·level⌉, at most n:

    [prediction − q_b, prediction + q_b] ∩ [0, 1]     for accuracies; losses have no upper end, gaps none at all

A new row that is exchangeable with these rows is inside with a probability of about ``level``. Checkpoints of one run
are alike, so few runs give a coarse interval however many checkpoints they have.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

LEVEL = 0.9
_ROWS_PER_BIN, MOST_BINS = 25, 8


@dataclass(frozen=True)
class ConformalInterval:
    """Half-widths by predicted value; bin b reaches from edge b − 1 to edge b. No end is below ``least`` or above
    ``most``."""

    edges: Float[Tensor, " edges"]
    half_widths: Float[Tensor, " bins"]
    least: float = 0.0
    most: float = 1.0

    def __post_init__(self) -> None:
        # Written so that NaN fails.
        if not bool((self.half_widths >= 0).all()):
            raise ValueError(f"half-widths of an interval are at least 0, got {self.half_widths.tolist()}")

    @classmethod
    def fit(cls, predicted: Float[Tensor, " n"], accuracy: Float[Tensor, " n"]) -> "ConformalInterval":
        if len(predicted) == 0:
            raise ValueError("an interval is fitted to rows beside the training rows: there are none")
        bins = min(MOST_BINS, max(1, len(predicted) // _ROWS_PER_BIN))
        rows_of_bins = predicted.argsort().tensor_split(bins)
        edges = [(predicted[below[-1]] + predicted[above[0]]) / 2 for below, above in pairwise(rows_of_bins)]
        errors = (accuracy - predicted).abs()
        ranks = [min(len(rows), math.ceil((len(rows) + 1) * LEVEL)) for rows in rows_of_bins]
        widths = [errors[rows].sort().values[rank - 1] for rows, rank in zip(rows_of_bins, ranks, strict=True)]
        return cls(torch.stack(edges) if edges else predicted.new_empty(0), torch.stack(widths))

    def __call__(self, predicted: Float[Tensor, "*batch"]) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
        """The lower and upper end for each prediction."""
        edges, half_widths = self.edges.to(predicted), self.half_widths.to(predicted)
        half_width = half_widths[torch.bucketize(predicted, edges)]
        low, high = ((predicted + way * half_width).clamp(self.least, self.most) for way in (-1, 1))
        return low, high
