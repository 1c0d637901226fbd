"""The MLP baseline."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from nfn.predictors.component_predictor import ComponentPredictor
from nfn.predictors.dense import dense, linear
from nfn.predictors.parts import FlatPart, component_size
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
        self.width = width
        super().__init__(spec, components=components, generator=generator)

    def build_part(self, component: Component, generator: torch.Generator) -> tuple[nn.Module, int]:
        inputs, width = component_size(self.spec, component), self.width
        if component == "embedding":
            return FlatPart(component, linear(inputs, width, generator)), width
        hidden = {"encoder": 1, "classifier": 2}[component]
        return FlatPart(component, dense([inputs, *[width] * (hidden + 1)], generator)), width

    def config(self) -> dict[str, Any]:
        return super().config() | {"width": self.width}
