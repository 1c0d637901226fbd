"""A fixed number of invariants per checkpoint: spectra, sorted sizes, and products in pinned coordinates.

Every number is unchanged by the whole group. The order of heads is taken out by sorting each number over the heads or
summing over them, the order of units by sorting over them, summing, or taking singular values. So it is lost which
queries and keys belong to which values and outputs of a block; ``invariants`` has that.

Some coordinates are moved by no symmetry: pixels, positions and word vectors pin the basis before the first block,
labels pin the classes. Products in these coordinates mean the same in any two checkpoints, entry by entry. Inputs are
followed forward and classes backward through the network without its nonlinearities,

    X_in = A·E,   X_mid = Σ_s T_s·X_in,   X_out = Σ_j column_j·(row_j·X_mid)
    B_out = Σ_j column_j·row_j of the classifier,   B_mid = Σ_j (B_out·column_j)·row_j,   B_in = Σ_s B_mid·T_s

and at each boundary what is left of rotations are the products of inputs, XᵀX, and of classes, B·Bᵀ. Residual
connections add the share of X that is carried on, and of B on the way back. The inputs of a language model, tokens and
slow modes of its positions, reach every block directly too: their paths to the logits through each head and each MLP
are read one by one (``zoo.transformer.circuits`` has them for people).
"""

from collections.abc import Sequence
from functools import lru_cache
from math import isqrt, pi, sqrt
from types import MappingProxyType

import torch
from jaxtyping import Float
from torch import Tensor

from nfn.symmetry.invariants import ComposedBlock, ComposedTransformer, Units, compose, eigenvalues, norm
from zoo import TransformerSpec, TransformerWeights

_LARGEST_TRIED = 1 << 20  # weights; a spec that came with a file may need more memory than there is
_MOST_INPUTS = 64  # word coordinates, or pixels of a patch; products of all pairs are features
_MOST_TOKENS = 128  # of a vocabulary, the first ones
_MODES = ((0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0))  # frequencies along rows and columns of patches
_TEXT_MODES = tuple((0, frequency) for frequency in range(1, 9))  # of positions that have no mean


def invariant_features(weights: TransformerWeights) -> Float[Tensor, "*batch features"]:
    """The numbers of ``named_features`` side by side: none is changed by the whole group. Differentiable.

    Computed in float64 and rounded once, to the dtype of the weights. They are NaN for a checkpoint with a weight that
    is not finite.
    """
    flat = weights.flat()
    finite = torch.isfinite(flat).all(-1, keepdim=True)
    # eigenvalues of a matrix with NaN raise an error, and the other checkpoints would be lost
    usable = TransformerWeights.from_flat(weights.spec, torch.where(finite, flat, 0.0), check_finite=False)
    return torch.where(finite, torch.cat(list(named_features(usable).values()), dim=-1), torch.nan).to(flat.dtype)


@lru_cache
def feature_layout(spec: TransformerSpec) -> MappingProxyType[str, int]:
    """The names of the features and how many numbers each has."""
    # shapes alone would do, but torch takes seconds to load what computes without memory
    with torch.device("cpu" if spec.num_parameters <= _LARGEST_TRIED else "meta"):
        flat = torch.zeros(1, spec.num_parameters, dtype=torch.float64)
        features = named_features(TransformerWeights.from_flat(spec, flat, check_finite=False))
    return MappingProxyType({name: feature.shape[-1] for name, feature in features.items()})


def named_features(weights: TransformerWeights) -> dict[str, Float[Tensor, "*batch count"]]:
    """Numbers that the whole group leaves as they are, in float64, in groups named after what they describe."""
    spec, composed = weights.spec, compose(weights)
    features: dict[str, Tensor] = {}
    for number, block in enumerate(composed.blocks):
        features |= {f"block {number}, {name}": values for name, values in _block_features(block, spec).items()}
    features |= _classifier_features(composed, spec)
    features |= _input_features(composed, spec) | _class_features(composed, spec)
    return features | _path_features(composed, spec) if spec.causal and spec.residual else features


