"""A fixed number of invariants per checkpoint: spectra, sorted sizes, and what stands in pinned coordinates.

Every number is unchanged by the whole group. The order of heads is taken out by sorting each number over the heads, the
order of units by sorting over them or by taking singular values.
"""

from functools import lru_cache
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor

from nfn.symmetry.composed import ComposedBlock, Units, compose, norm
from zoo import TransformerSpec, TransformerWeights


def invariant_features(weights: TransformerWeights) -> Float[Tensor, "*batch features"]:
    """All features side by side, NaN for a checkpoint with a weight that is not finite. Differentiable."""
    flat = weights.flat()
    finite = torch.isfinite(flat).all(-1, keepdim=True)
    # eigenvalues of a matrix with NaN raise an error, which would take the other checkpoints along
    usable = TransformerWeights.from_flat(weights.spec, torch.where(finite, flat, 0.0), check_finite=False)
    return torch.where(finite, torch.cat(list(named_features(usable).values()), dim=-1), torch.nan)


@lru_cache
def feature_count(spec: TransformerSpec) -> int:
    """The number of features, from shapes alone."""
    flat = torch.empty(1, spec.num_parameters, device="meta")
    with torch.device("meta"):
        features = named_features(TransformerWeights.from_flat(spec, flat, check_finite=False))
    return sum(feature.shape[-1] for feature in features.values())


def named_features(weights: TransformerWeights) -> dict[str, Float[Tensor, "*batch count"]]:
    """The features by name."""
    spec, composed = weights.spec, compose(weights)
    features: dict[str, Tensor] = {}
    for number, block in enumerate(composed.blocks):
        features |= {f"block {number}, {name}": values for name, values in block_features(block, spec).items()}
    if spec.patch_size is not None:
        filters = composed.blocks[0].source[..., : spec.patch_size**2 + 1]
        features["products of filters"] = logarithmic(lower_triangle(filters.mT @ filters))
    units = composed.classifier
    features["classifier, source"] = spectrum(composed.source / sqrt(spec.dim))
    features |= {f"classifier, {name}": values for name, values in unit_features(units, composed.source_factor).items()}
    reading = units.columns.mT @ (units.rows @ composed.source_factor)
    for name, matrix in (("classes", units.columns.mT), ("class readings", reading)):
        features[f"products of {name}"] = logarithmic(spec.classes * lower_triangle(matrix @ matrix.mT))
        features[f"spectrum of {name}"] = spectrum(matrix)
    features["class biases"] = logarithmic(sqrt(spec.classes) * units.offset)
    return features


def block_features(block: ComposedBlock, spec: TransformerSpec) -> dict[str, Tensor]:
    """Spectra of the source, of each head's scores and writes with and without the source, and of all writes."""
    source = block.source_factor[..., None, :, :]
    seen = source.mT @ block.scores @ source
    written = block.writes @ source
    traces = torch.stack([scores.diagonal(dim1=-2, dim2=-1).sum(-1) for scores in (seen, block.scores)], dim=-1)
    return {
        "source": spectrum(block.source / sqrt(spec.dim)),
        "scores": over_heads(spectrum(seen / sqrt(spec.dim), spec.key_dim)),
        "scores, symmetric part": over_heads(logarithmic(symmetric_spectrum(seen))),
        "plain scores": over_heads(spectrum(block.scores, spec.key_dim)),
        "plain scores, symmetric part": over_heads(logarithmic(symmetric_spectrum(block.scores))),
        "scores, trace": over_heads(logarithmic(traces)),
        "writes": over_heads(spectrum(written, spec.value_dim)),
        "plain writes": over_heads(spectrum(block.writes, spec.value_dim)),
        "all writes": spectrum(written.transpose(-3, -2).flatten(-2)),
    } | {f"units, {name}": values for name, values in unit_features(block.units, block.middle_factor).items()}


def unit_features(units: Units, source_factor: Float[Tensor, "*batch D D"]) -> dict[str, Tensor]:
    """Sorted sizes and biases of units, spectra of what they read."""
    scale = sqrt(units.rows.shape[-2])
    reading = units.rows @ source_factor
    sizes = units.sizes[..., None]
    return {
        "sizes": descending(logarithmic(scale * units.sizes)),
        "biases": descending(logarithmic(units.biases)),
        "biases by size": descending(logarithmic(scale * units.biases * units.sizes)),
        "reading sizes": descending(logarithmic(norm(reading, (-1,)))),
        "rows": spectrum(units.rows / scale),
        "rows by size": spectrum(units.rows * sizes),
        "readings": spectrum(reading / scale),
        "readings by size": spectrum(reading * sizes),
    }


def spectrum(x: Float[Tensor, "*batch n m"], count: int | None = None) -> Float[Tensor, "*batch count"]:
    """The ``count`` largest singular values of x/√(1 + ‖x‖²) as ½·log(1 + 10⁴·σ²), the largest first, then ‖x‖ so.

    From the eigenvalues of the smaller Gram matrix, whose gradients are finite also where some are equal or zero. Their
    rounding errors are relative to the largest; divided by the size, that is to 1.
    """
    squared_size = x.square().sum((-2, -1))[..., None]
    gram = x @ x.mT if x.shape[-2] <= x.shape[-1] else x.mT @ x
    values = torch.linalg.eigvalsh(gram / (1 + squared_size[..., None])).flip(-1)[..., :count]
    return 0.5 * torch.log1p(1e4 * torch.cat([values.clamp_min(0), squared_size], dim=-1))


def symmetric_spectrum(x: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n"]:
    """The eigenvalues of the symmetric part of x/√(1 + ‖x‖²), which have a sign."""
    symmetric = (x + x.mT) / 2
    return torch.linalg.eigvalsh(symmetric / (1 + x.square().sum((-2, -1), keepdim=True)).sqrt())


def logarithmic(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """sign(x)·log(1 + 10·|x|)."""
    return x.sign() * torch.log1p(10 * x.abs())


def descending(x: Float[Tensor, "..."], dim: int = -1) -> Float[Tensor, "..."]:
    return x.sort(dim=dim, descending=True).values


def over_heads(x: Float[Tensor, "*batch h count"]) -> Float[Tensor, "*batch numbers"]:
    """Each number sorted over the heads."""
    return descending(x, -2).flatten(-2)


def lower_triangle(x: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch numbers"]:
    row, column = torch.tril_indices(x.shape[-2], x.shape[-1], device=x.device)
    return x[..., row, column]
