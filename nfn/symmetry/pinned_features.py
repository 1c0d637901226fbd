"""Invariants in coordinates that no symmetry moves: those of the inputs, and the classes.

Pixels, positions and word vectors pin the basis before the first block, labels pin the classes. So the products below
mean the same in any two checkpoints, entry by entry. Inputs are followed forward and classes backward through the
network without its nonlinearities,

    X_in = A·E,   X_mid = Σ_s T_s·X_in,   X_out = Σ_j column_j·(row_j·X_mid)
    B_out = Σ_j column_j·row_j of the classifier,   B_mid = Σ_j (B_out·column_j)·row_j,   B_in = Σ_s B_mid·T_s

and at each boundary what is left of rotations are the products of inputs, XᵀX, and of classes, B·Bᵀ. Residual
connections add the share of X that is carried on, and of B on the way back.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from nfn.symmetry.composed import ComposedBlock, ComposedTransformer
from nfn.symmetry.scales import descending, logarithmic, lower_triangle
from zoo import TransformerSpec

MOST_INPUTS = 64  # word coordinates, or pixels of a patch; products of all pairs are features
MODES = ((0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0))  # frequencies along rows and columns of patches


def input_features(composed: ComposedTransformer, spec: TransformerSpec) -> dict[str, Float[Tensor, "*batch count"]]:
    """What block 0 does to pixels, bias and slow modes of the positions, or to the coordinates of word vectors."""
    root, block, units = math.sqrt(spec.dim), composed.blocks[0], composed.blocks[0].units
    inputs = pinned_inputs(block.source, spec)
    per_head = inputs[..., None, :, :]
    scores = per_head.mT @ block.scores @ per_head
    scores = scores / (1 + scores.square().sum((-2, -1), keepdim=True)).sqrt()
    written = block.writes @ per_head
    middle = root * (written.sum(-3) + carried_on(block, 0, inputs))
    out = root * (units.columns.mT @ (units.rows @ middle) + carried_on(block, 1, middle))
    ends = [out]
    for later in composed.blocks[1:]:
        middle_later = root * (later.writes.sum(-3) @ ends[-1] + carried_on(later, 0, ends[-1]))
        mapped = later.units.columns.mT @ (later.units.rows @ middle_later)
        ends.append(root * (mapped + carried_on(later, 1, middle_later)))
    classifier = composed.classifier
    return {
        "scores of inputs": logarithmic(scores.sum(-3)).flatten(-2),
        "squared scores of inputs": logarithmic(scores.square().sum(-3)).flatten(-2),
        "products of inputs, each head": logarithmic(10 * lower_triangle((written.mT @ written).sum(-3))),
        "products of inputs, inside block 0": logarithmic(lower_triangle(middle.mT @ middle)),
        "products of inputs, after block 0": logarithmic(lower_triangle(out.mT @ out)),
        "inputs by classes": logarithmic(3 * classifier.columns.mT @ (classifier.rows @ ends[-1])).flatten(-2),
    }


def carried_on(block: ComposedBlock, step: int, x: Float[Tensor, "*batch n m"]) -> Float[Tensor, "*batch n m"] | float:
    """The share of x that a residual connection takes past attention, step 0, or past the MLP, step 1."""
    return 0.0 if block.carried is None else block.carried[..., step, None, None] * x


def pinned_inputs(source: Float[Tensor, "*batch D sources"], spec: TransformerSpec) -> Float[Tensor, "*batch D k"]:
    """The source of block 0, its positions summed up by their slowest cosine modes; of word vectors the first 64."""
    if spec.patch_size is None:
        return source[..., :MOST_INPUTS]
    positions = source[..., -spec.tokens :] @ position_modes(spec.tokens).to(source)
    return torch.cat([pinned_filters(source, spec), positions], dim=-1)


def pinned_filters(source: Float[Tensor, "*batch D sources"], spec: TransformerSpec) -> Float[Tensor, "*batch D k"]:
    """The filters of a patch's pixels and their bias; of more than 64 pixels the slowest modes of each channel."""
    size, pixels = spec.patch_size, source.shape[-1] - spec.tokens - 1
    assert size is not None
    if pixels <= MOST_INPUTS:
        return source[..., : pixels + 1]
    side = range(min(size, max(1, math.isqrt(MOST_INPUTS // spec.channels))))
    modes = grid_modes(size, size, [(down, across) for down in side for across in side]).to(source)
    of_channels = source[..., :pixels].unflatten(-1, (spec.channels, size**2)) @ modes
    return torch.cat([of_channels.flatten(-2)[..., :MOST_INPUTS], source[..., pixels : pixels + 1]], dim=-1)


def position_modes(tokens: int) -> Float[Tensor, "tokens modes"]:
    """Slow modes of the grid of patches: a square, or one row where the patches do not make one."""
    side = math.isqrt(tokens)
    rows, columns = (side, side) if side * side == tokens else (1, tokens)
    return grid_modes(rows, columns, MODES)


def grid_modes(rows: int, columns: int, modes: Sequence[tuple[int, int]]) -> Float[Tensor, "places modes"]:
    """Cosine modes of a grid, of unit size, by their frequencies along rows and columns."""

    def waves(count: int, frequencies: list[int]) -> Tensor:
        place = torch.arange(count, dtype=torch.float64) + 0.5
        return torch.stack([torch.cos(math.pi * place * frequency / count) for frequency in frequencies], dim=-1)

    down, across = waves(rows, [mode[0] for mode in modes]), waves(columns, [mode[1] for mode in modes])
    products = (down[:, None] * across[None]).flatten(0, 1)
    return products / products.norm(dim=0).clamp_min(1e-6)


def class_features(composed: ComposedTransformer, spec: TransformerSpec) -> dict[str, Float[Tensor, "*batch count"]]:
    """What classes read from every boundary, from the last back to the first, as products of classes."""
    root, classifier = math.sqrt(spec.dim), composed.classifier
    reading = classifier.columns.mT @ classifier.rows
    features = {
        "biases by classes": logarithmic(3 * (classifier.columns.mT @ classifier.biases[..., None])).flatten(-2)
    }
    for number, block in reversed(list(enumerate(composed.blocks))):
        of_units = root * reading @ block.units.columns.mT
        middle = of_units @ block.units.rows + root * carried_on(block, 1, reading)
        of_heads = root * middle[..., None, :, :] @ block.writes
        reading = of_heads.sum(-3) + root * carried_on(block, 0, middle)
        products = {
            "units": of_units @ of_units.mT,
            "the middle": middle @ middle.mT,
            "heads": (of_heads @ of_heads.mT).sum(-3),
            "the source": reading @ reading.mT,
        }
        features |= {
            f"products of classes at {name} of block {number}": logarithmic(lower_triangle(product))
            for name, product in products.items()
        }
        features[f"classes by unit of block {number}"] = descending(logarithmic(of_units.square().sum(-2)))
    return features
