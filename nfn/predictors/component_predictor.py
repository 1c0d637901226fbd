"""Predictors that read each component of the transformer (embedding, encoder, classifier) by a network of its own.

The networks' outputs are concatenated and read by one linear layer (appendix:transformer-nfn, appendix:baselines). Any
choice of components can be read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nfn.predictors.predictor import Predictor, dense, linear
from nfn.predictors.scaling import WeightScale
from zoo import TransformerSpec, TransformerWeights
from zoo.transformer.spec import COMPONENTS, Component


@dataclass(eq=False, repr=False, kw_only=True)
class ComponentPredictor(Predictor):
    """A reader for each component, one linear layer on top. Subclasses define the readers in ``build_reader``."""

    components: Sequence[str] | None = None

    def build(self, generator: torch.Generator) -> None:
        self.components = components = _check_components(self.spec, self.components)
        self.scale = WeightScale(self.spec)
        self.parts = nn.ModuleDict()  # named in the files of saved predictors
        width = 0
        for component in components:
            self.parts[component], outputs = self.build_reader(component, generator)
            width += outputs
        self.head = linear(width, 1, generator)

    def build_reader(self, component: Component, generator: torch.Generator) -> tuple[nn.Module, int]:
        """The module that reads a component from (scaled) weights, and its number of outputs."""
        raise NotImplementedError

    def flat_reader(
        self, component: Component, widths: Sequence[int], generator: torch.Generator
    ) -> tuple[nn.Module, int]:
        """Layers of these widths, with a ReLU after each, on flattened weights; one linear layer on the embedding."""
        owned = self.spec.components[component]
        size, embeds = owned.stop - owned.start, component == "embedding"
        network = linear(size, widths[-1], generator) if embeds else dense([size, *widths], generator)
        return ComponentReader(lambda weights: weights.flat()[..., owned], network), widths[-1]

    def logits_of(self, inputs: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch"]:
        batch = inputs.shape[:-1]
        read = self.read_components(inputs.reshape(batch.numel(), inputs.shape[-1]))
        return self.head(torch.cat(read, dim=-1)).reshape(batch)

    def read_components(self, inputs: Float[Tensor, "b inputs"]) -> list[Float[Tensor, "b outputs"]]:
        """The outputs of every reader, from inputs."""
        scaled = self.scale(TransformerWeights.from_flat(self.spec, inputs, check_finite=False))
        return [reader(scaled) for reader in self.parts.values()]

    def fit_scale(self, weights: TransformerWeights | Float[Tensor, "n d"]) -> None:
        """Fits the input scales to training checkpoints; without this the weights are read as they are."""
        self.scale.fit(self._checked(weights))


class ComponentReader(nn.Module):
    """A network on some features of one component."""

    def __init__(self, features: Callable[[TransformerWeights], Tensor], network: nn.Module) -> None:
        super().__init__()
        self.features, self.network = features, network

    def forward(self, weights: TransformerWeights) -> Tensor:
        return self.network(self.features(weights))


def _check_components(spec: TransformerSpec, components: Sequence[str] | None) -> tuple[Component, ...]:
    """The components in the order of the flat vector; for None all that the spec has."""
    if components is None:
        return tuple(spec.components)
    unknown = [name for name in components if name not in COMPONENTS]
    if unknown or not components:
        raise ValueError(
            f"components must be some of {', '.join(COMPONENTS)}, got {', '.join(unknown) if unknown else 'none'}"
        )
    absent = [name for name in components if name not in spec.components]
    if absent:
        raise ValueError(
            f"{spec.task} transformers have no trainable {absent[0]}: choose from {', '.join(spec.components)}"
        )
    return tuple(name for name in spec.components if name in components)
