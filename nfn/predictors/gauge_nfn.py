"""Gauge-NFN: reads only what the whole symmetry of the zoo's transformer leaves, by what it is and by what it does."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nfn.predictors.input_cache import InputCache
from nfn.predictors.predictor import Predictor
from nfn.predictors.ranks import RankTable
from nfn.predictors.responses import response_layout, responses, synthetic_inputs, written_texts
from nfn.predictors.scaling import PrincipalComponents
from nfn.symmetry.invariant_features import feature_layout, invariant_features
from zoo import TransformerSpec, TransformerWeights
from zoo.transformer.weights import FlatLike

_WRITERS = 8  # language models whose mean prediction writes the texts


class Source(NamedTuple):
    """A kind of features: the names and sizes of its groups, and the numbers of checkpoints, which are cached.

    ``component`` names its principal components in files of fitted predictors. The features of language models also
    depend on texts, where this kind has ``texts``.
    """

    component: str
    layout: Callable[[TransformerSpec], Mapping[str, int]]
    features: InputCache
    texts: bool = False


SOURCES = MappingProxyType(
    {
        "invariants": Source("principal", feature_layout, InputCache(invariant_features)),
        "responses": Source("responses", response_layout, InputCache(responses, dtype=None), texts=True),
    }
)


@dataclass(eq=False, repr=False, kw_only=True)
class GaugeNFN(Predictor):
    """Small networks on the invariants of the whole group and on responses to synthetic inputs; the mean of their
    logits is the prediction.

    Both kinds of features are computed once per checkpoint, and each is reduced to the principal components of the
    training checkpoints' by ``fit_scale``. ``reads`` names what is read: for each entry, ``networks`` networks read the
    components of that kind. An entry that stands twice weighs twice. Each network has two hidden layers with LayerNorm
    and GELU. Language models respond to texts, which the best of the training checkpoints write in ``fit_inputs``.
    Checkpoints that are one function up to the group give the same prediction, exactly as far as they are read by
    invariants, up to the ε of LayerNorm and rounding by responses. A predictor trained on ranks instead of accuracies
    answers in accuracies once ``places`` is fitted.
    """

    kind = "gauge_nfn"
    known: ClassVar[Mapping[str, Source]] = SOURCES
    """The kinds of features that ``reads`` can name."""
    usual_reads: ClassVar[tuple[str, ...]] = ("invariants", "responses", "responses")
    usual_reads_of_language: ClassVar[tuple[str, ...]] = ("invariants", *5 * ("responses",))
    usual_networks: ClassVar[int] = 6

    reads: Sequence[str] | None = None
    components: int = 192
    width: int = 128
    networks: int | None = None
    dropout: float = 0.2

    def build(self, generator: torch.Generator) -> None:
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is a share of at least 0 and below 1, got {self.dropout!r}")
        reads = self.reads
        if reads is None:
            reads = self.usual_reads_of_language if self.spec.causal else self.usual_reads
        if not reads or not set(reads) <= self.known.keys():
            got = ", ".join(map(repr, reads)) or "none"
            raise ValueError(f"reads must be some of {', '.join(self.known)}, got {got}")
        self.reads, self.sources = tuple(reads), tuple(name for name in self.known if name in reads)
        self.networks = self.usual_networks if self.networks is None else self.networks
        self.count = len(reads) * self.networks
        self.read_sources = [self.sources.index(name) for name in reads]
        for name in self.sources:
            sizes = tuple(self.known[name].layout(self.spec).values())
            self.add_module(self.known[name].component, PrincipalComponents(sizes, self.components, generator))
        if self.spec.causal and any(self.known[name].texts for name in self.sources):
            # as floats, like all that files of fitted predictors hold
            self.register_buffer("texts", synthetic_inputs(self.spec).to(torch.get_default_dtype()))
        self.places = RankTable()  # named in the files of fitted predictors
        self.first = _StackedLayer(self.count, self.components, self.width, generator)
        self.second = _StackedLayer(self.count, self.width, self.width, generator)
        self.last = _StackedLayer(self.count, self.width, 1, generator, normalized=False)

    @property
    def dropped_units(self) -> int:
        return 2 * self.count * self.width if self.dropout else 0

    def inputs(self, weights: TransformerWeights | Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch inputs"]:
        """The principal components of each kind of features, side by side; NaN where a weight is not finite."""
        weights = self._checked(weights)
        return torch.cat([self._principal(name)(self._features(name, weights)) for name in self.sources], dim=-1)

    def _features(self, source: str, weights: TransformerWeights) -> Float[Tensor, "*batch features"]:
        known = self.known[source]
        if not known.texts or not hasattr(self, "texts"):
            return known.features(weights)
        return known.features(weights, self.get_buffer("texts").long().clamp(0, self.spec.classes - 1))

    def _principal(self, source: str) -> PrincipalComponents:
        module = self.get_submodule(self.known[source].component)
        assert isinstance(module, PrincipalComponents)
        return module

    def logits_of(self, inputs: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch"]:
        return self.votes(inputs).mean(-1)

    def votes(
        self, inputs: Float[Tensor, "*batch inputs"], keep: Float[Tensor, "*batch units"] | None = None
    ) -> Float[Tensor, "*batch votes"]:
        batch, networks = inputs.shape[:-1], self.count // len(self.read_sources)
        by_source = inputs.reshape(batch.numel(), len(self.sources), self.components).transpose(0, 1)
        read = [by_source[source] for source in self.read_sources for _ in range(networks)]
        hidden = torch.stack(read) if len(self.sources) > 1 else by_source
        for number, layer in enumerate((self.first, self.second)):
            hidden = layer(hidden)
            if keep is not None:
                kept = keep.reshape(batch.numel(), 2, self.count, self.width)
                hidden = hidden * kept[:, number].transpose(0, 1)
        return self.last(hidden).squeeze(-1).mT.reshape(*batch, self.count)

    def forward(self, weights: TransformerWeights | FlatLike) -> Float[Tensor, "*batch"]:
        return self.places(super().forward(weights))

    @torch.no_grad()
    def fit_scale(self, weights: TransformerWeights | Float[Tensor, "n d"]) -> None:
        """Fits mean and size of every feature, and the principal components, to training checkpoints."""
        weights = self._checked(weights)
        for name in self.sources:
            self._principal(name).fit(self._features(name, weights))

    @torch.no_grad()
    def fit_inputs(self, weights: TransformerWeights | Float[Tensor, "n d"], goodness: Float[Tensor, " n"]) -> None:
        """Lets the best of the training checkpoints, where they are language models, write what all will read."""
        if hasattr(self, "texts"):
            texts, flat = self.get_buffer("texts"), self._checked(weights).flat()
            best = flat[goodness.topk(min(_WRITERS, len(goodness))).indices]
            texts.copy_(written_texts(TransformerWeights.from_flat(self.spec, best), *texts.shape))


class InvariantNFN(GaugeNFN):
    """Gauge-NFN on the invariants alone: it reads what a checkpoint is and never runs it."""

    kind, usual_networks = "invariant_nfn", 8
    usual_reads = usual_reads_of_language = ("invariants",)


class ResponseNFN(GaugeNFN):
    """Gauge-NFN on the responses alone: it reads what a checkpoint does."""

    kind, usual_networks = "response_nfn", 8
    usual_reads = usual_reads_of_language = ("responses",)


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
