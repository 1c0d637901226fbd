"""The layers applied one after another to a checkpoint, without ever computing the hidden Q, K, V and O.

Nothing nonlinear touches Q, K, V and O (``relu_on_mlp``), so in every hidden layer, channel d,

    Q_d^(s) = Ψ^Q_d·W^(Q,s)    K_d^(s) = Ψ^K_d·W^(K,s)    V_d^(s) = Ψ^V_d·W^(V,s)    O_d^(s) = W^(O,s)·(α_d·1 + β_d·11ᵀ)

with matrices Ψ [D, D] and numbers α, β that depend on coefficients alone and are the same for the whole batch. Terms
read only their products summed over heads, and these follow from those of the checkpoint:

    Σ_s [WW]^(QK,s)_d = Ψ^Q_d·(Σ_s [WW]^(QK,s))·(Ψ^K_d)ᵀ
    Σ_s [WW]^(VO,s)_d = Ψ^V_d·(Σ_s [WW]^(VO,s))·(α_d·1 + β_d·11ᵀ)

So the work on heads is done once, on the checkpoint, and a few large matrix products remain.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from nfn.layers.polynomial import EquivariantLayer, InvariantLayer, blocks_first
from nfn.layers.term_products import Sources
from nfn.layers.terms import ATTENTION
from zoo import BlockWeights


@dataclass(frozen=True)
class _AttentionMaps:
    """How the hidden Q, K, V and O follow from those of the checkpoints, after the layers so far."""

    query: Float[Tensor, "blocks d D D"]  # Ψ^Q
    key: Float[Tensor, "blocks d D D"]  # Ψ^K
    value: Float[Tensor, "blocks d D D"]  # Ψ^V
    alpha: Float[Tensor, "blocks d"]
    beta: Float[Tensor, "blocks d"]


@dataclass(frozen=True)
class _FactoredWeights:
    """A hidden layer for a batch of checkpoints: products of the checkpoints, the maps, the MLP's tensors."""

    qk: Float[Tensor, "blocks b D D"]
    vo: Float[Tensor, "blocks b D D"]
    maps: _AttentionMaps
    mlp: dict[str, Tensor]  # weight_a, weight_b, bias_a, bias_b: [blocks, b, d, …]


def factor_checkpoints(encoder: BlockWeights) -> _FactoredWeights:
    """The encoders of a batch of checkpoints, tensors [b, blocks, …], as the input layer: one channel, Ψ = 1, α·1."""
    tensors = vars(blocks_first(encoder.map(lambda tensor: tensor.unsqueeze(1)), encoder.query.shape[:1]))
    sources, alpha = Sources(tensors), encoder.query.new_ones(encoder.query.shape[1], 1)
    psi = alpha[..., None, None] * torch.eye(encoder.query.shape[-2], dtype=alpha.dtype, device=alpha.device)
    return _FactoredWeights(
        qk=sources["qk"].squeeze(2),
        vo=sources["vo"].squeeze(2),
        maps=_AttentionMaps(psi, psi, psi, alpha, beta=torch.zeros_like(alpha)),
        # Made contiguous once, because they are read many times.
        mlp={name: tensor.contiguous() for name, tensor in tensors.items() if name not in ATTENTION},
    )


def apply_equivariant(layer: EquivariantLayer, x: _FactoredWeights) -> _FactoredWeights:
    """``layer`` on a hidden layer."""
    groups = [group for group in layer.groups if not group.outputs.keys() & set(ATTENTION)]
    mlp = layer.sum_terms(Sources(_products(x) | x.mlp), x.qk.shape[1], groups)
    return replace(x, maps=_compose_maps(layer, x.maps), mlp=mlp)


def apply_relu(x: _FactoredWeights) -> _FactoredWeights:
    """``relu_on_mlp`` on a hidden layer."""
    return replace(x, mlp={name: F.relu(tensor) for name, tensor in x.mlp.items()})


