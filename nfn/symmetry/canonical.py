"""One representative of each orbit of the whole group: the same function, the same shape, nothing left to choose.

``canonicalize`` fixes one part of the group after the other. Sizes below do not depend on any basis:

    shifts           writers and readers are centered
    boundary_scales  what writes into a boundary has size √D. Attention counts as √Σ_heads ‖W_O W_V‖², an MLP as
                     √(Σ_units ρ_j²γ_j² + ‖b‖²), where ρ_j = ‖(row_j, bias_j)‖ and γ_j = ‖column_j‖ of a ReLU unit,
                     a learned embedding as √(‖E‖² + ‖P‖²); in a residual stream all of them together
    unit_scales      ‖(row_j, bias_j)‖ = ‖column_j‖
    units            sorted by ρ_j·γ_j, the largest first
    heads            sorted by ‖W_Qᵀ W_K‖ + ‖W_O W_V‖ / √Σ_heads ‖W_O W_V‖², the largest first
    query_key        W_Qᵀ W_K = UΣVᵀ becomes W_Q = (U√Σ·X)ᵀ, W_K = (V√Σ·X)ᵀ
    value_output     (W_O W_V)ᵀ = UΣVᵀ becomes W_V = (U√Σ·X)ᵀ, W_O = V√Σ·X
    rotations        R, as X above, is the orthogonal matrix that brings what it acts on closest to a fixed template
    logits           Σ_units ρ_j²γ_j² + ‖b‖² = 1 in the last layer, ‖U‖ = 1 for an unembedding, centered over classes

The closest orthogonal matrix (Procrustes) needs no gaps: unlike singular vectors it does not jump where singular values
cross, so equal singular values are handled like any others. What is undecided, or decided by rounding:

- Units of equal size, and heads of equal size, keep the order they come in.
- What adds nothing to the function becomes zero, with all that belongs to it: units with ρ_j·γ_j ≤ ``_DEAD``, singular
  values of heads, and boundaries into which less than ``DEAD_BOUNDARY`` is written, which ε of the LayerNorm silences.
- Directions of a free boundary into which nothing is written are taken out of what attention reads there.
- A template that is orthogonal to what is compared with it, a set of measure zero.

Boundary scales are part of the group up to ε of the LayerNorm only: the result computes the function of the weights
with an ε that is small beside their activations. Leave that part out for the function to rounding.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import pi, sqrt

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from nfn.symmetry.full_group import turned
from nfn.symmetry.group import pick
from nfn.symmetry.parts import Boundary, Part, boundaries, centered, check_parts, free_boundaries, owners
from zoo import BlockWeights, TransformerWeights

_DEAD = 1e-12
"""Below this a singular value of a head, and the size of a unit relative to its layer, count as zero.

