"""Numbers of any size and spread brought to mean 0 and deviation 1, as training checkpoints have them."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

SMALLEST = 1e-6  # a number that varies less than this between training checkpoints is constant
FARTHEST = 5.0  # standard deviations; what lies farther out counts as this far


class Standardization(nn.Module):
    """x → (x − mean) / deviation, at most five deviations; x itself, as far, until ``fit``. A constant becomes 0."""

    mean: Float[Tensor, " inputs"]
    inverse_deviation: Float[Tensor, " inputs"]

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("inverse_deviation", torch.ones(inputs))

    @torch.no_grad()
    def fit(self, rows: Float[Tensor, "n inputs"]) -> None:
        if rows.ndim != 2 or len(rows) == 0:
            raise ValueError(f"scales are fitted on a batch [n, d] of checkpoints, got {list(rows.shape[:-1])}")
        deviation, mean = torch.std_mean(rows.double(), dim=0, correction=0)
        self.mean.copy_(mean)
        self.inverse_deviation.copy_(torch.where(deviation > SMALLEST, 1 / deviation, 0.0))

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch inputs"]:
        return ((x - self.mean) * self.inverse_deviation).clamp(-FARTHEST, FARTHEST)
