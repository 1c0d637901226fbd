"""The invariant polynomial layer I: U^d → R^{e×D'} (thm:invariant_layer)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nfn.layers.block_channels import blocks_first, check_block_weights
from nfn.layers.equivariant import check_channels
from nfn.layers.seeding import generator_or_default
from nfn.layers.term_products import Sources, TermProducts
from nfn.layers.terms import INVARIANT_TERMS, Term, sizes
from zoo import BlockWeights, TransformerSpec


class InvariantLayer(nn.Module):
    """I(gU) = I(U) for every g of the group G_U of each block.

    I(U) = Φ_{(QK,•):p,q}·Σ_s[WW]^(QK,s)_{p,q} + Φ_{(VO,•):p,•}·Σ_s[WW]^(VO,s)_{p,q} + Φ_{(A):•,•}·[W]^(A)_{p,q}
         + Φ_{(B):•,q}·[W]^(B)_{p,q} + Φ_{(A):•}·[b]^(A)_q + Φ_{(B):q}·[b]^(B)_q + Φ_1,  repeated indices summed,

    for each transformer block with its own coefficients.
    """

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
        check_channels(in_channels, out_channels, out_dim)
        self.spec = spec
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.out_dim = out_dim
        # A name in saved files, as in ``EquivariantLayer``.
        self.merged = TermProducts(
            INVARIANT_TERMS,
            sizes(spec, out_dim),
            spec.blocks,
            in_channels,
            out_channels,
            generator_or_default(generator),
        )

    def coefficient(self, term: Term) -> Tensor:
        """The paper's coefficient of a term, [blocks, e, d, …]: a view of the parameters."""
        return self.merged.coefficient(term)

    def forward(self, weights: BlockWeights) -> Float[Tensor, "*batch blocks e out"]:
        """[*batch, d, blocks, …] → [*batch, blocks, e, D']."""
        batch = check_block_weights(weights, self.spec, self.in_channels, next(self.parameters()).dtype)
        sources = Sources(vars(blocks_first(weights, batch)))
        result = self.merged(sources, batch.numel())["invariant"].movedim(0, 1)
        return result.unflatten(0, batch) if batch else result.squeeze(0)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, out_dim={self.out_dim}, blocks={self.spec.blocks}"
