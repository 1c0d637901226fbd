"""Brings the inputs of predictors to unit size, fitted to training checkpoints.

``WeightScale`` scales weights without touching their symmetry, ``Standardization`` any features one by one, and
``PrincipalComponents`` reduces features to fewer numbers as well.
"""

from collections.abc import Sequence
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor, nn

from zoo import TransformerSpec, TransformerWeights

_ZERO = 1e-12  # a tensor of smaller weights counts as all zero (biases start at zero) and is left as it is
_CONSTANT = 1e-6  # a feature that varies less than this between training checkpoints is constant
_FARTHEST = 5.0  # standard deviations; what lies farther out counts as this far
_BALANCE = 0.4  # a group of n features weighs n^0.2 times one feature, not √n times


class WeightScale(nn.Module):
    """weights → weights / scale, one positive scale per tensor; 1 until ``fit``.

    Multiplication by a number commutes with the group's action, so what is invariant stays invariant. The scales come
    from group-invariant quantities alone: Q and K are measured by the size of Σ_s W^(Q,s)·(W^(K,s))ᵀ, V and O by that
    of Σ_s W^(V,s)·W^(O,s), so that moving the training checkpoints by group elements does not change the fit.
    """

    factor: Float[Tensor, " d"]

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.spec = spec
        self.register_buffer("factor", torch.ones(spec.num_parameters))

    def forward(self, weights: TransformerWeights) -> TransformerWeights:
        return TransformerWeights.from_flat(self.spec, weights.flat() * self.factor, check_finite=False)

    @torch.no_grad()
    def fit(self, weights: TransformerWeights) -> None:
        """Sets the scales to the median over training checkpoints [n, d] of each tensor's root mean square."""
        if len(weights.batch_shape) != 1 or weights.batch_shape[0] == 0:
            raise ValueError(f"scales are fitted on a batch [n, d] of checkpoints, got {list(weights.flat().shape)}")
        for slot in self.spec.tensors.values():
            size = float(_root_mean_square(weights.flat()[:, slot.slice]).median())
            self.factor[slot.slice] = 1 / size if size > _ZERO else 1.0
        for number, block in enumerate(weights.blocks):
            for names, products, inner in (
                (("query", "key"), block.query @ block.key.mT, self.spec.key_dim),
                (("value", "output"), block.value @ block.output, self.spec.value_dim),
            ):
                # A product of two matrices of unit-variance entries has entries of variance h·inner.
                size = float(_root_mean_square(products.sum(-3).flatten(1)).median()) / sqrt(self.spec.heads * inner)
                for name in names:
                    slot = self.spec.tensors[f"blocks.{number}.{name}.weight"]
                    self.factor[slot.slice] = 1 / sqrt(size) if size > _ZERO else 1.0


def _root_mean_square(x: Float[Tensor, "n m"]) -> Float[Tensor, " n"]:
    return x.square().mean(-1).sqrt()


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
        self.inverse_deviation.copy_(torch.where(deviation > _CONSTANT, 1 / deviation, 0.0))

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch inputs"]:
        return ((x - self.mean) * self.inverse_deviation).clamp(-_FARTHEST, _FARTHEST)


class PrincipalComponents(nn.Module):
    """Standardized features times V, one column per component; V are random directions until ``fit``.

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
        weights = torch.cat([torch.full((size,), size**-_BALANCE) for size in self.group_sizes]).to(self.directions)
        weighted = (self.scale(features) * weights).double()
        middle = weighted.mean(0)
        directions = _principal_directions(weighted - middle, self.directions.shape[1])
        size = ((weighted - middle) @ directions).square().mean().sqrt().clamp_min(_CONSTANT)
        self.directions.copy_(weights[:, None] * directions / size)
        self.offset.copy_(middle @ directions / size)


def _principal_directions(rows: Float[Tensor, "n features"], count: int) -> Float[Tensor, "features count"]:
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
