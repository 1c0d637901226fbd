"""Quasi-NFN: Transformer-NFN on checkpoints that are moved by group elements chosen from the checkpoint itself.

A map f of weights is quasi-equivariant (Tran et al., ICLR 2026) if f(gU) = g'·f(U) for some g' = g'(g, U) of the group:
what computes the same function before computes the same function after. This is written from that idea, not after the
authors' network.

U ↦ h(U)·U is quasi-equivariant for every choice of h(U) ∈ G_U, with g' = h(gU)·g·h(U)⁻¹. Read by an invariant layer it
is U itself, so a move matters only where copies that were moved by different elements are mixed. Here J copies and the
checkpoint are mixed before the first equivariant layer,

    Q = Σ_j ω^Q_j·[h_j(U)·U]^Q,    and likewise K, V and O with weights of their own,    h_0 = 1,

and the rest is Transformer-NFN. A sum of copies need not respect the group. It does if g' = g, and that holds if every
choice follows the checkpoint, h_j(gU) = g·h_j(U)·g⁻¹. In the head with query Q and key K, with learned a, b ∈ R^D,

    Mᵀ = c·(1 + γ·u·vᵀ)    M⁻¹ = (1 − γ/(1 + γ·vᵀu)·v·uᵀ) / c    u = Kᵀa    v = Qᵀb

where c > 0 and γ are the choice of a small network from group-invariant readings, vᵀu and s = ‖QKᵀa‖·‖b‖ + ‖KQᵀb‖·‖a‖.
|vᵀu| ≤ s/2 and |γ| ≤ 1/s, so M can always be inverted. N is the same for V and Oᵀ in place of Q and K; there a is a
mixture of 1 and W_A·1, which the permutation π_O takes along with the rows of Oᵀ. One network serves all heads, and the
permutations τ, π_O, π_A of every h_j are identities.

Promised: the mixture is equivariant and the reading of the encoder invariant under G_U, exactly, as in Transformer-NFN.
Not promised, as there: all of the whole group that is not in G_U; what it changes is measured.
"""

from dataclasses import replace
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nfn.predictors.predictor import dense, linear, normal
from nfn.predictors.transformer_nfn import InvariantEncoder, TransformerNFN
from zoo import BlockWeights, TransformerSpec, TransformerWeights
from zoo.transformer.spec import Component

_COPIES, _WIDTH = 4, 32
_SMALLEST = 1e-12
_Side = Float[Tensor, "*batch h D k"]  # Q, K, V or Oᵀ of every head
_Directions = Float[Tensor, "... 1 D j"]
_Chosen = Float[Tensor, "*batch h j"]
_Mixing = Float[Tensor, "blocks 1 copies"]


class QuasiNFN(TransformerNFN):
    """Transformer-NFN whose encoder reads a mixture of the checkpoint and of copies moved by chosen elements."""

    kind = "quasi_nfn"

    def build_reader(self, component: Component, generator: torch.Generator) -> tuple[nn.Module, int]:
        reader, outputs = super().build_reader(component, generator)
        if isinstance(reader, InvariantEncoder):
            reader = _QuasiEncoder(_MovedCopies(self.spec, generator), reader)
        return reader, outputs


class _QuasiEncoder(nn.Module):
    def __init__(self, copies: "_MovedCopies", encoder: InvariantEncoder) -> None:
        super().__init__()
        self.copies, self.encoder = copies, encoder

    def forward(self, weights: TransformerWeights) -> Float[Tensor, "b outputs"]:
        return self.encoder.read_encoder(self.copies(weights.encoder))


class _MovedCopies(nn.Module):
    """The mixture of the checkpoint and its moved copies; tensors [*batch, blocks, …] to tensors of the same shapes.

    ``mixing`` are the weights ω of Q, K, V, O, the checkpoint's own first: 1 at the start, those of the copies small.
    """

    def __init__(self, spec: TransformerSpec, generator: torch.Generator) -> None:
        super().__init__()
        directions = (spec.blocks, 1, spec.dim, _COPIES)
        self.key_a = normal(directions, 1 / sqrt(spec.dim), generator)
        self.query_b = normal(directions, 1 / sqrt(spec.dim), generator)
        self.output_a = normal((spec.blocks, 1, 2, _COPIES), 1.0, generator)
        self.value_b = normal(directions, 1 / sqrt(spec.dim), generator)
        self.choice = nn.Sequential(*dense([4 * _COPIES, _WIDTH], generator), linear(_WIDTH, 4 * _COPIES, generator))
        self.mixing = normal((4, spec.blocks, 1, 1 + _COPIES), 1 / _COPIES, generator)
        with torch.no_grad():
            self.mixing[..., 0] = 1.0

    def forward(self, encoder: BlockWeights) -> BlockWeights:
        features = torch.stack(
            [torch.ones_like(encoder.bias_b), F.normalize(encoder.weight_a.sum(-1), dim=-1, eps=_SMALLEST)], dim=-1
        )
        query_key = _Moves(encoder.query, encoder.key, self.key_a, self.query_b)
        value_output = _Moves(encoder.value, encoder.output.mT, features.unsqueeze(-3) @ self.output_a, self.value_b)
        readings = torch.cat([query_key.readings(), value_output.readings()], dim=-1)
        chosen = torch.tanh(self.choice(readings)).chunk(4, dim=-1)
        query, key = query_key.mix(*chosen[:2], *self.mixing[:2])
        value, output = value_output.mix(*chosen[2:], *self.mixing[2:])
        return replace(encoder, query=query, key=key, value=value, output=output.mT)


class _Moves:
    """The rank-one moves of one pair of matrices per head, (Q, K) or (V, Oᵀ): one move for each copy j."""

    def __init__(self, left: _Side, right: _Side, a: _Directions, b: _Directions) -> None:
        self.left, self.right = left, right
        self.u, self.v = right.mT @ a, left.mT @ b
        self.left_u, self.right_v = left @ self.u, right @ self.v
        self.inner = (self.u * self.v).sum(-2)
        self.size = self.left_u.norm(dim=-2) * b.norm(dim=-2) + self.right_v.norm(dim=-2) * a.norm(dim=-2) + _SMALLEST

    def readings(self) -> Float[Tensor, "*batch h readings"]:
        """vᵀu in units of its bound, and the logarithm of the bound."""
        return torch.cat([self.inner / self.size, self.size.log()], dim=-1)

    def mix(self, slope: _Chosen, scale: _Chosen, left_weights: _Mixing, right_weights: _Mixing) -> tuple[_Side, _Side]:
        """Σ_j ω_j·left·Mᵀ_j and Σ_j ω_j·right·M⁻¹_j, for slopes γ·s and log-scales log c in [−1, 1]."""
        gamma, c = slope / self.size, scale.exp()
        inverse = gamma / (1 + gamma * self.inner)
        left_copies, right_copies = left_weights[..., 1:] * c, right_weights[..., 1:] / c
        left_total = (left_weights[..., 0] + left_copies.sum(-1))[..., None, None]
        right_total = (right_weights[..., 0] + right_copies.sum(-1))[..., None, None]
        left = left_total * self.left + (self.left_u * (left_copies * gamma).unsqueeze(-2)) @ self.v.mT
        right = right_total * self.right - (self.right_v * (right_copies * inverse).unsqueeze(-2)) @ self.u.mT
        return left, right