Rounding leaves up to 1e-15; attention scores, or what LayerNorm makes of the rest, move by no more than this.
"""
Factor = Float[Tensor, "*batch D r"]
"""One of the two matrices of a head whose product counts."""
DEAD_BOUNDARY = 1e-8
"""LayerNorm divides by √ε = 3e-3 at least, so that less than 1e-5 of the usual size comes through."""


@torch.no_grad()
def canonicalize(weights: TransformerWeights, parts: Iterable[str] | None = None) -> TransformerWeights:
    """The representative of the orbit of each checkpoint, in its own dtype, computed in float64.

    ``canonicalize(g.act(w))`` is ``canonicalize(w)`` for every ``FullGroupElement`` g of these ``parts``, for None all
    that leave the function alone. Weights that hold NaN or infinity are refused.
    """
    spec, dtype, batch = weights.spec, weights.flat().dtype, weights.batch_shape
    chosen = check_parts(spec, parts)
    flat = weights.flat().reshape(batch.numel(), spec.num_parameters).double()
    # The tensors of ``result`` are written in place from here on; centering has made it a copy.
    result = centered(TransformerWeights.from_flat(spec, flat), chosen)
    turn, scale = "rotations" in chosen, "boundary_scales" in chosen
    for boundary in free_boundaries(spec) if scale else ():
        _scale_writers(result, boundary)
    if "logits" in chosen:
        _normalize_logits(result)
    for prefix in spec.unit_layers:
        _fix_units(UnitLayer.named(result, prefix), chosen)
    for boundary in boundaries(spec):
        readers = [attention_of(result, prefix) for prefix in owners(boundary.readers, "query.weight")]
        for attention in readers if turn and not boundary.pinned else ():
            outputs = [result[f"{prefix}.output.weight"] for prefix in owners(boundary.writers, "output.weight")]
            _remove_unwritten(torch.cat([*_written_in_any_basis(result, boundary), *outputs], dim=-1), attention)
        for each in free_boundaries(spec) if scale else ():  # again: values may have been taken out since
            _scale_writers(result, each)
        for attention in readers if "heads" in chosen else ():
            _fix_order_of_heads(attention)
        if turn and not boundary.pinned:
            rotation = _canonical_rotation(_turning_vectors(result, boundary))
            for name, axis in {**boundary.writers, **dict.fromkeys(boundary.readers, -1)}.items():
                result[name].copy_(turned(spec, name, result[name], axis, rotation))
        for attention in readers:
            _fix_bases_of_heads(attention, chosen)
    fixed = result.flat().reshape(*batch, spec.num_parameters).to(dtype)
    return TransformerWeights.from_flat(spec, fixed)


@dataclass(frozen=True)
class UnitLayer:
    """The ReLU units of an MLP or of the classifier, as views of the weights."""

    rows: Float[Tensor, "*batch units D"]
    bias: Float[Tensor, "*batch units"]
    columns: Float[Tensor, "*batch out units"]
    out_bias: Float[Tensor, "*batch out"]

    @staticmethod
    def named(weights: TransformerWeights, prefix: str) -> "UnitLayer":
        names = ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")
        return UnitLayer(*(weights[f"{prefix}.{name}"] for name in names))

    def reading(self) -> Float[Tensor, "*batch units"]:
        """ρ_j = ‖(row_j, bias_j)‖."""
        return torch.linalg.vector_norm(torch.cat([self.rows, self.bias[..., None]], dim=-1), dim=-1)

    def writing(self) -> Float[Tensor, "*batch units"]:
        """γ_j = ‖column_j‖."""
        return torch.linalg.vector_norm(self.columns, dim=-2)

    def size(self) -> Float[Tensor, "*batch"]:
        """√(Σ_j ρ_j²γ_j² + ‖b‖²), unchanged by scales and order of the units."""
        sizes = torch.cat([self.reading() * self.writing(), self.out_bias], dim=-1)
        return torch.linalg.vector_norm(sizes, dim=-1)

    def written_in_unit_size(self) -> Float[Tensor, "*batch out sources"]:
        """ρ_j·column_j of each unit, and the bias: unchanged by the scales of the units."""
        return torch.cat([self.columns * self.reading()[..., None, :], self.out_bias[..., None]], dim=-1)

    def copy_units(self, layer: "UnitLayer", order: Int[Tensor, "b units"]) -> None:
        """Writes the units of a layer into this one, in some order."""
        self.rows.copy_(pick(layer.rows, order, -2))
        self.bias.copy_(pick(layer.bias, order, -1))
        self.columns.copy_(pick(layer.columns, order[..., None, :], -1))


def attention_of(weights: TransformerWeights, prefix: str) -> BlockWeights:
    """The block with this prefix, e.g. "blocks.1"."""
    return weights.blocks[int(prefix.removeprefix("blocks."))]


def _normalize_logits(weights: TransformerWeights) -> None:
    """The last layer in unit size, in place."""
    if weights.spec.causal:
        last, size = [weights["unembedding.weight"]], torch.linalg.matrix_norm(weights["unembedding.weight"])
    else:
        layer = UnitLayer.named(weights, "classifier")
        last, size = [layer.columns, layer.out_bias], layer.size()
    for tensor in last:
        tensor.div_(torch.where(size > 0, size, 1)[(..., *(None,) * (tensor.ndim - 1))])


def written_size(weights: TransformerWeights, boundary: Boundary) -> Float[Tensor, " b"]:
    """The size of all that is written into a boundary, in any basis."""
    sizes = [torch.linalg.matrix_norm(weights[name]) for name in boundary.named_writers]
    for prefix in owners(boundary.writers, "output.weight"):
        attention = attention_of(weights, prefix)
        sizes.append(torch.linalg.vector_norm((attention.value @ attention.output).flatten(1), dim=-1))
    sizes += [UnitLayer.named(weights, prefix).size() for prefix in owners(boundary.writers, "fc2.weight")]
    return torch.linalg.vector_norm(torch.stack(sizes), dim=0)


def _scale_writers(weights: TransformerWeights, boundary: Boundary) -> None:
    """All that is written into a boundary in size √D, in place; zero where it is not above ``DEAD_BOUNDARY``."""
    now = written_size(weights, boundary)
    factor = torch.where(now > DEAD_BOUNDARY, sqrt(weights.spec.dim) / torch.where(now > 0, now, 1), 0)
    for name in boundary.writers:
        weights[name].mul_(factor[(..., *(None,) * len(weights.spec.tensors[name].shape))])


def _written_in_any_basis(weights: TransformerWeights, boundary: Boundary) -> list[Float[Tensor, "b D sources"]]:
    """What tokens, positions and units write; what attention writes depends on the bases of its heads."""
    layers = (UnitLayer.named(weights, prefix) for prefix in owners(boundary.writers, "fc2.weight"))
    units = [torch.cat([layer.columns, layer.out_bias[..., None]], dim=-1) for layer in layers]
    return [*(weights[name].mT for name in boundary.named_writers), *units]


def _turning_vectors(weights: TransformerWeights, boundary: Boundary) -> list[Float[Tensor, "b D _"]]:
    """Vectors that turn with the basis of a boundary, and with nothing else.

    What attention writes is one of them where the bases of its heads are settled, because it reads from a boundary
    before. In a residual stream it is not, and W_O W_V takes part through ``pulled_back``.
    """
    groups = _written_in_any_basis(weights, boundary)
    readers = owners(boundary.readers, "query.weight")
    settled = [prefix for prefix in owners(boundary.writers, "output.weight") if prefix not in readers]
    pulled = [
        vectors
        for prefix in readers
        for vectors in pulled_back(torch.cat(groups, dim=-1), attention_of(weights, prefix))
    ]
    groups += [weights[f"{prefix}.output.weight"] for prefix in settled]
    rows = [name for name in boundary.readers if name.endswith(("fc1.weight", "unembedding.weight"))]
    return [*groups, *pulled, *(weights[name].mT for name in rows)]


def _fix_units(layer: UnitLayer, parts: tuple[Part, ...]) -> None:
    """Scales and order of the units, in place."""
    reading, writing = layer.reading(), layer.writing()
    size = reading * writing
    if "unit_scales" in parts:
        alive = size > _DEAD * layer.size()[:, None]
        size = torch.where(alive, size, 0)
        to_rows, to_columns = (size.sqrt() / torch.where(alive, now, 1) for now in (reading, writing))
        layer.rows.mul_(to_rows[..., None])
        layer.bias.mul_(to_rows)
        layer.columns.mul_(to_columns[..., None, :])
    if "units" in parts:
        layer.copy_units(layer, size.argsort(dim=-1, descending=True, stable=True))


def _fix_order_of_heads(attention: BlockWeights) -> None:
    """The order of a block's heads, in place."""
    writing = torch.linalg.matrix_norm(attention.value @ attention.output)
    size = torch.linalg.vector_norm(writing, dim=-1, keepdim=True)
    share = torch.where(size > DEAD_BOUNDARY, writing / torch.where(size > 0, size, 1), 0)
    rank = torch.linalg.matrix_norm(attention.query @ attention.key.mT) + share
    order = rank.argsort(dim=-1, descending=True, stable=True)
    for tensor in (attention.query, attention.key, attention.value, attention.output):
        tensor.copy_(pick(tensor, order, -3))


