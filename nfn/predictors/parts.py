"""The parts of a predictor that read one component: its flattened weights, or their statistics."""

from torch import Tensor, nn

from nfn.predictors.features import statistics
from zoo import TransformerSpec, TransformerWeights
from zoo.transformer.spec import Component


class FlatPart(nn.Module):
    """A network on the flattened weights of one component."""

    def __init__(self, component: Component, network: nn.Module) -> None:
        super().__init__()
        self.component: Component = component
        self.network = network

    def forward(self, weights: TransformerWeights) -> Tensor:
        return self.network(weights.flat()[..., weights.spec.components[self.component]])


class StatisticsPart(nn.Module):
    """A network on the statistics of one component's tensors."""

    def __init__(self, component: Component, network: nn.Module) -> None:
        super().__init__()
        self.component: Component = component
        self.network = network

    def forward(self, weights: TransformerWeights) -> Tensor:
        return self.network(statistics(weights, self.component))


def component_size(spec: TransformerSpec, component: Component) -> int:
    """The number of weights in a component."""
    part = spec.components[component]
    return part.stop - part.start
