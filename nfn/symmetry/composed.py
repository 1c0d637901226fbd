"""The matrices of a transformer composed so that its bases cancel: what the invariants are made of.

Every LayerNorm of the zoo is a *boundary*: LN(x) = √D·Cx/‖Cx‖ up to its ε, C = I − 11ᵀ/D, without gain and bias. The
matrices that write into a boundary may be rotated by any R ∈ O(D) with R1 = 1 if those that read from it are rotated
back, shifted along 1, and scaled by any c > 0; only the basis before the first block is pinned, by the positions and
the word vectors. A ReLU unit may be scaled, (row, bias)·λ and column/λ. Here each boundary is centered and divided by
its size, and each unit enters through products in which λ cancels. What is left in the tensors of ``ComposedBlock`` is
the order of heads and of units, and a rotation on the axes marked D.

    a_j = ρ_j·κ_j                  the weight of unit j: ρ_j = ‖(C·row_j, bias_j)‖ reads, κ_j = ‖C·column_j‖ writes
    S                              [filters | bias | positions] before block 0, [column_j·ρ_j | bias] later, centered
    A = √D·S/‖S‖                   the source of a block in the size of a LayerNorm's output
    L·Lᵀ = A·Aᵀ + δ·I              the source without its columns, a triangular factor
    M_s = C·W_Qᵀ·W_K·C/√D_k        the scores of head s
    T_s = C·W_O·W_V·C              what head s writes

With residual connections a boundary holds, in one pinned basis, what every earlier one held and what was written since:
its size is that of both together, and both are shares of it. What is carried on enters the next source through the
triangular factor of the boundary, D columns before those of the units.
"""

from dataclasses import dataclass, replace
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor

from zoo import TransformerWeights
from zoo.transformer.model import sinusoidal_positions

# Below all sizes: none is zero, and so no gradient of one is infinite.
TINY = 1e-15
# A boundary smaller than this counts as empty and fades. LN's own ε takes the freedom of scale away at 1e-2 already.
EMPTY = 1e-4
SHARPNESS = 16
# δ, what is added to a boundary's second moments: a source that does not fill its space still has a triangular factor.
RIDGE = 1e-6
# A unit that weighs less than this share of the root mean square, or of the boundary, counts as dead and fades.
DEAD = 1e-2


@dataclass(frozen=True)
class Units:
    """The ReLU units of one MLP. Between rows and columns their scales cancel."""

    rows: Float[Tensor, "*batch units D"]  # C·row_j/ρ_j, faded to zero for dead units
    biases: Float[Tensor, "*batch units"]  # bias_j/ρ_j, faded likewise
    sizes: Float[Tensor, "*batch units"]  # ρ_j·‖column_j‖ as a share of all that the MLP writes
    columns: Float[Tensor, "*batch units out"]  # column_j·ρ_j as a share of all that the MLP writes
    offset: Float[Tensor, "*batch out"]  # the MLP's last bias as a share of all that it writes


@dataclass(frozen=True)
class ComposedBlock:
    """One block between the boundary it reads and the one it writes."""

    source: Float[Tensor, "*batch D sources"]  # A
    source_factor: Float[Tensor, "*batch D D"]  # L
    scores: Float[Tensor, "*batch h D D"]  # M_s
    writes: Float[Tensor, "*batch h D D"]  # T_s, divided by the size of all [T_s·L]
    middle_factor: Float[Tensor, "*batch D D"]  # the L of the boundary inside the block, from all T_s·L
    units: Units
    carried: Float[Tensor, "*batch 2"] | None = None
    """Residual connections: the share of the source in the middle, and of the middle in what the block leaves."""


@dataclass(frozen=True)
class ComposedTransformer:
    blocks: tuple[ComposedBlock, ...]
    source: Float[Tensor, "*batch D sources"]  # what the classifier reads from
    source_factor: Float[Tensor, "*batch D D"]
    classifier: Units  # its columns are classes × units, centered over classes