def _fix_bases_of_heads(attention: BlockWeights, parts: tuple[Part, ...]) -> None:
    """M and N of each head, in place. What the block reads has its final basis already, what it writes has not."""
    if "query_key" in parts:
        query, key = _balanced(attention.query, attention.key)
        basis = closest_orthogonal(query.mT @ _template_like(query) + key.mT @ _template_like(key, offset=1))
        attention.query.copy_(query @ basis)
        attention.key.copy_(key @ basis)
    if "value_output" in parts:
        value, output = _balanced(attention.value, attention.output.mT)
        basis = closest_orthogonal(value.mT @ _template_like(value))
        attention.value.copy_(value @ basis)
        attention.output.copy_((output @ basis).mT)


def _balanced(left: Factor, right: Factor) -> tuple[Factor, Factor]:
    """U√Σ and V√Σ of left·rightᵀ = UΣVᵀ, filled up with zeros to the same width."""
    (left_basis, left_factor), (right_basis, right_factor) = torch.linalg.qr(left), torch.linalg.qr(right)
    u, singular, vt = torch.linalg.svd(left_factor @ right_factor.mT)
    root = torch.where(singular > _DEAD, singular, 0).sqrt()[..., None, :]
    missing = (0, left.shape[-1] - singular.shape[-1])
    return F.pad(left_basis @ u * root, missing), F.pad(right_basis @ vt.mT * root, missing)


