"""Models that read the weights of a transformer and predict its accuracy.

All have one interface: ``predictor(weights)`` is the predicted accuracy in [0, 1], ``predictor.logits(weights)`` the
same before the sigmoid, to train with binary cross entropy. Each component of the transformer (embedding, encoder,
classifier) is read by its own part; the parts' outputs are concatenated and read by one linear layer
(appendix:transformer-nfn, appendix:baselines). Any choice of components can be read.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nfn.layers.seeding import generator_or_default
from nfn.predictors.dense import linear
from nfn.predictors.features import check_components
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
        generator = generator_or_default(generator)
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

    def forward(self, weights: TransformerWeights | Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
        """The predicted accuracy of each checkpoint, in [0, 1]; flat vectors [..., d] are read by its spec."""
        weights = self._checked(weights)
        TransformerWeights.from_flat(self.spec, weights.flat())
        return torch.sigmoid(self.logits(weights))

    @fast_small_products()
    def logits(self, weights: TransformerWeights | Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
        """The prediction before the sigmoid. Unlike ``forward`` it does not look for NaN."""
        weights = self._checked(weights)
        batch = weights.batch_shape
        flat = weights.flat().reshape(batch.numel(), self.spec.num_parameters)
        scaled = self.scale(TransformerWeights.from_flat(self.spec, flat, check_finite=False))
        read = torch.cat([part(scaled) for part in self.parts.values()], dim=-1)
        return self.head(read).reshape(batch)

    def fit_scale(self, weights: TransformerWeights | Float[Tensor, "n d"]) -> None:
        """Fits the input scales to training checkpoints; without this the weights are read as they are."""
        self.scale.fit(self._checked(weights))

    def config(self) -> dict[str, Any]:
        """All that it takes to build the same architecture again, as JSON-ready data."""
        return {"kind": self.kind, "spec": self.spec.to_dict(), "components": list(self.components)}

    def _checked(self, weights: TransformerWeights | Tensor) -> TransformerWeights:
        if isinstance(weights, Tensor):
            weights = TransformerWeights.from_flat(self.spec, weights, check_finite=False)
        if weights.spec != self.spec:
            raise ValueError(
                f"this predictor reads {self.spec.task} transformers of the dimensions it was built for, "
                f"got {weights.spec.task} transformers: {differences(self.spec, weights.spec)}"
            )
        dtype = self.head.weight.dtype
        if weights.flat().dtype != dtype:
            raise ValueError(
                f"weights are {weights.flat().dtype} but the predictor is {dtype}: convert one of them with .to()"
            )
        return weights


def differences(expected: TransformerSpec, actual: TransformerSpec) -> str:
    """Which dimensions of two specs differ, e.g. "classes 10 and 4"."""
    pairs = zip(expected.to_dict().items(), actual.to_dict().values(), strict=True)
    return ", ".join(f"{name} {a} and {b}" for (name, a), b in pairs if a != b)