def compose(weights: TransformerWeights) -> ComposedTransformer:
    """The composed matrices of every block and of the classifier, in float64.

    A boundary's second moments have a direction of size δ beside others of size D: in float32 rounding would exceed it.
    """
    spec, dim = weights.spec, weights.spec.dim
    weights = TransformerWeights.from_flat(spec, weights.flat().double(), check_finite=False)
    stream = first_stream(weights)
    stream_size = norm(stream, (-2, -1))
    source = sqrt(dim) * stream / stream_size[..., None, None]
    blocks = []
    for number, block in enumerate(weights.blocks):
        factor = triangular_factor(source)
        scores = centered(centered(block.query @ block.key.mT, -1), -2) / sqrt(spec.key_dim)
        writes = centered(centered((block.value @ block.output).mT, -1), -2)
        written = (writes @ factor[..., None, :, :]).transpose(-3, -2).flatten(-2)
        held = torch.cat([stream, written], dim=-1) if spec.residual else written
        size = boundary_size(held)
        middle = triangular_factor(sqrt(dim) * held / size[..., None, None])
        units, left_size = compose_units(
            weights[f"blocks.{number}.fc1.weight"],
            block.bias_a,
            centered(block.weight_b, -1),
            centered(block.bias_b, -1),
            size[..., None, None] / sqrt(dim) * middle.mT if spec.residual else None,
        )
        composed = ComposedBlock(source, factor, scores, writes / size[..., None, None, None], middle, units)
        source = sqrt(dim) * torch.cat([units.columns, units.offset[..., None, :]], dim=-2).mT
        if spec.residual:
            carried = torch.stack([stream_size / size, size / left_size], dim=-1)
            composed = replace(composed, carried=carried / sqrt(dim))
            source = torch.cat([carried[..., 1:, None] * middle, source], dim=-1)
            stream_size = left_size
            stream = source * (left_size / sqrt(dim))[..., None, None]
        blocks.append(composed)
    classifier, _ = compose_units(
        weights["classifier.fc1.weight"],
        weights["classifier.fc1.bias"],
        centered(weights["classifier.fc2.weight"].mT, -1),
        centered(weights["classifier.fc2.bias"], -1),
    )
    return ComposedTransformer(tuple(blocks), source, triangular_factor(source), classifier)


def first_stream(weights: TransformerWeights) -> Float[Tensor, "*batch D sources"]:
    """Before block 0: the columns [filters | bias | positions], of word vectors, which no weight holds, all of C.

    The positions are as large as they are: this boundary has no free scale.
    """
    spec, flat = weights.spec, weights.flat()
    batch = weights.batch_shape
    if spec.patch_size is None:
        columns = torch.eye(spec.dim, dtype=flat.dtype, device=flat.device).expand(*batch, -1, -1)
    else:
        positions = sinusoidal_positions(spec.tokens, spec.dim).to(flat).mT.expand(*batch, -1, -1)
        filters = weights["embedding.weight"].flatten(-3)
        columns = torch.cat([filters, weights["embedding.bias"][..., None], positions], dim=-1)
    return centered(columns, -2)


def compose_units(
    rows: Float[Tensor, "*batch units D"],
    biases: Float[Tensor, "*batch units"],
    columns: Float[Tensor, "*batch units out"],
    offset: Float[Tensor, "*batch out"],
    carried: Float[Tensor, "*batch more out"] | None = None,
) -> tuple[Units, Float[Tensor, "*batch"]]:
    """The units, as shares of all that is written and ``carried``, and its size.

    Products instead of quotients: (row_j, bias_j)·κ_j and column_j·ρ_j do not change with λ.

    The direction of a unit's reading is (row_j, bias_j)·κ_j/(a_j + 10⁻²·rms(a)), with a small constant: unit size for
    units that take part, and no division by almost nothing for those that do not.
    """
    rows = centered(rows, -1)
    read = norm(torch.cat([rows, biases[..., None]], dim=-1), (-1,))
    write = norm(columns, (-1,))
    columns = columns * read[..., None]
    held = [columns, offset[..., None, :], *([] if carried is None else [carried])]
    size = boundary_size(torch.cat(held, dim=-2))[..., None]
    sizes = read * write / size
    floor = DEAD * (norm(sizes, (-1,)) + DEAD) / sqrt(sizes.shape[-1])
    fade = write / size / (sizes + floor[..., None])
    units = Units(rows * fade[..., None], biases * fade, sizes, columns / size[..., None], offset / size)
    return units, size[..., 0]


def triangular_factor(columns: Float[Tensor, "*batch D k"]) -> Float[Tensor, "*batch D D"]:
    """The L of L·Lᵀ = A·Aᵀ + δ·I: a rotation of A's rows from the left rotates L's, up to one from the right."""
    ridge = RIDGE * torch.eye(columns.shape[-2], dtype=columns.dtype, device=columns.device)
    return torch.linalg.cholesky(columns @ columns.mT + ridge)


def centered(x: Float[Tensor, "..."], dim: int) -> Float[Tensor, "..."]:
    return x - x.mean(dim, keepdim=True)


def boundary_size(x: Float[Tensor, "*batch n m"]) -> Float[Tensor, "*batch"]:
    """(‖x‖¹⁶ + 10⁻⁶⁴)^(1/16): the size to rounding above 10⁻³, never less than 10⁻⁴, and smooth between them."""
    size = norm(x, (-2, -1))
    larger = size.detach().clamp_min(EMPTY)  # a common factor, so that no power overflows
    return larger * ((size / larger) ** SHARPNESS + (EMPTY / larger) ** SHARPNESS) ** (1 / SHARPNESS)


def norm(x: Float[Tensor, "..."], dims: tuple[int, ...]) -> Float[Tensor, "..."]:
    """√(Σx² + 10⁻³⁰) over the given dimensions; its gradient at zero is zero."""
    return (x.square().sum(dims) + TINY**2).sqrt()
