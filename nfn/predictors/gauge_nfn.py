"""Gauge-NFN: reads only what the whole symmetry of the zoo's transformer leaves."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nfn.predictors.input_cache import InputCache
from nfn.predictors.places import PlaceTable
from nfn.predictors.predictor import Predictor
from nfn.symmetry.invariant_features import feature_count, invariant_features
from zoo import TransformerSpec, TransformerWeights

READ_AT_ONCE = 128  # checkpoints whose invariants are computed at once: about 100 MB
SMALLEST = 1e-6  # an input that varies less than this between training checkpoints is constant
FARTHEST = 5.0  # standard deviations; what lies farther out counts as this far
CACHE = InputCache()


class GaugeNFN(Predictor):
    """Several small networks on the invariants of the whole group; the mean of their logits is the prediction.

    Invariants are computed in float64, once per checkpoint, standardized by ``fit_scale``, and read by networks of two
    hidden layers with LayerNorm and GELU. Checkpoints that are one function up to the group give the same prediction. A
    predictor trained on places instead of accuracies answers in accuracies once ``places`` is fitted.
    """

    kind = "gauge_nfn"
    mean: Float[Tensor, " inputs"]
    inverse_deviation: Float[Tensor, " inputs"]

    def __init__(
        self,
        spec: TransformerSpec,
        *,
        width: int = 128,
        networks: int = 3,
        generator: torch.Generator | None = None,
    ) -> None:
        self.width, self.networks = width, networks
        super().__init__(spec, generator=generator)

    def build(self, generator: torch.Generator) -> None:
        count, width, networks = feature_count(self.spec), self.width, self.networks
        self.register_buffer("mean", torch.zeros(count))
        self.register_buffer("inverse_deviation", torch.ones(count))
        self.places = PlaceTable()
        self.first = StackedLayer(networks, count, width, generator)
        self.second = StackedLayer(networks, width, width, generator)
        self.last = StackedLayer(networks, width, 1, generator, normalized=False)

    def inputs(self, weights: TransformerWeights | Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch inputs"]:
        """The invariants of each checkpoint, from memory where it was read before; NaN where a weight is not finite."""
        flat = self._checked(weights).flat()
        if flat.requires_grad and torch.is_grad_enabled():
            return self._compute(flat)
        rows = CACHE.rows(self.spec, flat.detach().reshape(-1, self.spec.num_parameters), self._compute)
        return rows.reshape(*flat.shape[:-1], -1)

    def logits_of(self, inputs: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch"]:
        return self.network_logits(inputs).mean(-1)

    def network_logits(self, inputs: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch networks"]:
        """The logits of each network on its own."""
        standard = ((inputs - self.mean) * self.inverse_deviation).clamp(-FARTHEST, FARTHEST)
        rows = standard.reshape(1, -1, standard.shape[-1])
        logits = self.last(self.second(self.first(rows)))
        return logits.squeeze(-1).mT.reshape(*inputs.shape[:-1], self.networks)

    def forward(self, weights: TransformerWeights | Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
        return self.places(super().forward(weights))

    @torch.no_grad()
    def fit_scale(self, weights: TransformerWeights | Float[Tensor, "n d"]) -> None:
        """Fits mean and standard deviation of every invariant to training checkpoints."""
        inputs = self.inputs(weights)
        if inputs.ndim != 2 or len(inputs) == 0:
            raise ValueError(f"scales are fitted on a batch [n, d] of checkpoints, got {list(inputs.shape[:-1])}")
        deviation, mean = torch.std_mean(inputs.double(), dim=0, correction=0)
        self.mean.copy_(mean)
        self.inverse_deviation.copy_(torch.where(deviation > SMALLEST, 1 / deviation, 0.0))

    def config(self) -> dict[str, Any]:
        return super().config() | {"width": self.width, "networks": self.networks}

    def _compute(self, flat: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch inputs"]:
        rows = flat.reshape(-1, self.spec.num_parameters)
        parts = [
            invariant_features(TransformerWeights.from_flat(self.spec, part.double(), check_finite=False))
            for part in rows.split(READ_AT_ONCE)
        ]
        return torch.cat(parts).to(flat.dtype).reshape(*flat.shape[:-1], -1)


class StackedLayer(nn.Module):
    """A linear layer of several networks at once, for hidden layers followed by LayerNorm and GELU."""

    def __init__(
        self, networks: int, inputs: int, outputs: int, generator: torch.Generator, *, normalized: bool = True
    ) -> None:
        super().__init__()
        self.normalized = normalized
        bound = inputs**-0.5

        def uniform(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape).uniform_(-bound, bound, generator=generator))

        self.weight = uniform(networks, inputs, outputs)
        self.bias = uniform(networks, 1, outputs)
        if normalized:
            self.gain = nn.Parameter(torch.ones(networks, 1, outputs))
            self.shift = nn.Parameter(torch.zeros(networks, 1, outputs))

    def forward(self, x: Float[Tensor, "k b inputs"]) -> Float[Tensor, "n b outputs"]:
        x = x @ self.weight + self.bias
        return F.gelu(F.layer_norm(x, x.shape[-1:]) * self.gain + self.shift) if self.normalized else x
