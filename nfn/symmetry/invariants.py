"""The invariants of a transformer under its whole symmetry, as named tensors.

At every boundary the inner products of centered writers and readers are all that rotations leave (the first fundamental
theorem for O(n)); sizes and ReLU scales are divided out (``nfn.symmetry.composed`` has A, M_s and T_s). No tensor here
has an axis D, except that before the first block the basis is pinned. What is left of the group permutes the axes of
heads and units of each tensor. Sources of a block are the units of the MLP before it, in their order, and last its
bias; of block 0 they are pixels, bias and positions, or the coordinates of word vectors.

With residual connections no basis is free. What is carried past the attention counts as one more head, the last, which
writes what it reads; what is carried past the MLP are D more sources of the next block, before the units.
"""

from dataclasses import dataclass
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor

from nfn.symmetry.composed import compose
from zoo import TransformerWeights


@dataclass(frozen=True)
class BlockInvariants:
    """What is left of one block. Its writers are the heads, and what is carried where connections are residual."""

    source_products: Float[Tensor, "*batch sources sources"]  # Aᵀ·A
    scores: Float[Tensor, "*batch h sources sources"]  # Aᵀ·M_s·A, attention scores between sources
    write_products: Float[Tensor, "*batch writers sources writers sources"]  # (T_s·A)ᵀ·(T_t·A), all of them of trace 1
    readings: Float[Tensor, "*batch units writers sources"]  # row_j/ρ_j·T_s·A
    unit_biases: Float[Tensor, "*batch units"]  # bias_j/ρ_j
    unit_sizes: Float[Tensor, "*batch units"]  # ρ_j·‖column_j‖, the unit's share of what the MLP writes


@dataclass(frozen=True)
class ClassifierInvariants:
    """What is left of the classifier. Classes have names, so their axis is never permuted."""

    source_products: Float[Tensor, "*batch sources sources"]
    readings: Float[Tensor, "*batch units sources"]  # row_j/ρ_j·A
    unit_biases: Float[Tensor, "*batch units"]
    unit_sizes: Float[Tensor, "*batch units"]
    class_readings: Float[Tensor, "*batch classes units"]  # column_j·ρ_j, centered over classes, as a share of all
    class_biases: Float[Tensor, "*batch classes"]  # centered, as a share of all


@dataclass(frozen=True)
class Invariants:
    """What the whole symmetry leaves of a transformer, block by block and for its classifier."""

    blocks: tuple[BlockInvariants, ...]
    classifier: ClassifierInvariants


def invariants(weights: TransformerWeights) -> Invariants:
    """The invariants of checkpoints [..., d], differentiable, in float64 on the device of the weights."""
    composed = compose(weights)
    blocks = []
    for block in composed.blocks:
        source, writes = block.source[..., None, :, :], block.writes
        if block.carried is not None:
            alike = torch.eye(weights.spec.dim).to(writes).expand_as(writes[..., :1, :, :])
            writes = torch.cat([writes, block.carried[..., :1, None, None] * alike], dim=-3)
        written = (writes @ source).transpose(-3, -2).flatten(-2)
        heads_and_sources = (writes.shape[-3], block.source.shape[-1])
        products = written.mT @ written
        blocks.append(
            BlockInvariants(
                source_products=block.source.mT @ block.source,
                scores=source.mT @ block.scores @ source,
                write_products=products.unflatten(-1, heads_and_sources).unflatten(-3, heads_and_sources),
                readings=sqrt(weights.spec.dim) * (block.units.rows @ written).unflatten(-1, heads_and_sources),
                unit_biases=block.units.biases,
                unit_sizes=block.units.sizes,
            )
        )
    units = composed.classifier
    classifier = ClassifierInvariants(
        source_products=composed.source.mT @ composed.source,
        readings=units.rows @ composed.source,
        unit_biases=units.biases,
        unit_sizes=units.sizes,
        class_readings=units.columns.mT,
        class_biases=units.offset,
    )
    return Invariants(tuple(blocks), classifier)
