"""The STATNN baseline."""

from collections.abc import Sequence
from math import ceil, floor

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nfn.predictors.component_predictor import ComponentPredictor, ComponentReader
from nfn.predictors.predictor import dense
from zoo import TransformerSpec, TransformerWeights
from zoo.transformer.spec import Component

_STATISTICS = 7  # mean, variance, minimum, three quartiles, maximum


class StatNN(ComponentPredictor):
    """A multilayer perceptron on seven statistics of each tensor; the embedding is read flat (appendix:baselines)."""

    kind = "statnn"

    def __init__(
        self,
        spec: TransformerSpec,
        *,
        width: int = 256,
        embedding_width: int = 64,
        components: Sequence[str] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self.width, self.embedding_width = width, embedding_width
        self._options = {"width": width, "embedding_width": embedding_width}
        super().__init__(spec, components=components, generator=generator)

    def build_reader(self, component: Component, generator: torch.Generator) -> tuple[nn.Module, int]:
        if component == "embedding":
            return self.flat_reader(component, [self.embedding_width], generator)
        inputs = len(_component_tensors(self.spec, component)) * _STATISTICS
        return ComponentReader(_statistics, component, dense([inputs, self.width, self.width], generator)), self.width


def _component_tensors(spec: TransformerSpec, component: Component) -> list[slice]:
    """The slices of the flat vector that a component's tensors have."""
    owned = spec.components[component]
    return [slot.slice for slot in spec.tensors.values() if owned.start <= slot.offset < owned.stop]


def _statistics(weights: TransformerWeights, component: Component) -> Float[Tensor, "*batch features"]:
    """Mean, variance and the 0, 25, 50, 75, 100 % quantiles of each tensor of a component (STATNN)."""
    numbers = []
    for owned in _component_tensors(weights.spec, component):
        tensor = weights.flat()[..., owned]
        variance = tensor.var(-1, correction=min(1, tensor.shape[-1] - 1))  # of a single number, 0
        numbers += [tensor.mean(-1), variance, *_quartiles(tensor)]
    return torch.stack(numbers, dim=-1)


def _quartiles(x: Float[Tensor, "*batch n"]) -> list[Float[Tensor, "*batch"]]:
    """The 0, 25, 50, 75, 100 % quantiles, linear between neighbors; unlike ``torch.quantile``, vmap can batch it."""
    ordered = x.sort(dim=-1).values
    quantiles = []
    for quarter in range(5):
        position = quarter * (x.shape[-1] - 1) / 4
        below, above = floor(position), ceil(position)
        quantiles.append(torch.lerp(ordered[..., below], ordered[..., above], position - below))
    return quantiles
