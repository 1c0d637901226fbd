"""The paper's neural baselines, MLP and STATNN, and raw moments: a few sizes of each tensor and no symmetry at all."""

from dataclasses import dataclass
from functools import partial
from math import ceil, floor

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nfn.predictors.component_predictor import ComponentPredictor, ComponentReader
from nfn.predictors.predictor import Predictor, dense, normalized_network
from nfn.predictors.scaling import Standardization
from zoo import TransformerSpec, TransformerWeights
from zoo.transformer.spec import Component

_STATISTICS = 7  # mean, variance, minimum, three quartiles, maximum


@dataclass(eq=False, repr=False, kw_only=True)
class MLPPredictor(ComponentPredictor):
    """A multilayer perceptron on each component's flattened weights (appendix:baselines)."""

    kind = "mlp"
    width: int = 50

    def build_reader(self, component: Component, generator: torch.Generator) -> tuple[nn.Module, int]:
        layers = {"embedding": 1, "encoder": 2, "classifier": 3}[component]
        return self.flat_reader(component, [self.width] * layers, generator)


@dataclass(eq=False, repr=False, kw_only=True)
class StatNN(ComponentPredictor):
    """A multilayer perceptron on seven statistics of each tensor; the embedding is read flat (appendix:baselines)."""

    kind = "statnn"
    width: int = 256
    embedding_width: int = 64

    def build_reader(self, component: Component, generator: torch.Generator) -> tuple[nn.Module, int]:
        if component == "embedding":
            return self.flat_reader(component, [self.embedding_width], generator)
        inputs = len(_component_tensors(self.spec, component)) * _STATISTICS
        network = dense([inputs, self.width, self.width], generator)
        return ComponentReader(partial(tensor_statistics, component=component), network), self.width


def _component_tensors(spec: TransformerSpec, component: Component) -> list[slice]:
    """The slices of the flat vector that a component's tensors have."""
    owned = spec.components[component]
    return [slot.slice for slot in spec.tensors.values() if owned.start <= slot.offset < owned.stop]


def tensor_statistics(weights: TransformerWeights, component: Component) -> Float[Tensor, "*batch features"]:
    """Mean, variance and the 0, 25, 50, 75, 100 % quantiles of each tensor of a component (STATNN)."""
    numbers = []
    for owned in _component_tensors(weights.spec, component):
        tensor = weights.flat()[..., owned]
        variance = tensor.var(-1, correction=min(1, tensor.shape[-1] - 1))  # of a single number, 0
        numbers += [tensor.mean(-1), variance, *_quartiles(tensor)]
    return torch.stack(numbers, dim=-1)


def _quartiles(x: Float[Tensor, "*batch n"]) -> list[Float[Tensor, "*batch"]]:
    """The 0, 25, 50, 75, 100 % quantiles, linear between neighbors; unlike ``torch.quantile``, vmap can batch it."""
    ordered = x.sort(dim=-1).values
    quantiles = []
    for quarter in range(5):
        position = quarter * (x.shape[-1] - 1) / 4
        below, above = floor(position), ceil(position)
        quantiles.append(torch.lerp(ordered[..., below], ordered[..., above], position - below))
    return quantiles


@dataclass(eq=False, repr=False, kw_only=True)
class RawMomentsPredictor(Predictor):
    """A network on the moments of raw tensors: what sizes alone are worth, without symmetry."""

    kind = "raw_moments"
    width: int = 256

    def build(self, generator: torch.Generator) -> None:
        count = sum(_moment_count(slot.shape) for slot in self.spec.tensors.values())
        self.scale = Standardization(count)
        self.network = normalized_network([count, self.width, self.width], generator)

    def inputs(self, weights: TransformerWeights | Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch inputs"]:
        return _raw_moments(self._checked(weights))

    def logits_of(self, inputs: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch"]:
        return self.network(self.scale(inputs)).squeeze(-1)

    def fit_scale(self, weights: TransformerWeights | Float[Tensor, "n d"]) -> None:
        """Fits mean and standard deviation of every moment to training checkpoints."""
        self.scale.fit(self.inputs(weights))


def _moment_count(shape: tuple[int, ...]) -> int:
    return 3 if len(shape) > 1 else 1


def _raw_moments(weights: TransformerWeights) -> Float[Tensor, "*batch inputs"]:
    """Mean, standard deviation and (E(x − mean)⁴)^¼ of every matrix, the root mean square of every bias.

    52 numbers for MNIST, 48 for AG News, each as sign(x)·log(1 + 10·|x|). Computed in float64, so that large weights do
    not overflow.
    """
    flat = weights.flat().double()
    moments = []
    for slot in weights.spec.tensors.values():
        x = flat[..., slot.slice]
        if _moment_count(slot.shape) == 1:
            moments.append(x.square().mean(-1).sqrt())
            continue
        mean = x.mean(-1)
        rest = (x - mean[..., None]).square()
        moments += [mean, rest.mean(-1).sqrt(), rest.square().mean(-1).sqrt().sqrt()]
    stacked = torch.stack(moments, dim=-1)
    return (stacked.sign() * torch.log1p(10 * stacked.abs())).to(weights.flat().dtype)
