"""Models that read the weights of a transformer and predict its accuracy.

All have one interface: ``predictor(weights)`` is the predicted accuracy in [0, 1], ``predictor.logits(weights)`` the
same before the sigmoid, to train with binary cross entropy. Each component of the transformer (embedding, encoder,
classifier) is read by a part of its own; the parts' outputs lie side by side in front of one linear layer
(appendix:transformer-nfn, appendix:baselines). Which components are read is free.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nfn.layers.seeding import or_default
from nfn.predictors.dense import dense, linear
from nfn.predictors.encoder import InvariantEncoder
from nfn.predictors.features import STATISTICS, check_components, component_tensors, statistics
from nfn.predictors.scaling import WeightScale
from zoo import TransformerSpec, TransformerWeights
from zoo.transformer.onednn import fast_small_products
from zoo.transformer.spec import Component


class Predictor(nn.Module):
    """A part for each component, one linear layer on top. Subclasses say what the parts are."""

    kind: ClassVar[str]

    def __init__(
        self,
        spec: TransformerSpec,
        *,
        components: Sequence[str] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        generator = or_default(generator)
        self.spec = spec
        self.components = check_components(spec, components)
        self.scale = WeightScale(spec)
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

    def forward(self, weights: TransformerWeights) -> Float[Tensor, "*batch"]:
        """The predicted accuracy of each checkpoint, in [0, 1]."""
        self._check(weights)
        TransformerWeights.from_flat(self.spec, weights.flat())
        return torch.sigmoid(self.logits(weights))

    @fast_small_products()
    def logits(self, weights: TransformerWeights) -> Float[Tensor, "*batch"]:
        """The prediction before the sigmoid. Unlike ``forward`` it does not look for NaN."""
        self._check(weights)
        batch = weights.batch_shape
        flat = weights.flat().reshape(batch.numel(), self.spec.num_parameters)
        scaled = self.scale(TransformerWeights.from_flat(self.spec, flat, check_finite=False))
        read = torch.cat([part(scaled) for part in self.parts.values()], dim=-1)
        return self.head(read).reshape(batch)

    def fit_scale(self, weights: TransformerWeights) -> None:
        """Fits the input scales to training checkpoints; without this the weights are read as they are."""
        self._check(weights)
        self.scale.fit(weights)

    def config(self) -> dict[str, Any]:
        """All that it takes to build the same architecture again, as JSON-ready data."""
        return {"kind": self.kind, "spec": self.spec.to_dict(), "components": list(self.components)}

    def _check(self, weights: TransformerWeights) -> None:
        if weights.spec != self.spec:
            raise ValueError(
                f"this predictor reads {self.spec.task} transformers of its own dimensions, "
                f"got a {weights.spec.task} transformer: {differences(self.spec, weights.spec)}"
            )
        dtype = self.head.weight.dtype
        if weights.flat().dtype != dtype:
            raise ValueError(
                f"weights are {weights.flat().dtype} but the predictor is {dtype}: convert one of them with .to()"
            )


class TransformerNFN(Predictor):
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
        inputs = size(self.spec, component)
        if component == "embedding":
            return FlatPart(component, linear(inputs, outputs, generator)), outputs
        return FlatPart(component, dense([inputs, 10, 10, outputs], generator)), outputs

    def config(self) -> dict[str, Any]:
        return super().config() | {"channels": list(self.channels)}


class MLPPredictor(Predictor):
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
        inputs, width = size(self.spec, component), self.width
        if component == "embedding":
            return FlatPart(component, linear(inputs, width, generator)), width
        hidden = {"encoder": 1, "classifier": 2}[component]
        return FlatPart(component, dense([inputs, *[width] * (hidden + 1)], generator)), width

    def config(self) -> dict[str, Any]:
        return super().config() | {"width": self.width}


class StatNN(Predictor):
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
            inputs = size(self.spec, component)
            return FlatPart(component, linear(inputs, self.embedding_width, generator)), self.embedding_width
        inputs = len(component_tensors(self.spec, component)) * len(STATISTICS)
        return StatisticsPart(component, dense([inputs, self.width, self.width], generator)), self.width

    def config(self) -> dict[str, Any]:
        return super().config() | {"width": self.width, "embedding_width": self.embedding_width}


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


def size(spec: TransformerSpec, component: Component) -> int:
    """Weights of a component."""
    part = spec.components[component]
    return part.stop - part.start


def differences(expected: TransformerSpec, found: TransformerSpec) -> str:
    """Which dimensions of two specs differ, e.g. «classes 10 and 4»."""
    pairs = zip(expected.to_dict().items(), found.to_dict().values(), strict=True)
    return ", ".join(f"{name} {a} and {b}" for (name, a), b in pairs if a != b)
