"""Transformer-NFN with the freedom of the classifier's basis taken out, to see what that freedom costs.

Transformer-NFN reads the classifier as flat weights. But the order and the scales of its units are free, and the basis
of what it reads is free too: the last block and the classifier can be turned together. These variants read the same
encoder by the same layers and change the classifier alone, or give all components canonical weights.
"""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nfn.predictors.gauge_nfn import SOURCES
from nfn.predictors.input_cache import InputCache
from nfn.predictors.predictor import dense
from nfn.predictors.transformer_nfn import TransformerNFN
from nfn.symmetry.canonical import canonicalize
from nfn.symmetry.invariant_features import feature_layout
from zoo import TransformerWeights
from zoo.transformer.spec import Component


def _canonical_where_finite(weights: TransformerWeights) -> Float[Tensor, "n d"]:
    rows = weights.flat()
    finite = torch.isfinite(rows).all(-1, keepdim=True)
    usable = TransformerWeights.from_flat(weights.spec, torch.where(finite, rows, 0.0), check_finite=False)
    return torch.where(finite, canonicalize(usable).flat(), rows)


_CANONICAL = InputCache(_canonical_where_finite)


class CanonicalNFN(TransformerNFN):
    """Transformer-NFN on canonical weights: the one representative of each orbit of the whole group.

    Weights that are not finite have none, and are read as they are.
    """

    kind = "canonical_nfn"
    fixed: ClassVar[tuple[Component, ...]] = ("embedding", "encoder", "classifier")
    """The components whose weights are replaced by the canonical ones."""

    def inputs(self, weights: TransformerWeights | Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        checked = self._checked(weights)
        canonical, result = _CANONICAL(checked), checked.flat().clone()
        for component in self.fixed:
            if (owned := self.spec.components.get(component)) is not None:
                result[..., owned] = canonical[..., owned]
        return result

    def fit_scale(self, weights: TransformerWeights | Float[Tensor, "n d"]) -> None:
        super().fit_scale(self.inputs(weights))


class CanonicalClassifierNFN(CanonicalNFN):
    """The same with the classifier alone in canonical form; the encoder's weights are read as they are."""

    kind = "canonical_classifier_nfn"
    fixed = ("classifier",)


class InvariantClassifierNFN(TransformerNFN):
    """Transformer-NFN that reads the classifier's invariants in place of its weights."""

    kind = "invariant_classifier_nfn"

    def build_reader(self, component: Component, generator: torch.Generator) -> tuple[nn.Module, int]:
        if component != "classifier":
            return super().build_reader(component, generator)
        count = sum(size for name, size in feature_layout(self.spec).items() if _is_of_classifier(name))
        return dense([count, 10, 10, 10], generator), 10

    def inputs(self, weights: TransformerWeights | Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch inputs"]:
        """The weights, followed by the invariants of the classifier; NaN where a weight is not finite."""
        checked, layout = self._checked(weights), feature_layout(self.spec)
        features = SOURCES["invariants"].features(checked).split(list(layout.values()), dim=-1)
        chosen = [values for name, values in zip(layout, features, strict=True) if _is_of_classifier(name)]
        return torch.cat([checked.flat(), *chosen], dim=-1)

    def read_components(self, inputs: Float[Tensor, "b inputs"]) -> list[Float[Tensor, "b outputs"]]:
        flat, invariants = inputs.split([self.spec.num_parameters, inputs.shape[-1] - self.spec.num_parameters], dim=-1)
        scaled = self.scale(TransformerWeights.from_flat(self.spec, flat, check_finite=False))
        return [reader(invariants if name == "classifier" else scaled) for name, reader in self.parts.items()]


def _is_of_classifier(feature: str) -> bool:
    """Whether a group of invariants describes the classifier alone."""
    return feature.startswith(("classifier, ", "class biases")) or feature.endswith(("of classes", "of class readings"))
