"""The balanced form of a checkpoint: every part of the group that is not an isometry is fixed.

Shifts are zero, ReLU units have ‖(row_j, bias_j)‖ = ‖column_j‖, each pair W_Q, W_K and W_V, W_O has equal Gram
matrices, and what is written into a free boundary has size √D. What is left of the group are isometries, so that the
distance between two balanced checkpoints does not depend on how either was moved before.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor

from nfn.symmetry.canonical import DEAD_BOUNDARY, UnitLayer, written_size
from nfn.symmetry.full_group import FullGroupElement
from nfn.symmetry.parts import free_boundaries, shift_component
from zoo import TransformerWeights

_RIDGE = 1e-12  # of a Gram matrix, relative to its trace: a head of lower rank still has a balanced form
_SMALLEST = 1e-30


def balancing_element(weights: TransformerWeights, parts: Sequence[str]) -> FullGroupElement:
    """The element of ``parts`` that takes each of a batch [b, d] to its balanced form."""
    spec = weights.spec
    nothing = FullGroupElement.identity(spec, tuple(weights.batch_shape), device=weights.flat().device)
    shift = shift_component(weights, [part for part in parts if "shifts" in part])
    now = TransformerWeights.from_flat(spec, weights.flat() - shift, check_finite=False)
    fields: dict[str, Tensor] = {}
    if "boundary_scales" in parts and (free := free_boundaries(spec)):
        sizes = torch.stack([written_size(now, boundary) for boundary in free], dim=-1)
        alive = sizes > DEAD_BOUNDARY
        fields["boundary_scales"] = torch.where(alive, sqrt(spec.dim) / torch.where(alive, sizes, 1), 1)
        now = replace(nothing, boundary_scales=fields["boundary_scales"]).act(now)
    if "unit_scales" in parts:
        scales = [_unit_scales(UnitLayer.named(now, prefix)) for prefix in spec.unit_layers]
        fields["unit_scales"] = torch.stack(scales[: spec.blocks], dim=1)
        if not spec.causal:
            fields["classifier_unit_scales"] = scales[-1]
    encoder = now.encoder
    if "query_key" in parts:
        fields["m"] = _balance(encoder.query, encoder.key)
    if "value_output" in parts:
        fields["n"] = _balance(encoder.value, encoder.output.mT)
    linear = replace(nothing, **fields)
    # L(w − s) = L(w) − L(s): what acts on the shift alone is its image
    image = linear.act(TransformerWeights.from_flat(spec, shift, check_finite=False)).flat()
    return replace(linear, shifts=-image)


def _unit_scales(layer: UnitLayer) -> Float[Tensor, "b units"]:
    """√(‖column_j‖/‖(row_j, bias_j)‖), and 1 for a unit that reads or writes nothing."""
    reading, writing = layer.reading(), layer.writing()
    alive = (reading > _SMALLEST) & (writing > _SMALLEST)
    return torch.where(alive, (writing / torch.where(alive, reading, 1)).sqrt(), 1)


def _balance(left: Float[Tensor, "*batch D r"], right: Float[Tensor, "*batch D r"]) -> Float[Tensor, "*batch r r"]:
    """The symmetric X with X·LᵀL·X = X⁻¹·RᵀR·X⁻¹: X² is the geometric mean of (LᵀL)⁻¹ and RᵀR."""

    def gram(x: Tensor) -> Tensor:
        product = x.mT @ x
        trace = product.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
        return product + (_RIDGE * trace + _SMALLEST) * torch.eye(product.shape[-1]).to(product)

    root = _power(gram(left), 0.5)
    inverse = _power(gram(left), -0.5)
    return _power(inverse @ _power(root @ gram(right) @ root, 0.5) @ inverse, 0.5)


def _power(matrix: Float[Tensor, "*batch r r"], exponent: float) -> Float[Tensor, "*batch r r"]:
    """A power of a symmetric positive matrix."""
    values, vectors = torch.linalg.eigh((matrix + matrix.mT) / 2)
    least = (values[..., -1:] * 1e-15).clamp_min(_SMALLEST)
    return (vectors * values.clamp_min(least).pow(exponent)[..., None, :]) @ vectors.mT
