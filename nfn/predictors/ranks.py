"""An accuracy's rank among the training accuracies, from 0 to 1, as the target of a predictor.

Most runs of a zoo end within a few percent of each other. The binary cross entropy of accuracies is dominated by the
few that failed; that of ranks treats the whole order alike. A predicted rank becomes an accuracy again through the
inverse of the training accuracies' distribution.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

_STEPS = 256


@dataclass(frozen=True)
class Ranks:
    """The ranks of the training accuracies, from 0 (lowest) to 1 (highest); equal accuracies share their mean rank."""

    accuracy: Float[np.ndarray, " u"]
    rank: Float[np.ndarray, " u"]

    @classmethod
    def among(cls, accuracy: Float[np.ndarray, " n"]) -> "Ranks":
        values, counts = np.unique(accuracy, return_counts=True)
        first = np.cumsum(counts) - counts
        return cls(values, (first + (counts - 1) / 2) / max(1, len(accuracy) - 1))

    def of(self, accuracy: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        return np.interp(accuracy, self.accuracy, self.rank)

    def accuracy_at(self, rank: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        return np.interp(rank, self.rank, self.accuracy)


class RankTable(nn.Module):
    """Rank → accuracy as a predictor stores it, at 257 ranks and linear between them; the rank itself until ``fit``.

    ``accuracies[i]`` is the training accuracy at rank i/256.
    """

    accuracies: Float[Tensor, " steps"]

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("accuracies", torch.linspace(0, 1, _STEPS + 1))

    @classmethod
    def of(cls, ranks: Ranks) -> "RankTable":
        """In float64: where accuracies are dense, ranks that differ would become the same float32 accuracy."""
        table = cls().double()
        table.fit(ranks)
        return table

    def fit(self, ranks: Ranks, direction: int = 1) -> None:
        """Stores the inverse of the training accuracies' distribution. Losses are ranked by −loss: direction is −1."""
        accuracies = direction * ranks.accuracy_at(np.linspace(0, 1, _STEPS + 1))
        self.accuracies.copy_(torch.from_numpy(np.asarray(accuracies, dtype=np.float64)))

    def forward(self, ranks: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """The accuracies at ranks in [0, 1]; NaN stays NaN."""
        position = ranks * _STEPS
        below = position.detach().nan_to_num(nan=0.0).floor().clamp(0, _STEPS - 1).long()
        return torch.lerp(self.accuracies[below], self.accuracies[below + 1], position - below)
