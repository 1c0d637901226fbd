"""A fixed number of invariants per checkpoint: spectra, sorted sizes, and products in pinned coordinates.

Every number is unchanged by the whole group. The order of heads is taken out by sorting each number over the heads or
summing over them, the order of units by sorting over them, summing, or taking singular values.
"""

from collections.abc import Callable
from functools import lru_cache
from math import sqrt
from types import MappingProxyType

import torch
from jaxtyping import Float
from torch import Tensor

from nfn.symmetry.composed import ComposedBlock, ComposedTransformer, Units, compose, norm
from nfn.symmetry.pinned_features import class_features, input_features, pinned_filters
from nfn.symmetry.scales import descending, logarithmic, lower_triangle, over_heads, spectrum, symmetric_spectrum
from zoo import TransformerSpec, TransformerWeights

NamedFeatures = Callable[[TransformerWeights], dict[str, Tensor]]
LARGEST_TRIED = 1 << 20  # weights; a spec that came with a file may ask for more than there is memory


def invariant_features(weights: TransformerWeights) -> Float[Tensor, "*batch features"]:
    """The numbers of ``named_features`` side by side: none is changed by the whole group. Differentiable.

    Computed in float64 and rounded once, to the dtype of the weights. They are NaN for a checkpoint with a weight that
    is not finite.
    """
    return side_by_side(weights, named_features)


def classifier_invariants(weights: TransformerWeights) -> Float[Tensor, "*batch features"]:
    """The same of the classifier alone."""
    return side_by_side(weights, named_classifier_features)


def side_by_side(weights: TransformerWeights, named: NamedFeatures) -> Float[Tensor, "*batch features"]:
    flat = weights.flat()
    finite = torch.isfinite(flat).all(-1, keepdim=True)
    # eigenvalues of a matrix with NaN raise an error, which would take the other checkpoints along
    usable = TransformerWeights.from_flat(weights.spec, torch.where(finite, flat, 0.0), check_finite=False)
    return torch.where(finite, torch.cat(list(named(usable).values()), dim=-1), torch.nan).to(flat.dtype)


@lru_cache
def feature_layout(spec: TransformerSpec) -> MappingProxyType[str, int]:
    """The names of the features and how many numbers each has."""
    return MappingProxyType(feature_counts(spec, named_features))


@lru_cache
def classifier_feature_count(spec: TransformerSpec) -> int:
    """How many numbers ``classifier_invariants`` gives."""
    return sum(feature_counts(spec, named_classifier_features).values())


def feature_counts(spec: TransformerSpec, named: NamedFeatures) -> dict[str, int]:
    # shapes alone would do, but torch takes seconds to load what computes without memory
    device = torch.device("cpu" if spec.num_parameters <= LARGEST_TRIED else "meta")
    with device:
        flat = torch.zeros(1, spec.num_parameters, dtype=torch.float64)
        features = named(TransformerWeights.from_flat(spec, flat, check_finite=False))
    return {name: feature.shape[-1] for name, feature in features.items()}


def named_features(weights: TransformerWeights) -> dict[str, Float[Tensor, "*batch count"]]:
    """Numbers that the whole group leaves as they are, in float64, in groups named after what they describe."""
    spec, composed = weights.spec, compose(weights)
    features: dict[str, Tensor] = {}
    for number, block in enumerate(composed.blocks):
        features |= {f"block {number}, {name}": values for name, values in block_features(block, spec).items()}
    features |= classifier_features(composed, spec)
    return features | input_features(composed, spec) | class_features(composed, spec)


def named_classifier_features(weights: TransformerWeights) -> dict[str, Float[Tensor, "*batch count"]]:
    """Those of the classifier, without the filters of the embedding at the other end."""
    features = classifier_features(compose(weights), weights.spec)
    return {name: values for name, values in features.items() if name != "products of filters"}


def classifier_features(composed: ComposedTransformer, spec: TransformerSpec) -> dict[str, Tensor]:
    """The classifier's units and classes, and at the other end of the network the filters."""
    units = composed.classifier
    features = {"classifier, source": spectrum(composed.source / sqrt(spec.dim))}
    features |= {f"classifier, {name}": values for name, values in unit_features(units, composed.source_factor).items()}
    reading = units.columns.mT @ (units.rows @ composed.source_factor)
    for name, matrix in (("classes", units.columns.mT), ("class readings", reading)):
        features[f"products of {name}"] = logarithmic(spec.classes * lower_triangle(matrix @ matrix.mT))
        features[f"spectrum of {name}"] = spectrum(matrix)
    features["class biases"] = logarithmic(sqrt(spec.classes) * units.offset)
    if spec.patch_size is not None:
        filters = pinned_filters(composed.blocks[0].source, spec)
        features["products of filters"] = logarithmic(lower_triangle(filters.mT @ filters))
    return features


def block_features(block: ComposedBlock, spec: TransformerSpec) -> dict[str, Tensor]:
    """Spectra of the source, of each head's scores and writes with and without the source, and of all writes."""
    source = block.source_factor[..., None, :, :]
    seen = source.mT @ block.scores @ source
    written = block.writes @ source
    traces = torch.stack([scores.diagonal(dim1=-2, dim2=-1).sum(-1) for scores in (seen, block.scores)], dim=-1)
    carried = {} if block.carried is None else {"carried": logarithmic(sqrt(spec.dim) * block.carried)}
    return (
        carried
        | {
            "source": spectrum(block.source / sqrt(spec.dim)),
            "scores": over_heads(spectrum(seen / sqrt(spec.dim), spec.key_dim)),
            "scores, symmetric part": over_heads(logarithmic(symmetric_spectrum(seen))),
            "plain scores": over_heads(spectrum(block.scores, spec.key_dim)),
            "plain scores, symmetric part": over_heads(logarithmic(symmetric_spectrum(block.scores))),
            "scores, trace": over_heads(logarithmic(traces)),
            "writes": over_heads(spectrum(written, spec.value_dim)),
            "plain writes": over_heads(spectrum(block.writes, spec.value_dim)),
            "all writes": spectrum(written.transpose(-3, -2).flatten(-2)),
        }
        | {f"units, {name}": values for name, values in unit_features(block.units, block.middle_factor).items()}
    )


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
