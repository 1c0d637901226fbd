"""The invariants of a transformer under its whole symmetry, and the matrices composed so that its bases cancel.

Each boundary (``parts.py`` has the group) is centered, C = I − 11ᵀ/D, and divided by its size, and each ReLU unit
enters through products in which its scale λ cancels. What is left in the tensors of ``ComposedBlock`` is the order of
heads and of units, and a rotation on the axes marked D.

    a_j = ρ_j·κ_j                  the weight of unit j: ρ_j = ‖(C·row_j, bias_j)‖ reads, κ_j = ‖C·column_j‖ writes
    S                              [filters | bias | positions] before block 0, [column_j·ρ_j | bias] later, centered
    A = √D·S/‖S‖                   the source of a block in the size of a LayerNorm's output
    L·Lᵀ = A·Aᵀ + δ·I              the source without its columns, a triangular factor
    M_s = C·W_Qᵀ·W_K·C/√D_k        the scores of head s
    T_s = C·W_O·W_V·C              what head s writes

At every boundary the inner products of centered writers and readers are all that rotations leave (the first fundamental
theorem for O(n)). No tensor of ``Invariants`` has an axis D, except that before the first block the basis is pinned.
What is left of the group permutes the axes of heads and units of each tensor. Sources of a block are the units of the
MLP before it, in their order, and last its bias; of block 0 they are pixels, bias and positions, the coordinates of
word vectors, or learned [E + mean(P) | P − mean(P)]. A language model's unembedding stands for the classifier.

With residual connections a boundary holds, in one basis, what every earlier one held and what was written since: its
size is that of both together, and both are shares of it. What is carried past the attention counts as one more head,
the last, which writes what it reads; what is carried past the MLP are D more sources of the next block before the
units, the triangular factor of the boundary. Where the stream's basis is free, because tokens are learned, all blocks
have the same sources instead: tokens, positions, and the units and biases of the blocks before.
"""

from dataclasses import dataclass, replace
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor

from nfn.symmetry.canonical import UnitLayer
from zoo import TransformerWeights
from zoo.transformer.circuits import without_mean
from zoo.transformer.model import sinusoidal_positions

# Below all sizes: none is zero, and so no gradient of one is infinite.
_TINY = 1e-15
# A boundary smaller than this counts as empty and fades. LN's own ε takes the freedom of scale away at 1e-2 already.
_EMPTY = 1e-4
_SHARPNESS = 16
# δ, what is added to a boundary's second moments: a source that does not fill its space still has a triangular factor.
_RIDGE = 1e-6
# A unit that weighs less than this share of the root mean square, or of the boundary, counts as dead and fades.
_DEAD = 1e-2


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
    columns: Float[Tensor, "*batch D columns"]
    """The source in columns that mean the same whatever the basis; A itself but in a residual stream of free basis."""
    carried: Float[Tensor, "*batch 2"] | None = None
    """Residual connections: the share of the source in the middle, and of the middle in what the block leaves."""


@dataclass(frozen=True)
class ComposedTransformer:
    blocks: tuple[ComposedBlock, ...]
    source: Float[Tensor, "*batch D sources"]  # what the classifier or the unembedding reads from
    source_factor: Float[Tensor, "*batch D D"]
    columns: Float[Tensor, "*batch D columns"]
    classifier: Units | None  # its columns are classes × units, centered over classes
    classes: Float[Tensor, "*batch classes D"]
    """What each class reads, centered over D and over classes: of a classifier without its nonlinearity."""

    def read_classes(self, x: Float[Tensor, "*batch D n"]) -> Float[Tensor, "*batch classes n"]:
        """``classes`` times x."""
        if self.classifier is None:
            return self.classes @ x
        return self.classifier.columns.mT @ (self.classifier.rows @ x)


