"""Models that read the weights of a transformer and predict its accuracy.

All have one interface: ``predictor(weights)`` is the predicted accuracy in [0, 1], ``predictor.logits(weights)`` the
same before the sigmoid, to train with binary cross entropy. A prediction has two steps. ``inputs`` depend on no
parameter, so they are computed once per checkpoint however long a predictor trains; ``logits_of`` reads them. A
predictor may be several networks: then each of its ``votes`` is trained on its own, and the prediction is their mean.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, fields
from itertools import chain, pairwise
from math import sqrt
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import skip_init

from zoo import TransformerSpec, TransformerWeights
from zoo.device import fast_small_products
from zoo.transformer.spec import differences
from zoo.transformer.weights import FlatLike


@dataclass(eq=False, repr=False)
class Predictor(nn.Module):
    """The base of all predictors. Subclasses define ``build``, ``logits_of``, ``fit_scale``, some also ``inputs``.

    The fields of a subclass that is a dataclass are its options: arguments of its constructor, and in ``config``.
    """

    kind: ClassVar[str]
    dropout = 0.0

    spec: TransformerSpec
    _: KW_ONLY
    generator: InitVar[torch.Generator | None] = None

    def __post_init__(self, generator: torch.Generator | None) -> None:
        super().__init__()
        # A seed of its own, so that the same call makes the same predictor.
        self.build(generator or torch.Generator().manual_seed(0))

    def build(self, generator: torch.Generator) -> None:
        """Makes the layers, their first parameters drawn from the generator."""
        raise NotImplementedError

    def inputs(self, weights: TransformerWeights | Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch inputs"]:
        """The numbers that are read from each checkpoint: by default its flat weights, as they are."""
        return self._checked(weights).flat()

    def logits_of(self, inputs: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch"]:
        """The prediction before the sigmoid, from inputs."""
        raise NotImplementedError

    @property
    def dropped_units(self) -> int:
        """How many activations per checkpoint have a dropout when training, with probability ``dropout``."""
        return 0

    def votes(
        self, inputs: Float[Tensor, "*batch inputs"], keep: Float[Tensor, "*batch units"] | None = None
    ) -> Float[Tensor, "*batch votes"]:
        """The logits whose mean is the prediction; by default there is one. ``keep`` multiplies the dropped units."""
        return self.logits_of(inputs)[..., None]

    def fit_inputs(self, weights: TransformerWeights | Float[Tensor, "n d"], goodness: Float[Tensor, " n"]) -> None:
        """Fits what is read to training checkpoints and what ranks them, before ``fit_scale``; by default nothing."""

    def fit_scale(self, weights: TransformerWeights | Float[Tensor, "n d"]) -> None:
        """Fits the scale of the inputs to training checkpoints; without this they are read as they are."""
        raise NotImplementedError

    def config(self) -> dict[str, Any]:
        """All that it takes to build the same architecture again, as JSON-ready data."""
        options = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "spec"}
        lists = {name: list(value) for name, value in options.items() if isinstance(value, tuple)}
        return {"kind": self.kind, "spec": self.spec.to_dict(), **options, **lists}

    def forward(self, weights: TransformerWeights | FlatLike) -> Float[Tensor, "*batch"]:
        """The predicted accuracy of each checkpoint, in [0, 1]; flat vectors [..., d] are read by its spec.

        A tensor has the dtype of the predictor; arrays and lists of floats are converted.
        """
        weights = self._checked(weights)
        TransformerWeights.from_flat(self.spec, weights.flat())
        return torch.sigmoid(self.logits(weights))

    @fast_small_products()
    def logits(self, weights: TransformerWeights | Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
        """The prediction before the sigmoid. Unlike ``forward`` it does not check for NaN."""
        return self.logits_of(self.inputs(weights))

    def _checked(self, weights: TransformerWeights | FlatLike) -> TransformerWeights:
        parameter = next(self.parameters())
        if not isinstance(weights, TransformerWeights | Tensor):
            try:
                weights = torch.tensor(np.asarray(weights, dtype=np.float64)).to(parameter)
            except (TypeError, ValueError) as error:
                kind = type(weights).__name__
                raise ValueError(f"weights are TransformerWeights or floats [..., d], got a {kind}: {error}") from error
        if isinstance(weights, Tensor):
            weights = TransformerWeights.from_flat(self.spec, weights, check_finite=False)
        if weights.spec != self.spec:
            raise ValueError(
                f"this predictor reads {self.spec.task} transformers of the dimensions it was built for, "
                f"got {weights.spec.task} transformers: {differences(self.spec, weights.spec)}"
            )
        if weights.flat().dtype != parameter.dtype:
            raise ValueError(
                f"weights are {weights.flat().dtype} but the predictor is {parameter.dtype}: "
                "convert one of them with .to()"
            )
        return weights


def linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """torch's default initialization, weights and bias uniform in ±1/√inputs, drawn from ``generator``."""
    layer = skip_init(nn.Linear, inputs, outputs, device=torch.get_default_device())
    assert isinstance(layer, nn.Linear)
    bound = 1 / sqrt(inputs)
    with torch.no_grad():
        layer.weight.uniform_(-bound, bound, generator=generator)
        layer.bias.uniform_(-bound, bound, generator=generator)
    return layer


def normal(shape: tuple[int, ...], deviation: float, generator: torch.Generator) -> nn.Parameter:
    """A parameter whose first values are normal with mean 0, drawn from ``generator``."""
    return nn.Parameter(torch.empty(shape).normal_(std=deviation, generator=generator))


def dense(widths: Sequence[int], generator: torch.Generator) -> nn.Sequential:
    """Linear layers between the given widths, a ReLU after each."""
    layers = ([linear(inputs, outputs, generator), nn.ReLU()] for inputs, outputs in pairwise(widths))
    return nn.Sequential(*chain.from_iterable(layers))


def normalized_network(
    widths: Sequence[int], generator: torch.Generator, activation: type[nn.Module] = nn.GELU, outputs: int = 1
) -> nn.Sequential:
    """Linear layers between the given widths, LayerNorm and an activation after each, and one more linear layer."""
    layers = ([linear(below, above, generator), nn.LayerNorm(above), activation()] for below, above in pairwise(widths))
    return nn.Sequential(*chain.from_iterable(layers), linear(widths[-1], outputs, generator))
