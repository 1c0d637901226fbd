"""Transformer-NFN, the paper's model."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from nfn.predictors.component_predictor import ComponentPredictor
from nfn.predictors.dense import dense, linear
from nfn.predictors.encoder import InvariantEncoder
from nfn.predictors.parts import FlatPart, component_size
from zoo import TransformerSpec
from zoo.transformer.spec import Component


class TransformerNFN(ComponentPredictor):
    """Transformer-NFN: equivariant layers, ReLU on the MLP's weights, an invariant layer (appendix:transformer-nfn).

    Its reading of the encoder does not change under the group G_U. ``channels`` are the widths of the equivariant
    layers.
    """

    kind = "transformer_nfn"

    def __init__(
        self,
        spec: TransformerSpec,
        *,
        channels: Sequence[int] = (10,),
        components: Sequence[str] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self.channels = tuple(channels)
        super().__init__(spec, components=components, generator=generator)

    def build_part(self, component: Component, generator: torch.Generator) -> tuple[nn.Module, int]:
        outputs = 10
        if component == "encoder":
            return InvariantEncoder(self.spec, self.channels, outputs, generator), outputs
        inputs = component_size(self.spec, component)
        if component == "embedding":
            return FlatPart(component, linear(inputs, outputs, generator)), outputs
        return FlatPart(component, dense([inputs, 10, 10, outputs], generator)), outputs

    def config(self) -> dict[str, Any]:
        return super().config() | {"channels": list(self.channels)}