def compose(weights: TransformerWeights) -> ComposedTransformer:
    """The composed matrices of every block and of the classifier, in float64.

    A boundary's second moments have a direction of size δ beside others of size D: in float32 rounding would exceed it.
    """
    spec, dim = weights.spec, weights.spec.dim
    weights = TransformerWeights.from_flat(spec, weights.flat().double(), check_finite=not weights.flat().is_meta)
    stream = _first_stream(weights)
    stream_size = norm(stream, (-2, -1))
    source = columns = sqrt(dim) * stream / stream_size[..., None, None]
    free_stream = spec.residual and spec.vocabulary is not None
    blocks = []
    for number, block in enumerate(weights.blocks):
        factor = _triangular_factor(source)
        scores = without_mean(block.query @ block.key.mT, -1, -2) / sqrt(spec.key_dim)
        writes = without_mean((block.value @ block.output).mT, -1, -2)
        written = (writes @ factor[..., None, :, :]).transpose(-3, -2).flatten(-2)
        held = torch.cat([stream, written], dim=-1) if spec.residual else written
        size = _boundary_size(held)
        middle = _triangular_factor(sqrt(dim) * held / size[..., None, None])
        passed = size[..., None, None] / sqrt(dim) * middle.mT if spec.residual else None
        units, left_size = _compose_units(UnitLayer.named(weights, f"blocks.{number}"), passed)
        composed = ComposedBlock(source, factor, scores, writes / size[..., None, None, None], middle, units, columns)
        source = sqrt(dim) * torch.cat([units.columns, units.offset[..., None, :]], dim=-2).mT
        if spec.residual:
            carried = torch.stack([stream_size / size, size / left_size], dim=-1)
            composed = replace(composed, carried=carried / sqrt(dim))
            if free_stream:
                columns = torch.cat([(stream_size / left_size)[..., None, None] * columns, source], dim=-1)
            source = torch.cat([carried[..., 1:, None] * middle, source], dim=-1)
            stream_size = left_size
            stream = source * (left_size / sqrt(dim))[..., None, None]
        if not free_stream:
            columns = source
        blocks.append(composed)
    if spec.causal:
        classifier, classes = None, without_mean(weights["unembedding.weight"], -1, -2)
    else:
        classifier, _ = _compose_units(UnitLayer.named(weights, "classifier"))
        classes = classifier.columns.mT @ classifier.rows
    return ComposedTransformer(tuple(blocks), source, _triangular_factor(source), columns, classifier, classes)


def _first_stream(weights: TransformerWeights) -> Float[Tensor, "*batch D sources"]:
    """Before block 0: the columns [filters | bias | positions], of word vectors, which no weight holds, all of C.

    Sinusoidal positions are as large as they are: this boundary has no free scale. Learned tokens come with the mean
    position, and positions without it.
    """
    spec, flat = weights.spec, weights.flat()
    batch = weights.batch_shape
    if spec.vocabulary is not None:
        tokens, positions = weights["embedding.weight"], weights["positions.weight"]
        mean = positions.mean(-2, keepdim=True)
        columns = torch.cat([tokens + mean, positions - mean], dim=-2).mT
    elif spec.patch_size is None:
        columns = torch.eye(spec.dim, dtype=flat.dtype, device=flat.device).expand(*batch, -1, -1)
    else:
        positions = sinusoidal_positions(spec.tokens, spec.dim).to(flat).mT.expand(*batch, -1, -1)
        filters = weights["embedding.weight"].flatten(-3)
        columns = torch.cat([filters, weights["embedding.bias"][..., None], positions], dim=-1)
    return without_mean(columns, -2)


def _compose_units(
    layer: UnitLayer, carried: Float[Tensor, "*batch more out"] | None = None
) -> tuple[Units, Float[Tensor, "*batch"]]:
    """The units, as shares of all that is written and ``carried``, and its size.

    Products instead of quotients: (row_j, bias_j)·κ_j and column_j·ρ_j do not change with λ.

    The direction of a unit's reading is (row_j, bias_j)·κ_j/(a_j + 10⁻²·rms(a)), with a small constant: unit size for
    units that take part, and no division by almost nothing for those that do not.
    """
    rows, biases = without_mean(layer.rows, -1), layer.bias
    columns, offset = without_mean(layer.columns.mT, -1), without_mean(layer.out_bias, -1)
    read = norm(torch.cat([rows, biases[..., None]], dim=-1), (-1,))
    write = norm(columns, (-1,))
    columns = columns * read[..., None]
    held = [columns, offset[..., None, :], *([] if carried is None else [carried])]
    size = _boundary_size(torch.cat(held, dim=-2))[..., None]
    sizes = read * write / size
    floor = _DEAD * (norm(sizes, (-1,)) + _DEAD) / sqrt(sizes.shape[-1])
    fade = write / size / (sizes + floor[..., None])
    units = Units(rows * fade[..., None], biases * fade, sizes, columns / size[..., None], offset / size)
    return units, size[..., 0]


def _triangular_factor(columns: Float[Tensor, "*batch D k"]) -> Float[Tensor, "*batch D D"]:
    """The L of L·Lᵀ = A·Aᵀ + δ·I: a rotation of A's rows from the left rotates L's, up to one from the right."""
    ridge = _RIDGE * torch.eye(columns.shape[-2], dtype=columns.dtype, device=columns.device)
    return torch.linalg.cholesky(columns @ columns.mT + ridge)


def _boundary_size(x: Float[Tensor, "*batch n m"]) -> Float[Tensor, "*batch"]:
    """(‖x‖¹⁶ + 10⁻⁶⁴)^(1/16): the size to rounding above 10⁻³, never less than 10⁻⁴, and smooth between them."""
    size = norm(x, (-2, -1))
    larger = size.detach().clamp_min(_EMPTY)  # a common factor, so that no power overflows
    return larger * ((size / larger) ** _SHARPNESS + (_EMPTY / larger) ** _SHARPNESS) ** (1 / _SHARPNESS)