def apply_invariant(layer: InvariantLayer, x: _FactoredWeights) -> Float[Tensor, "b blocks e out"]:
    """``layer`` on a hidden layer. The maps are folded into the coefficients, which are few, not into the batch."""
    (group,) = layer.groups
    matrix = layer.matrices[group.name]
    blocks, _, dim, _ = x.qk.shape
    channels, width = layer.in_channels, group.column_count
    lengths = [read.rows.stop - read.rows.start for read in group.inputs.values()]
    coefficients = dict(zip(group.inputs, matrix.split(lengths, dim=1), strict=True))
    # Σ_d (Ψ^Q_d)ᵀ·Φ_d·Ψ^K_d, first over p, then over (d, q): [blocks, p, q, outputs]
    left = (x.maps.query.mT @ coefficients["qk"].view(blocks, channels, dim, dim * width)).unflatten(-1, (dim, width))
    right = left.permute(0, 2, 4, 1, 3).reshape(blocks, dim * width, channels * dim) @ x.maps.key.flatten(1, 2)
    coefficients["qk"] = right.view(blocks, dim, width, dim).transpose(2, 3).flatten(1, 2)
    # Σ_d (α_d + D·β_d)·(Ψ^V_d)ᵀ·Φ_d, because each row of α·1 + β·11ᵀ sums to α + D·β: [blocks, p, outputs]
    row_sum = (x.maps.alpha + dim * x.maps.beta)[..., None, None]
    coefficients["vo"] = (x.maps.value * row_sum).flatten(1, 2).mT @ coefficients["vo"]
    constant = coefficients.pop("one")
    sources = Sources({"qk": x.qk.unsqueeze(2), "vo": x.vo.unsqueeze(2)} | x.mlp)
    features = [sources.reduced(name, group.inputs[name].summed).flatten(2) for name in coefficients]
    result = torch.baddbmm(constant, torch.cat(features, dim=-1), torch.cat(list(coefficients.values()), dim=1))
    return result.unflatten(-1, (layer.out_channels, layer.out_dim)).transpose(0, 1)


def _compose_maps(layer: EquivariantLayer, maps: _AttentionMaps) -> _AttentionMaps:
    """The maps after one more layer: Ψ'_e = Σ_d Φ_{e,d}·Ψ_d, and the same for α·1 + β·11ᵀ."""
    dim = layer.spec.dim
    query, key, value, summed, same = (
        layer.matrices[name].mT
        for name in ("query_h_D_k", "key_h_D_k", "value_h_D_v", "output_h_D_v", "output_h_D_v_D")
    )
    query, key, value = (
        (matrix @ psi.flatten(1, 2)).unflatten(1, (-1, dim))
        for matrix, psi in ((query, maps.query), (key, maps.key), (value, maps.value))
    )
    alpha, beta = maps.alpha.unsqueeze(-1), maps.beta.unsqueeze(-1)
    mixed = same @ beta + summed @ (alpha + dim * beta)
    return _AttentionMaps(query, key, value, alpha=(same @ alpha).squeeze(-1), beta=mixed.squeeze(-1))


def _products(x: _FactoredWeights) -> dict[str, Tensor]:
    """qk and vo of every channel, [blocks, b, d, D, D]."""
    maps = x.maps
    batch, dim = x.qk.shape[1:3]
    channels = maps.query.shape[1]

    def from_left(psi: Tensor, y: Tensor) -> Tensor:
        """Ψ_d·y_d for y [blocks, d, D, b, D]: one product per channel for the whole batch."""
        return (psi @ y.flatten(3)).unflatten(-1, (batch, dim)).permute(0, 3, 1, 2, 4)

    right = x.qk.flatten(1, 2) @ maps.key.flatten(1, 2).mT
    qk = from_left(maps.query, right.unflatten(1, (batch, dim)).unflatten(-1, (channels, dim)).permute(0, 3, 2, 1, 4))
    vo = from_left(maps.value, x.vo.transpose(1, 2).unsqueeze(1).expand(-1, channels, -1, -1, -1))
    alpha, beta = (number[:, None, :, None, None] for number in (maps.alpha, maps.beta))
    return {"qk": qk, "vo": alpha * vo + beta * vo.sum(-1, keepdim=True)}