def _classifier_features(composed: ComposedTransformer, spec: TransformerSpec) -> dict[str, Tensor]:
    """The classifier's units and classes, and at the other end of the network the filters."""
    units = composed.classifier
    features = {"classifier, source": _spectrum(composed.source / sqrt(spec.dim))}
    if units is not None:
        of_units = _unit_features(units, composed.source_factor)
        features |= {f"classifier, {name}": values for name, values in of_units.items()}
    classes = composed.classes if units is None else units.columns.mT
    for name, matrix in (("classes", classes), ("class readings", composed.read_classes(composed.source_factor))):
        rows = _first_tokens(matrix, -2) if units is None else matrix
        products = (1 if units is None else spec.classes) * (rows @ rows.mT)
        features[f"products of {name}"] = _logarithmic(_lower_triangle(products))
        features[f"spectrum of {name}"] = _spectrum(matrix)
    if units is not None:
        features["class biases"] = _logarithmic(sqrt(spec.classes) * units.offset)
    if spec.patch_size is not None:
        filters = _pinned_filters(composed.blocks[0].source, spec)
        features["products of filters"] = _logarithmic(_lower_triangle(filters.mT @ filters))
    return features


def _block_features(block: ComposedBlock, spec: TransformerSpec) -> dict[str, Tensor]:
    """Spectra of the source, of each head's scores and writes with and without the source, and of all writes."""
    source = block.source_factor[..., None, :, :]
    seen = source.mT @ block.scores @ source
    written = block.writes @ source
    traces = torch.stack([scores.diagonal(dim1=-2, dim2=-1).sum(-1) for scores in (seen, block.scores)], dim=-1)
    carried = {} if block.carried is None else {"carried": _logarithmic(sqrt(spec.dim) * block.carried)}
    return (
        carried
        | {
            "source": _spectrum(block.source / sqrt(spec.dim)),
            "scores": _over_heads(_spectrum(seen / sqrt(spec.dim), spec.key_dim)),
            "scores, symmetric part": _over_heads(_logarithmic(_symmetric_spectrum(seen))),
            "plain scores": _over_heads(_spectrum(block.scores, spec.key_dim)),
            "plain scores, symmetric part": _over_heads(_logarithmic(_symmetric_spectrum(block.scores))),
            "scores, trace": _over_heads(_logarithmic(traces)),
            "writes": _over_heads(_spectrum(written, spec.value_dim)),
            "plain writes": _over_heads(_spectrum(block.writes, spec.value_dim)),
            "all writes": _spectrum(written.transpose(-3, -2).flatten(-2)),
        }
        | {f"units, {name}": values for name, values in _unit_features(block.units, block.middle_factor).items()}
    )


def _unit_features(units: Units, source_factor: Float[Tensor, "*batch D D"]) -> dict[str, Tensor]:
    """Sorted sizes and biases of units, spectra of what they read."""
    scale = sqrt(units.rows.shape[-2])
    reading = units.rows @ source_factor
    sizes = units.sizes[..., None]
    return {
        "sizes": _descending(_logarithmic(scale * units.sizes)),
        "biases": _descending(_logarithmic(units.biases)),
        "biases by size": _descending(_logarithmic(scale * units.biases * units.sizes)),
        "reading sizes": _descending(_logarithmic(norm(reading, (-1,)))),
        "rows": _spectrum(units.rows / scale),
        "rows by size": _spectrum(units.rows * sizes),
        "readings": _spectrum(reading / scale),
        "readings by size": _spectrum(reading * sizes),
    }


def _input_features(composed: ComposedTransformer, spec: TransformerSpec) -> dict[str, Float[Tensor, "*batch count"]]:
    """Products of inputs in block 0: pixels, bias and slow modes of the positions, or coordinates of word vectors."""
    root, block, units = sqrt(spec.dim), composed.blocks[0], composed.blocks[0].units
    inputs = _pinned_inputs(block.source, spec)
    per_head = inputs[..., None, :, :]
    scores, written = _bounded_scores(block, per_head), block.writes @ per_head
    middle = root * (written.sum(-3) + _carried_on(block, 0, inputs))
    end = out = root * (units.columns.mT @ (units.rows @ middle) + _carried_on(block, 1, middle))
    for later in composed.blocks[1:]:
        inside = root * (later.writes.sum(-3) @ end + _carried_on(later, 0, end))
        end = root * (later.units.columns.mT @ (later.units.rows @ inside) + _carried_on(later, 1, inside))
    read = composed.read_classes(end)
    read = _first_tokens(read, -2) if spec.causal else read
    return {
        "scores of inputs": _logarithmic(scores.sum(-3)).flatten(-2),
        "squared scores of inputs": _logarithmic(scores.square().sum(-3)).flatten(-2),
        "products of inputs, each head": _logarithmic(10 * _lower_triangle((written.mT @ written).sum(-3))),
        "products of inputs, inside block 0": _logarithmic(_lower_triangle(middle.mT @ middle)),
        "products of inputs, after block 0": _logarithmic(_lower_triangle(out.mT @ out)),
        "inputs by classes": _logarithmic(3 * read).flatten(-2),
    }