def norm(x: Float[Tensor, "..."], dims: tuple[int, ...]) -> Float[Tensor, "..."]:
    """√(Σx² + 10⁻³⁰) over the given dimensions; its gradient at zero is zero."""
    return (x.square().sum(dims) + _TINY**2).sqrt()


@dataclass(frozen=True)
class _BlockInvariants:
    """The invariants of one block. Its writers are the heads, and what is carried where connections are residual."""

    source_products: Float[Tensor, "*batch sources sources"]  # Aᵀ·A
    scores: Float[Tensor, "*batch h sources sources"]  # Aᵀ·M_s·A, attention scores between sources
    write_products: Float[Tensor, "*batch writers sources writers sources"]  # (T_s·A)ᵀ·(T_t·A), all of them of trace 1
    readings: Float[Tensor, "*batch units writers sources"]  # row_j/ρ_j·T_s·A
    unit_biases: Float[Tensor, "*batch units"]  # bias_j/ρ_j
    unit_sizes: Float[Tensor, "*batch units"]  # ρ_j·‖column_j‖, the unit's share of what the MLP writes


@dataclass(frozen=True)
class _UnembeddingInvariants:
    """The invariants of the unembedding. Tokens have names, so their axis is never permuted."""

    source_products: Float[Tensor, "*batch sources sources"]
    class_readings: Float[Tensor, "*batch classes sources"]  # U·A
    class_products: Float[Tensor, "*batch classes classes"]  # U·Uᵀ


@dataclass(frozen=True)
class _ClassifierInvariants:
    """The invariants of the classifier. Classes have names, so their axis is never permuted."""

    source_products: Float[Tensor, "*batch sources sources"]
    readings: Float[Tensor, "*batch units sources"]  # row_j/ρ_j·A
    unit_biases: Float[Tensor, "*batch units"]
    unit_sizes: Float[Tensor, "*batch units"]
    class_readings: Float[Tensor, "*batch classes units"]  # column_j·ρ_j, centered over classes, as a share of all
    class_biases: Float[Tensor, "*batch classes"]  # centered, as a share of all


@dataclass(frozen=True)
class Invariants:
    """The invariants of a transformer under its whole symmetry, block by block and for its classifier."""

    blocks: tuple[_BlockInvariants, ...]
    classifier: _ClassifierInvariants | _UnembeddingInvariants


def invariants(weights: TransformerWeights) -> Invariants:
    """The invariants of checkpoints [..., d], differentiable, in float64 on the device of the weights."""
    composed = compose(weights)
    blocks = []
    for block in composed.blocks:
        source, writes = block.columns[..., None, :, :], block.writes
        if block.carried is not None:
            alike = torch.eye(weights.spec.dim).to(writes).expand_as(writes[..., :1, :, :])
            writes = torch.cat([writes, block.carried[..., :1, None, None] * alike], dim=-3)
        written = (writes @ source).transpose(-3, -2).flatten(-2)
        heads_and_sources = (writes.shape[-3], block.columns.shape[-1])
        products = written.mT @ written
        blocks.append(
            _BlockInvariants(
                source_products=block.columns.mT @ block.columns,
                scores=source.mT @ block.scores @ source,
                write_products=products.unflatten(-1, heads_and_sources).unflatten(-3, heads_and_sources),
                readings=sqrt(weights.spec.dim) * (block.units.rows @ written).unflatten(-1, heads_and_sources),
                unit_biases=block.units.biases,
                unit_sizes=block.units.sizes,
            )
        )
    units, products = composed.classifier, composed.columns.mT @ composed.columns
    if units is None:
        classes = composed.classes
        unembedding = _UnembeddingInvariants(products, classes @ composed.columns, classes @ classes.mT)
        return Invariants(tuple(blocks), unembedding)
    classifier = _ClassifierInvariants(
        source_products=products,
        readings=units.rows @ composed.columns,
        unit_biases=units.biases,
        unit_sizes=units.sizes,
        class_readings=units.columns.mT,
        class_biases=units.offset,
    )
    return Invariants(tuple(blocks), classifier)


def eigenvalues(symmetric: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n"]:
    """Ascending. A GPU's batched algorithm gives up on some matrices with nearly equal eigenvalues; LAPACK does not."""
    try:
        return torch.linalg.eigvalsh(symmetric)
    except torch.linalg.LinAlgError:  # pyright: ignore[reportPrivateImportUsage]
        return torch.linalg.eigvalsh(symmetric.cpu()).to(symmetric.device)
