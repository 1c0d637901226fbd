"""The MLP baseline."""

from collections.abc import Sequence

import torch
from torch import nn

from nfn.predictors.component_predictor import ComponentPredictor
from zoo import TransformerSpec
from zoo.transformer.spec import Component


class MLPPredictor(ComponentPredictor):
    """A multilayer perceptron on each component's flattened weights (appendix:baselines)."""

    kind = "mlp"

    def __init__(
        self,
        spec: TransformerSpec,
        *,
        width: int = 50,
        components: Sequence[str] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self.width, self._options = width, {"width": width}
        super().__init__(spec, components=components, generator=generator)

    def build_reader(self, component: Component, generator: torch.Generator) -> tuple[nn.Module, int]:
        layers = {"embedding": 1, "encoder": 2, "classifier": 3}[component]
        return self.flat_reader(component, [self.width] * layers, generator)
