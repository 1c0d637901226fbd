"""Gauge-NFN: reads only what the whole symmetry of the zoo's transformer leaves."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nfn.predictors.input_cache import InputCache
from nfn.predictors.predictor import Predictor
from nfn.predictors.ranks import RankTable
from nfn.predictors.scaling import PrincipalComponents
from nfn.symmetry.invariant_features import feature_layout, invariant_features
from zoo import TransformerSpec, TransformerWeights
from zoo.transformer.weights import FlatLike

CACHE = InputCache(invariant_features)


class GaugeNFN(Predictor):
    """Several small networks on the invariants of the whole group; the mean of their logits is the prediction.

    Invariants are computed in float64, once per checkpoint, and reduced to the principal components of the training
    checkpoints' by ``fit_scale``. Each network has two hidden layers with LayerNorm and GELU. Checkpoints that are one
    function up to the group give the same prediction. A predictor trained on ranks instead of accuracies answers in
    accuracies once ``places`` is fitted.
    """

    kind = "gauge_nfn"
    own_inputs = True

    def __init__(
        self,
        spec: TransformerSpec,
        *,
        components: int = 192,
        width: int = 128,
        networks: int = 8,
        dropout: float = 0.2,
        generator: torch.Generator | None = None,
    ) -> None:
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout is a share of at least 0 and below 1, got {dropout!r}")
        self.components, self.width, self.networks, self.dropout = components, width, networks, dropout
        self._options = {"components": components, "width": width, "networks": networks, "dropout": dropout}
        super().__init__(spec, generator=generator)

    def build(self, generator: torch.Generator) -> None:
        self.principal = PrincipalComponents(tuple(feature_layout(self.spec).values()), self.components, generator)
        self.places = RankTable()  # named in the files of fitted predictors
        self.first = _StackedLayer(self.networks, self.components, self.width, generator)
        self.second = _StackedLayer(self.networks, self.width, self.width, generator)
        self.last = _StackedLayer(self.networks, self.width, 1, generator, normalized=False)

    @property
    def dropped_units(self) -> int:
        return 2 * self.networks * self.width if self.dropout else 0

    def inputs(self, weights: TransformerWeights | Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch inputs"]:
        """The principal components of each checkpoint's invariants; NaN where a weight is not finite."""
        return self.principal(self.features(weights))

    def features(self, weights: TransformerWeights | Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch features"]:
        """The invariants of each checkpoint, from the cache where it was read before."""
        return CACHE(self._checked(weights))

    def logits_of(self, inputs: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch"]:
        return self.votes(inputs).mean(-1)

    def votes(
        self, inputs: Float[Tensor, "*batch inputs"], keep: Float[Tensor, "*batch units"] | None = None
    ) -> Float[Tensor, "*batch votes"]:
        batch = inputs.shape[:-1]
        hidden = inputs.reshape(1, batch.numel(), self.components)
        for number, layer in enumerate((self.first, self.second)):
            hidden = layer(hidden)
            if keep is not None:
                kept = keep.reshape(batch.numel(), 2, self.networks, self.width)
                hidden = hidden * kept[:, number].transpose(0, 1)
        return self.last(hidden).squeeze(-1).mT.reshape(*batch, self.networks)

    def forward(self, weights: TransformerWeights | FlatLike) -> Float[Tensor, "*batch"]:
        return self.places(super().forward(weights))

    @torch.no_grad()
    def fit_scale(self, weights: TransformerWeights | Float[Tensor, "n d"]) -> None:
        """Fits mean and size of every invariant, and their principal components, to training checkpoints."""
        self.principal.fit(self.features(weights))


class _StackedLayer(nn.Module):
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

    def forward(self, x: Float[Tensor, "k b inputs"]) -> Float[Tensor, "networks b outputs"]:
        """For the same rows in all networks, k is 1."""
        x = x @ self.weight + self.bias
        return F.gelu(F.layer_norm(x, x.shape[-1:]) * self.gain + self.shift) if self.normalized else x
