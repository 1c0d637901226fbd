"""The paper's polynomial layers on weights in U^d: ``EquivariantLayer`` and ``InvariantLayer``.

Weights in U^d are all blocks with d channels, as ``BlockWeights`` of tensors [*batch, d, blocks, *axes]. A checkpoint
is in U^1; the hidden layers of a functional network are in U^d.
"""

from dataclasses import replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nfn.layers.term_products import Sources, TermProducts
from nfn.layers.terms import ATTENTION, AXES, EQUIVARIANT_TERMS, INVARIANT_TERMS, TENSOR_NAMES, Term, sizes
from zoo import BlockWeights, TransformerSpec, TransformerWeights


class _PolynomialLayer(nn.Module):
    """A sum of terms whose coefficients are separate for each transformer block."""

    terms: ClassVar[tuple[Term, ...]]

    def __init__(
        self,
        spec: TransformerSpec,
        in_channels: int,
        out_channels: int,
        out_dim: int = 1,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        for count in (in_channels, out_channels, out_dim):
            if not isinstance(count, int) or count < 1:
                raise ValueError(f"a layer needs a positive number of channels, got {count!r}")
        self.spec, self.in_channels, self.out_channels, self.out_dim = spec, in_channels, out_channels, out_dim
        generator = generator or torch.Generator().manual_seed(0)  # the same call makes the same layer
        # Named in the files of saved predictors, as are its matrices: renaming either would make them unreadable.
        self.merged = TermProducts(self.terms, sizes(spec, out_dim), spec.blocks, in_channels, out_channels, generator)

    def coefficient(self, term: Term) -> Tensor:
        """The paper's coefficient of a term, [blocks, e, d, …]: a view of the parameters."""
        return self.merged.coefficient(term)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, out_dim={self.out_dim}, blocks={self.spec.blocks}"

    def _targets(self, weights: BlockWeights) -> tuple[dict[str, Tensor], torch.Size]:
        """The sums of terms, [blocks, batch, e, …], and the batch shape of the weights."""
        batch = self._check(weights)
        return self.merged(Sources(vars(blocks_first(weights, batch))), batch.numel()), batch

    def _check(self, weights: BlockWeights) -> torch.Size:
        """The batch shape of weights in U^d; ValueError where a shape or a dtype does not fit."""
        size, dtype = sizes(self.spec), next(self.parameters()).dtype
        batch = weights.query.shape[: max(weights.query.ndim - 5, 0)]
        for name in TENSOR_NAMES:
            tensor = getattr(weights, name)
            expected = (*batch, self.in_channels, self.spec.blocks, *(size[axis] for axis in AXES[name]))
            if tuple(tensor.shape) != expected:
                raise ValueError(
                    f"{name} must be [*batch, {', '.join(map(str, expected[len(batch) :]))}] "
                    f"(channels, blocks, then the tensor's own axes), got {list(tensor.shape)}"
                )
            if tensor.dtype != dtype:
                raise ValueError(f"{name} is {tensor.dtype} but the layer is {dtype}: convert one of them with .to()")
        return batch


class EquivariantLayer(_PolynomialLayer):
    """E: U^d → U^e with E(gU) = gE(U) for every g of the group G_U of each block (thm:equivariant_layer).

    The sum of all terms of ``EQUIVARIANT_TERMS``; each transformer block has its own coefficients. Q, K, V are
    mixed along their input dimension, O along its output dimension by a·1 + b·11ᵀ, and everything that the group only
    permutes gets every invariant and equivariant polynomial of degree one or two.
    """

    terms = EQUIVARIANT_TERMS

    def __init__(
        self, spec: TransformerSpec, in_channels: int, out_channels: int, *, generator: torch.Generator | None = None
    ) -> None:
        super().__init__(spec, in_channels, out_channels, generator=generator)

    def forward(self, weights: BlockWeights) -> BlockWeights:
        """[*batch, d, blocks, …] → [*batch, e, blocks, …]."""
        targets, batch = self._targets(weights)
        return BlockWeights(**targets).map(
            lambda tensor: tensor.movedim(0, 2).reshape(
                *batch, *tensor.shape[2:3], *tensor.shape[:1], *tensor.shape[3:]
            )
        )


class InvariantLayer(_PolynomialLayer):
    """I: U^d → R^{e×D'} with I(gU) = I(U) for every g of the group G_U of each block (thm:invariant_layer).

    I(U) = Φ_{(QK,•):p,q}·Σ_s[WW]^(QK,s)_{p,q} + Φ_{(VO,•):p,•}·Σ_s[WW]^(VO,s)_{p,q} + Φ_{(A):•,•}·[W]^(A)_{p,q}
         + Φ_{(B):•,q}·[W]^(B)_{p,q} + Φ_{(A):•}·[b]^(A)_q + Φ_{(B):q}·[b]^(B)_q + Φ_1,  repeated indices summed,

    for each transformer block with its own coefficients.
    """

    terms = INVARIANT_TERMS

    def forward(self, weights: BlockWeights) -> Float[Tensor, "*batch blocks e out"]:
        """[*batch, d, blocks, …] → [*batch, blocks, e, D']."""
        targets, batch = self._targets(weights)
        result = targets["invariant"].movedim(0, 1)
        return result.reshape(*batch, *result.shape[1:])


def relu_on_mlp(weights: BlockWeights) -> BlockWeights:
    """ReLU on W_A, b_A, W_B, b_B; Q, K, V, O pass unchanged.

    The group permutes the entries of the former, so any pointwise function commutes with it; on the latter it acts by
    GL(D_k) and GL(D_v), with which no such function commutes (appendix:transformer-nfn).
    """
    mlp = {name: F.relu(getattr(weights, name)) for name in TENSOR_NAMES if name not in ATTENTION}
    return replace(weights, **mlp)


def encoder_as_one_channel(weights: TransformerWeights) -> BlockWeights:
    """The encoder of a checkpoint as weights in U^1. Views."""
    channel = len(weights.batch_shape)
    return weights.encoder.map(lambda tensor: tensor.unsqueeze(channel))


def blocks_first(weights: BlockWeights, batch: torch.Size) -> BlockWeights:
    """[*batch, d, blocks, …] → [blocks, batch, d, …], the layout the layers compute in. Views where strides allow."""
    return weights.map(lambda tensor: tensor.reshape(batch.numel(), *tensor.shape[len(batch) :]).movedim(2, 0))
