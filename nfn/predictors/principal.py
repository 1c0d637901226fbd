"""Features standardized, weighed by group, and reduced to the principal components of training checkpoints."""

from collections.abc import Sequence
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nfn.predictors.standardization import Standardization

SMALLEST = 1e-6
BALANCE = 0.4  # a group of n features weighs n^0.2 times one feature, not √n times


class PrincipalComponents(nn.Module):
    """Standardized features times V, with as many components as asked for; V are random directions until ``fit``.

    Without weights a large group of features, such as all products of inputs, would outweigh the small ones.
    Components keep their relative sizes, so that the weakest, which are mostly noise, are read the least; together they
    have mean square 1.
    """

    directions: Float[Tensor, "features components"]
    offset: Float[Tensor, " components"]

    def __init__(self, group_sizes: Sequence[int], components: int, generator: torch.Generator) -> None:
        super().__init__()
        self.group_sizes = tuple(group_sizes)
        count = sum(group_sizes)
        directions = torch.empty(count, components).normal_(std=1 / sqrt(count), generator=generator)
        self.scale = Standardization(count)
        self.register_buffer("directions", directions)
        self.register_buffer("offset", torch.zeros(components))

    def forward(self, features: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch components"]:
        return self.scale(features) @ self.directions - self.offset

    def fit(self, features: Float[Tensor, "n features"]) -> None:
        """Fits everything to the features of training checkpoints. With fewer of these the last components are 0."""
        self.scale.fit(features)
        weights = torch.cat([torch.full((size,), size**-BALANCE) for size in self.group_sizes]).to(self.directions)
        weighted = (self.scale(features) * weights).double()
        middle = weighted.mean(0)
        directions = principal_directions(weighted - middle, self.directions.shape[1])
        size = ((weighted - middle) @ directions).square().mean().sqrt().clamp_min(SMALLEST)
        self.directions.copy_(weights[:, None] * directions / size)
        self.offset.copy_(middle @ directions / size)


def principal_directions(rows: Float[Tensor, "n features"], count: int) -> Float[Tensor, "features count"]:
    """The right singular vectors of the ``count`` largest singular values, 0 beyond the rank, each with a fixed sign.

    From the smaller Gram matrix.
    """
    few = len(rows) <= rows.shape[1]
    values, vectors = torch.linalg.eigh(rows @ rows.mT if few else rows.mT @ rows)
    values, vectors = values.flip(0)[:count], vectors.flip(1)[:, :count]
    real = values > 1e-12 * values[:1].clamp_min(1e-30)
    directions = rows.mT @ vectors if few else vectors
    directions = torch.where(real, directions / directions.norm(dim=0).clamp_min(1e-30), 0.0)
    sign = directions.gather(0, directions.abs().argmax(0, keepdim=True)).sign()
    signed = directions * torch.where(sign == 0, 1.0, sign)
    return nn.functional.pad(signed, (0, count - signed.shape[1]))
