"""The STATNN baseline."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from nfn.predictors.component_predictor import ComponentPredictor
from nfn.predictors.dense import dense, linear
from nfn.predictors.features import STATISTICS, component_tensors
from nfn.predictors.parts import FlatPart, StatisticsPart, component_size
from zoo import TransformerSpec
from zoo.transformer.spec import Component


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
        self.width = width
        self.embedding_width = embedding_width
        super().__init__(spec, components=components, generator=generator)

    def build_part(self, component: Component, generator: torch.Generator) -> tuple[nn.Module, int]:
        if component == "embedding":
            inputs = component_size(self.spec, component)
            return FlatPart(component, linear(inputs, self.embedding_width, generator)), self.embedding_width
        inputs = len(component_tensors(self.spec, component)) * len(STATISTICS)
        return StatisticsPart(component, dense([inputs, self.width, self.width], generator)), self.width

    def config(self) -> dict[str, Any]:
        return super().config() | {"width": self.width, "embedding_width": self.embedding_width}
