"""One representative of each orbit of the whole group: the same function, the same shape, nothing left to choose.

``canonicalize`` fixes one part of the group after the other. Sizes below do not depend on any basis:

    shifts           writers and readers are centered
    boundary_scales  what writes into a boundary has size √D: Σ_heads ‖W_O W_V‖² = D inside a block, and after it
                     Σ_units ρ_j²γ_j² + ‖b‖² = D, where ρ_j = ‖(row_j, bias_j)‖ and γ_j = ‖column_j‖ of a ReLU unit
    unit_scales      ‖(row_j, bias_j)‖ = ‖column_j‖
    units            sorted by ρ_j·γ_j, the largest first
    heads            sorted by ‖W_Qᵀ W_K‖ + ‖W_O W_V‖ / √Σ_heads ‖W_O W_V‖², the largest first
    query_key        W_Qᵀ W_K = UΣVᵀ becomes W_Q = (U√Σ·X)ᵀ, W_K = (V√Σ·X)ᵀ
    value_output     (W_O W_V)ᵀ = UΣVᵀ becomes W_V = (U√Σ·X)ᵀ, W_O = V√Σ·X
    rotations        R, as X above, is the orthogonal matrix that brings what it acts on closest to a fixed template
    logits           Σ_units ρ_j²γ_j² + ‖b‖² = 1 in the last layer, centered over the classes

The closest orthogonal matrix (Procrustes) needs no gaps: unlike singular vectors it does not jump where singular values
cross, so equal singular values are handled like any others. What is undecided, or decided by rounding:

- Units of equal size, and heads of equal size, keep the order they come in.
- What adds nothing to the function becomes zero, with all that belongs to it: units with ρ_j·γ_j ≤ ``_DEAD``, singular
  values of heads, and boundaries into which less than ``DEAD_BOUNDARY`` is written, which ε of the LayerNorm silences.
- Directions between two blocks into which nothing is written are taken out of the matrices that read there.
- A template that is orthogonal to what is compared with it, a set of measure zero.

Boundary scales are part of the group up to ε of the LayerNorm only: the result computes the function of the weights
with an ε that is small beside their activations. Leave that part out for the function to rounding.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import pi, sqrt

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from nfn.symmetry.group import pick
from nfn.symmetry.parts import Part, centered, check_parts
from zoo import BlockWeights, TransformerWeights

_DEAD = 1e-12
"""Below this a singular value of a head, and the size of a unit relative to its layer, count as zero.

