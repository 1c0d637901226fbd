"""The equivariant polynomial layer E: U^d → U^e (thm:equivariant_layer)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nfn.layers.block_channels import blocks_first, blocks_last, check_block_weights
from nfn.layers.seeding import generator_or_default
from nfn.layers.term_products import Sources, TermProducts
from nfn.layers.terms import EQUIVARIANT_TERMS, Term, sizes
from zoo import BlockWeights, TransformerSpec


class EquivariantLayer(nn.Module):
    """E(gU) = gE(U) for every g of the group G_U of each block.

    The sum of all terms of ``EQUIVARIANT_TERMS``; each transformer block has its own coefficients. Q, K, V are
    mixed along their input dimension, O along its output dimension by a·1 + b·11ᵀ, and everything that the group only
    permutes gets every invariant and equivariant polynomial of degree one or two (thm:equivariant_layer).
    """

    def __init__(
        self,
        spec: TransformerSpec,
        in_channels: int,
        out_channels: int,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        check_channels(in_channels, out_channels)
        self.spec = spec
        self.in_channels = in_channels
        self.out_channels = out_channels
        # Named in the files of saved predictors, as are its matrices: renaming either would make them unreadable.
        self.merged = TermProducts(
            EQUIVARIANT_TERMS, sizes(spec), spec.blocks, in_channels, out_channels, generator_or_default(generator)
        )

    def coefficient(self, term: Term) -> Tensor:
        """The paper's coefficient of a term, [blocks, e, d, …]: a view of the parameters."""
        return self.merged.coefficient(term)

    def forward(self, weights: BlockWeights) -> BlockWeights:
        """[*batch, d, blocks, …] → [*batch, e, blocks, …]."""
        batch = check_block_weights(weights, self.spec, self.in_channels, next(self.parameters()).dtype)
        sources = Sources(vars(blocks_first(weights, batch)))
        return blocks_last(BlockWeights(**self.merged(sources, batch.numel())), batch)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, blocks={self.spec.blocks}"


def relu_on_mlp(weights: BlockWeights) -> BlockWeights:
    """ReLU on W_A, b_A, W_B, b_B; Q, K, V, O pass unchanged.

    The group permutes the entries of the former, so any pointwise function commutes with it; on the latter it acts by
    GL(D_k) and GL(D_v), with which no such function commutes (appendix:transformer-nfn).
    """
    return BlockWeights(
        query=weights.query,
        key=weights.key,
        value=weights.value,
        output=weights.output,
        weight_a=F.relu(weights.weight_a),
        weight_b=F.relu(weights.weight_b),
        bias_a=F.relu(weights.bias_a),
        bias_b=F.relu(weights.bias_b),
    )


def check_channels(*channels: int) -> None:
    for count in channels:
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"a layer needs a positive number of channels, got {count!r}")