def _bounded_scores(block: ComposedBlock, inputs: Float[Tensor, "*batch 1 D k"]) -> Float[Tensor, "*batch h k k"]:
    """XᵀM_sX/√(1 + ‖XᵀM_sX‖²), the scores of each head between inputs X."""
    scores = inputs.mT @ block.scores @ inputs
    return scores / (1 + scores.square().sum((-2, -1), keepdim=True)).sqrt()


def _carried_on(block: ComposedBlock, step: int, x: Float[Tensor, "*batch n m"]) -> Float[Tensor, "*batch n m"] | float:
    """The share of x that a residual connection takes past attention, step 0, or past the MLP, step 1."""
    return 0.0 if block.carried is None else block.carried[..., step, None, None] * x


def _pinned_inputs(source: Float[Tensor, "*batch D sources"], spec: TransformerSpec) -> Float[Tensor, "*batch D k"]:
    """The source of block 0, its positions summed up by their slowest cosine modes; of word vectors the first 64."""
    if (words := spec.vocabulary) is not None:
        modes = _grid_modes(1, spec.tokens, _TEXT_MODES).to(source)
        positions = source[..., words : words + spec.tokens] @ modes
        return torch.cat([_first_tokens(source[..., :words], -1), positions], dim=-1)
    if spec.patch_size is None:
        return source[..., :_MOST_INPUTS]
    side = isqrt(spec.tokens)
    grid = (side, side) if side * side == spec.tokens else (1, spec.tokens)  # one row where patches make no square
    positions = source[..., -spec.tokens :] @ _grid_modes(*grid, _MODES).to(source)
    return torch.cat([_pinned_filters(source, spec), positions], dim=-1)