def _remove_unwritten(written: Float[Tensor, "b D sources"], attention: BlockWeights) -> None:
    """Takes out of the matrices that read, in place, what lies along directions into which nothing is written.

    The direction 1 stays: it belongs to the shifts.
    """
    few = written.shape[-1] < written.shape[-2]
    u, singular, _ = torch.linalg.svd(written - written.mean(-2, keepdim=True), full_matrices=few)
    singular = F.pad(singular, (0, u.shape[-1] - singular.shape[-1]))
    dead = singular <= _DEAD * singular[..., :1]
    onto = (u * dead[..., None, :]) @ u.mT
    onto = onto - onto.mean(-2, keepdim=True)
    for tensor in (attention.query, attention.key, attention.value):
        tensor.sub_(onto[:, None] @ tensor)


def pulled_back(
    written: Float[Tensor, "b D sources"], attention: BlockWeights
) -> tuple[Float[Tensor, "b D more"], Float[Tensor, "b D more"], Float[Tensor, "b D more"]]:
    """Vectors that turn with the basis in which attention reads: AW, AᵀW and BBᵀW for what is written, W.

    A = W_Qᵀ W_K and B = (W_O W_V)ᵀ of each head depend on no basis inside it. These vectors settle R also along
    directions into which little is written but from which much is read.
    """
    scores, values = attention.query @ attention.key.mT, attention.value @ attention.output
    maps = (scores, scores.mT, values @ values.mT)
    first, second, third = ((m @ written[:, None]).transpose(1, 2).flatten(-2) for m in maps)
    return first, second, third


def _canonical_rotation(groups: list[Float[Tensor, "b D _"]]) -> Float[Tensor, "b D D"]:
    """R with R1 = 1 that brings groups of vectors closest to the template. A group counts for its size, at most 1."""
    vectors = torch.cat([group / (1 + torch.linalg.matrix_norm(group)[:, None, None]) for group in groups], dim=-1)
    target = _template_like(vectors)
    # 1 is orthogonal to centered vectors, so that adding 1 everywhere makes it a singular vector on both sides.
    return closest_orthogonal((target - target.mean(0)) @ (vectors - vectors.mean(-2, keepdim=True)).mT + 1)


def closest_orthogonal(matrix: Float[Tensor, "*batch n n"], *, open_below: float = 0.0) -> Float[Tensor, "*batch n n"]:
    """The orthogonal X that maximizes tr(Xᵀ·matrix): UVᵀ of its singular value decomposition.

    X is zero along directions whose singular value is less than ``open_below`` times the largest.
    """
    u, singular, vt = torch.linalg.svd(matrix)
    return (u * (singular >= open_below * singular[..., :1])[..., None, :]) @ vt


def _template_like(matrix: Float[Tensor, "*batch D r"], offset: int = 0) -> Float[Tensor, "D r"]:
    """A fixed matrix without any structure that weights could share: √2·cos(2π·φ·i·(j + offset·r)²).

    φ is the golden ratio; a formula, and not random numbers, so that it is the same everywhere and forever.
    """
    (rows, columns), golden = matrix.shape[-2:], (1 + sqrt(5)) / 2
    i = torch.arange(1, rows + 1, dtype=torch.float64, device=matrix.device)[:, None]
    j = torch.arange(1, columns + 1, dtype=torch.float64, device=matrix.device) + offset * columns
    return sqrt(2) * torch.cos(2 * pi * torch.frac(golden * i * j.square()))