Rounding leaves up to 1e-15; attention scores, or what LayerNorm makes of the rest, move by no more than this.
"""
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
    layers = [UnitLayer.named(result, f"blocks.{block}") for block in range(spec.blocks)]
    classifier = UnitLayer.named(result, "classifier")
    if "boundary_scales" in chosen:
        for layer in layers:
            layer.scale_to(sqrt(spec.dim), DEAD_BOUNDARY)
    if "logits" in chosen:
        classifier.scale_to(1.0, 0.0)
    for layer in (*layers, classifier):
        _fix_units(layer, chosen)
    for block, layer in enumerate(layers):
        attention = result.blocks[block]
        if block > 0 and "rotations" in chosen:
            _remove_unwritten(layers[block - 1].written(), attention)
        _fix_sizes_of_heads(attention, chosen)
        if block > 0 and "rotations" in chosen:
            written = layers[block - 1].written()
            rotation = _canonical_rotation([written, *pulled_back(written, attention)])
            layers[block - 1].rotate_output(rotation)
            for tensor in (attention.query, attention.key, attention.value):
                tensor.copy_(rotation[:, None] @ tensor)
        _fix_bases_of_heads(attention, chosen)
        if "rotations" in chosen:
            output = attention.output.flatten(1, 2).mT
            rotation = _canonical_rotation([output, layer.rows.mT])
            attention.output.copy_(attention.output @ rotation[:, None].mT)
            layer.rows.copy_(layer.rows @ rotation.mT)
    if "rotations" in chosen:
        rotation = _canonical_rotation([layers[-1].written(), classifier.rows.mT])
        layers[-1].rotate_output(rotation)
        classifier.rows.copy_(classifier.rows @ rotation.mT)
    fixed = result.flat().reshape(*batch, spec.num_parameters).to(dtype)
    return TransformerWeights.from_flat(spec, fixed)


@dataclass(frozen=True)
class UnitLayer:
    """The ReLU units of an MLP or of the classifier, as views of the weights."""

    rows: Float[Tensor, "b units D"]
    bias: Float[Tensor, "b units"]
    columns: Float[Tensor, "b out units"]
    out_bias: Float[Tensor, "b out"]

    @staticmethod
    def named(weights: TransformerWeights, prefix: str) -> "UnitLayer":
        names = ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")
        return UnitLayer(*(weights[f"{prefix}.{name}"] for name in names))

    def reading(self) -> Float[Tensor, "b units"]:
        """ρ_j = ‖(row_j, bias_j)‖."""
        return torch.linalg.vector_norm(torch.cat([self.rows, self.bias[..., None]], dim=-1), dim=-1)

    def writing(self) -> Float[Tensor, "b units"]:
        """γ_j = ‖column_j‖."""
        return torch.linalg.vector_norm(self.columns, dim=-2)

    def size(self) -> Float[Tensor, " b"]:
        """√(Σ_j ρ_j²γ_j² + ‖b‖²), unchanged by scales and order of the units."""
        sizes = torch.cat([self.reading() * self.writing(), self.out_bias], dim=-1)
        return torch.linalg.vector_norm(sizes, dim=-1)

    def written(self) -> Float[Tensor, "b out sources"]:
        """Columns and bias side by side: all that the layer writes."""
        return torch.cat([self.columns, self.out_bias[..., None]], dim=-1)

    def written_in_unit_size(self, order: Tensor | None = None) -> Float[Tensor, "b out sources"]:
        """ρ_j·column_j of each unit, in some order, and the bias: unchanged by the scales of the units."""
        columns = self.columns * self.reading()[..., None, :]
        return torch.cat([columns if order is None else columns[..., order], self.out_bias[..., None]], dim=-1)

    def scale_to(self, size: float, smallest: float) -> None:
        """Multiplies columns and bias so that ``size`` is this; to zero where it is not above ``smallest``."""
        now = self.size()
        factor = torch.where(now > smallest, size / torch.where(now > 0, now, 1), 0)
        self.columns.mul_(factor[:, None, None])
        self.out_bias.mul_(factor[:, None])

    def rotate_output(self, rotation: Float[Tensor, "b out out"]) -> None:
        self.columns.copy_(rotation @ self.columns)
        self.out_bias.copy_((rotation @ self.out_bias[..., None])[..., 0])


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
        order = size.argsort(dim=-1, descending=True, stable=True)
        layer.rows.copy_(pick(layer.rows, order, -2))
        layer.bias.copy_(pick(layer.bias, order, -1))
        layer.columns.copy_(pick(layer.columns, order[..., None, :], -1))


def _fix_sizes_of_heads(attention: BlockWeights, parts: tuple[Part, ...]) -> None:
    """The scale of what a block's attention writes, and the order of its heads, in place."""
    writing = torch.linalg.matrix_norm(attention.value @ attention.output)
    size = torch.linalg.vector_norm(writing, dim=-1, keepdim=True)
    share = torch.where(size > DEAD_BOUNDARY, writing / torch.where(size > 0, size, 1), 0)
    if "boundary_scales" in parts:
        dim = attention.query.shape[-2]
        factor = torch.where(size > DEAD_BOUNDARY, sqrt(dim) / torch.where(size > 0, size, 1), 0)
        attention.output.mul_(factor[..., None, None])
    if "heads" in parts:
        size = torch.linalg.matrix_norm(attention.query @ attention.key.mT) + share
        order = size.argsort(dim=-1, descending=True, stable=True)
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


def _balanced(
    left: Float[Tensor, "*batch D r"], right: Float[Tensor, "*batch D r"]
) -> tuple[Float[Tensor, "*batch D r"], Float[Tensor, "*batch D r"]]:
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


def closest_orthogonal(matrix: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    """The orthogonal X that maximizes tr(Xᵀ·matrix): UVᵀ of its singular value decomposition."""
    u, _, vt = torch.linalg.svd(matrix)
    return u @ vt


def _template_like(matrix: Float[Tensor, "*batch D r"], offset: int = 0) -> Float[Tensor, "D r"]:
    """A fixed matrix without any structure that weights could share: √2·cos(2π·φ·i·(j + offset·r)²).

    φ is the golden ratio; a formula, and not random numbers, so that it is the same everywhere and forever.
    """
    (rows, columns), golden = matrix.shape[-2:], (1 + sqrt(5)) / 2
    i = torch.arange(1, rows + 1, dtype=torch.float64, device=matrix.device)[:, None]
    j = torch.arange(1, columns + 1, dtype=torch.float64, device=matrix.device) + offset * columns
    return sqrt(2) * torch.cos(2 * pi * torch.frac(golden * i * j.square()))
