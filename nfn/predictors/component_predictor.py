"""Predictors that read each component of the transformer (embedding, encoder, classifier) by a part of their own.

The parts' outputs are concatenated and read by one linear layer (appendix:transformer-nfn, appendix:baselines). Any
choice of components can be read.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nfn.predictors.dense import linear
from nfn.predictors.features import check_components
from nfn.predictors.predictor import Predictor
from nfn.predictors.scaling import WeightScale
from zoo import TransformerSpec, TransformerWeights
from zoo.transformer.spec import Component


class ComponentPredictor(Predictor):
    """A part for each component, one linear layer on top. Subclasses say what the parts are."""

    def __init__(
        self,
        spec: TransformerSpec,
        *,
        components: Sequence[str] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self.components = check_components(spec, components)
        super().__init__(spec, generator=generator)

    def build(self, generator: torch.Generator) -> None:
        self.scale = WeightScale(self.spec)
        self.parts = nn.ModuleDict()
        width = 0
        for component in self.components:
            part, outputs = self.build_part(component, generator)
            self.parts[component] = part
            width += outputs
        self.head = linear(width, 1, generator)

    def build_part(self, component: Component, generator: torch.Generator) -> tuple[nn.Module, int]:
        """The module that reads a component from (scaled) weights, and its number of outputs."""
        raise NotImplementedError

    def logits_of(self, inputs: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch"]:
        batch = inputs.shape[:-1]
        read = self.read_parts(inputs.reshape(batch.numel(), inputs.shape[-1]))
        return self.head(torch.cat(read, dim=-1)).reshape(batch)

    def read_parts(self, inputs: Float[Tensor, "b inputs"]) -> list[Float[Tensor, "b outputs"]]:
        """The outputs of every part, from inputs."""
        scaled = self.scale(TransformerWeights.from_flat(self.spec, inputs, check_finite=False))
        return [part(scaled) for part in self.parts.values()]

    def fit_scale(self, weights: TransformerWeights | Float[Tensor, "n d"]) -> None:
        """Fits the input scales to training checkpoints; without this the weights are read as they are."""
        self.scale.fit(self._checked(weights))

    def config(self) -> dict[str, Any]:
        return super().config() | {"components": list(self.components)}