def _pinned_filters(source: Float[Tensor, "*batch D sources"], spec: TransformerSpec) -> Float[Tensor, "*batch D k"]:
    """The filters of a patch's pixels and their bias; of more than 64 pixels the slowest modes of each channel."""
    size, pixels = spec.patch_size, source.shape[-1] - spec.tokens - 1
    assert size is not None
    if pixels <= _MOST_INPUTS:
        return source[..., : pixels + 1]
    side = range(min(size, max(1, isqrt(_MOST_INPUTS // spec.channels))))
    modes = _grid_modes(size, size, [(down, across) for down in side for across in side]).to(source)
    of_channels = source[..., :pixels].unflatten(-1, (spec.channels, size**2)) @ modes
    return torch.cat([of_channels.flatten(-2)[..., :_MOST_INPUTS], source[..., pixels : pixels + 1]], dim=-1)


def _grid_modes(rows: int, columns: int, modes: Sequence[tuple[int, int]]) -> Float[Tensor, "positions modes"]:
    """Cosine modes of a grid, of unit size, by their frequencies along rows and columns."""

    def waves(count: int, frequencies: list[int]) -> Tensor:
        position = torch.arange(count, dtype=torch.float64) + 0.5
        return torch.stack([torch.cos(pi * position * frequency / count) for frequency in frequencies], dim=-1)

    down, across = waves(rows, [mode[0] for mode in modes]), waves(columns, [mode[1] for mode in modes])
    products = (down[:, None] * across[None]).flatten(0, 1)
    return products / products.norm(dim=0).clamp_min(1e-6)


def _class_features(composed: ComposedTransformer, spec: TransformerSpec) -> dict[str, Float[Tensor, "*batch count"]]:
    """Products of what classes read from every boundary, from the last back to the first."""
    root, classifier, reading = sqrt(spec.dim), composed.classifier, composed.classes
    features: dict[str, Tensor] = {}
    if classifier is None:
        reading = _first_tokens(reading, -2)
    else:
        biases = classifier.columns.mT @ classifier.biases[..., None]
        features["biases by classes"] = _logarithmic(3 * biases).flatten(-2)
    for number, block in reversed(list(enumerate(composed.blocks))):
        of_units = root * reading @ block.units.columns.mT
        middle = of_units @ block.units.rows + root * _carried_on(block, 1, reading)
        of_heads = root * middle[..., None, :, :] @ block.writes
        reading = of_heads.sum(-3) + root * _carried_on(block, 0, middle)
        products = {
            "units": of_units @ of_units.mT,
            "the middle": middle @ middle.mT,
            "heads": (of_heads @ of_heads.mT).sum(-3),
            "the source": reading @ reading.mT,
        }
        features |= {
            f"products of classes at {name} of block {number}": _logarithmic(_lower_triangle(product))
            for name, product in products.items()
        }
        features[f"classes by unit of block {number}"] = _descending(_logarithmic(of_units.square().sum(-2)))
    return features


def _path_features(composed: ComposedTransformer, spec: TransformerSpec) -> dict[str, Float[Tensor, "*batch count"]]:
    """Paths of a language model's tokens and positions: straight to the logits, and through each block alone."""
    root, classes = sqrt(spec.dim), _first_tokens(composed.classes, -2)
    features = {"direct path": _logarithmic(classes @ _pinned_inputs(composed.columns, spec)).flatten(-2)}
    for number, block in enumerate(composed.blocks):
        inputs = _pinned_inputs(block.columns, spec)
        per_head = inputs[..., None, :, :]
        of_heads = root * classes[..., None, :, :] @ (block.writes @ per_head)
        middle = root * _carried_on(block, 0, inputs)
        of_units = root * (classes @ block.units.columns.mT) @ (block.units.rows @ middle)
        paths = {"heads": of_heads.sum(-3), "heads, squared": of_heads.square().sum(-3), "units": of_units}
        if number > 0:
            scores = _bounded_scores(block, per_head)
            paths |= {"scores": scores.sum(-3), "scores, squared": scores.square().sum(-3)}
        features |= {f"block {number}, paths, {name}": _logarithmic(path).flatten(-2) for name, path in paths.items()}
    return features


def _first_tokens(x: Tensor, *dims: int) -> Tensor:
    """At most ``_MOST_TOKENS`` along each dimension."""
    for dim in dims:
        x = x.narrow(dim, 0, min(_MOST_TOKENS, x.shape[dim]))
    return x


def _logarithmic(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """sign(x)·log(1 + 10·|x|)."""
    return x.sign() * torch.log1p(10 * x.abs())


def _descending(x: Float[Tensor, "..."], dim: int = -1) -> Float[Tensor, "..."]:
    return x.sort(dim=dim, descending=True).values


def _over_heads(x: Float[Tensor, "*batch h count"]) -> Float[Tensor, "*batch numbers"]:
    """Each number sorted over the heads."""
    return _descending(x, -2).flatten(-2)


def _lower_triangle(x: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch numbers"]:
    """The entries of a symmetric matrix, each once."""
    row, column = torch.tril_indices(x.shape[-2], x.shape[-1], device=x.device)
    return x[..., row, column]


def _spectrum(x: Float[Tensor, "*batch n m"], count: int | None = None) -> Float[Tensor, "*batch numbers"]:
    """The ``count`` largest singular values of x/√(1 + ‖x‖²) as ½·log(1 + 10⁴·σ²), the largest first, then ‖x‖ so.

    From the eigenvalues of the smaller Gram matrix, whose gradients are finite also where some are equal or zero. Their
    rounding errors are relative to the largest; divided by the size, that is to 1.
    """
    squared_size = x.square().sum((-2, -1))[..., None]
    gram = x @ x.mT if x.shape[-2] <= x.shape[-1] else x.mT @ x
    values = eigenvalues(gram / (1 + squared_size[..., None])).flip(-1)[..., :count]
    return 0.5 * torch.log1p(1e4 * torch.cat([values.clamp_min(0), squared_size], dim=-1))


def _symmetric_spectrum(x: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n"]:
    """The eigenvalues of the symmetric part of x/√(1 + ‖x‖²), which have a sign."""
    symmetric = (x + x.mT) / 2
    return eigenvalues(symmetric / (1 + x.square().sum((-2, -1), keepdim=True)).sqrt())
