"""Brings weights to unit size without touching their symmetry.

Every tensor of a checkpoint is divided by one positive number. Multiplication by a number commutes with the group's
action, so what is invariant stays invariant. The numbers come from training checkpoints alone, and from group-invariant
quantities alone: Q and K are measured by the size of Σ_s W^(Q,s)·(W^(K,s))ᵀ, V and O by that of Σ_s W^(V,s)·W^(O,s),
so that moving the training checkpoints by group elements does not change what is fitted.
"""

from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor, nn

from zoo import TransformerSpec, TransformerWeights

# Below this a tensor counts as all zero (biases start at zero) and is left as it is.
SMALLEST = 1e-12


class WeightScale(nn.Module):
    """weights → weights / scale, one scale per tensor; 1 until ``fit``."""

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
            size = float(root_mean_square(weights.flat()[:, slot.slice]).median())
            self.factor[slot.slice] = 1 / size if size > SMALLEST else 1.0
        for block, part in enumerate(weights.blocks):
            qk = sum_over_heads(part.query, part.key.mT)
            vo = sum_over_heads(part.value, part.output)
            for names, product, inner in (
                (("query", "key"), qk, self.spec.key_dim),
                (("value", "output"), vo, self.spec.value_dim),
            ):
                # A product of two matrices of unit-variance entries has entries of variance h·inner.
                size = float(root_mean_square(product.flatten(1)).median()) / sqrt(self.spec.heads * inner)
                for name in names:
                    slot = self.spec.tensors[f"blocks.{block}.{name}.weight"]
                    self.factor[slot.slice] = 1 / sqrt(size) if size > SMALLEST else 1.0


def sum_over_heads(left: Float[Tensor, "n h D r"], right: Float[Tensor, "n h r D"]) -> Float[Tensor, "n D D"]:
    """Σ_s left^(s)·right^(s)."""
    return (left @ right).sum(-3)


def root_mean_square(x: Float[Tensor, "n m"]) -> Float[Tensor, " n"]:
    return x.square().mean(-1).sqrt()
