"""The models of a table: their names and titles, how they are fitted, what they need."""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from benchmarks.data.benchmark_data import Fitted
from benchmarks.data.checkpoints import Checkpoints
from benchmarks.models.hyperparameters import fit_hyperparameters
from benchmarks.models.trees import fit_lightgbm, fit_random_forest, fit_xgboost
from nfn import GaugeNFN, MLPPredictor, Predictor, ProbeNFN, RawMomentsPredictor, StatNN, TransformerNFN
from nfn.predictors.fixed_basis import CanonicalClassifierNFN, CanonicalNFN, InvariantClassifierNFN
from zoo import TransformerSpec


class FittedModel(Fitted, Protocol):
    """What every way of fitting returns. An epoch is a round of boosting for trees; None is not known."""

    @property
    def epoch(self) -> int | None:
        """The epoch that did best on validation."""
        ...

    @property
    def epochs(self) -> int | None:
        """All epochs that were trained."""
        ...

    @property
    def parameters(self) -> int | None: ...

    @property
    def validation_tau(self) -> float: ...


Fit = Callable[[Checkpoints, Checkpoints, Sequence[int], int], Sequence[FittedModel]]
"""Train, validation, seeds and threads → one fitted model per seed."""


@dataclass(frozen=True)
class BenchmarkModel:
    """One model. ``kind`` is the class of a neural predictor, several of which train together; ``module`` the class of
    a network that trains alone; ``fit`` fits any other model; ``parts`` are the models that it is the average of. A
    model has one of them.

    ``library`` is imported by ``fit``. ``seeded`` says whether a seed changes anything: boosting without subsampling
    has no randomness, so one fit stands for all seeds. ``recipe`` is what a neural predictor is trained by for the main
    columns, alone or as a part of an average. One that takes hours without a GPU, or answers a question of its own, is
    fitted only where it is named, not ``by_default``; ``variant_of`` names the model that it changes in one respect to
    answer it, beside which it is shown. ``edition`` is raised when the way of fitting this model changes,
    so that stored trials of earlier editions are not used; for a model of the user's own, ``source`` is the hash of its
    source code, for the same reason.
    """

    name: str
    title: str
    kind: type[Predictor] | None = None
    module: type[nn.Module] | None = None
    fit: Fit | None = None
    parts: tuple[str, ...] = ()
    library: str | None = None
    seeded: bool = True
    recipe: str = "paper"
    by_default: bool = True
    variant_of: str | None = None
    reads_weights: bool = True
    reads_hyperparameters: bool = False
    edition: int = 1
    source: str | None = None

    @property
    def neural(self) -> bool:
        """Whether it, or a part of it, trains by a recipe, for epochs."""
        return self.fit is None

    @property
    def scalable(self) -> bool:
        """Whether what it reads can be brought to unit size: a predictor of one's own may not say how."""
        return self.kind is None or self.kind.fit_scale is not Predictor.fit_scale

    def missing(self) -> str | None:
        """Why this model cannot be fitted on this machine, in one line; None if it can, or if only a part cannot."""
        if self.library is None or importlib.util.find_spec(self.library) is not None:
            return None
        return f"{self.title} needs {self.library}: pip install 'small-transformer-zoo[benchmarks]'"


MODELS = {
    model.name: model
    for model in (
        BenchmarkModel("mlp", "MLP", kind=MLPPredictor),
        BenchmarkModel("statnn", "STATNN", kind=StatNN),
        BenchmarkModel("xgboost", "XGBoost", fit=fit_xgboost, library="xgboost", seeded=False),
        BenchmarkModel("lightgbm", "LightGBM", fit=fit_lightgbm, library="lightgbm", seeded=False),
        BenchmarkModel("random_forest", "Random Forest", fit=fit_random_forest, library="lightgbm"),
        BenchmarkModel(
            "hyperparameters",
            "hyperparameters only",
            fit=fit_hyperparameters,
            library="sklearn",
            seeded=False,
            reads_weights=False,
            reads_hyperparameters=True,
            edition=2,
        ),
        BenchmarkModel("raw_moments", "raw moments", kind=RawMomentsPredictor, recipe="gauge"),
        BenchmarkModel("probes", "probes", kind=ProbeNFN, recipe="place", by_default=False),
        BenchmarkModel("transformer_nfn", "Transformer-NFN", kind=TransformerNFN),
        BenchmarkModel("gauge_nfn", "Gauge-NFN", kind=GaugeNFN, recipe="gauge"),
        BenchmarkModel(
            "gauge_nfn_hyperparameters",
            "Gauge-NFN averaged with hyperparameters only",
            parts=("gauge_nfn", "hyperparameters"),
            recipe="gauge",
            reads_hyperparameters=True,
        ),
        BenchmarkModel(
            "transformer_nfn_canonical",
            "Transformer-NFN on canonical weights",
            kind=CanonicalNFN,
            by_default=False,
            variant_of="transformer_nfn",
        ),
        BenchmarkModel(
            "transformer_nfn_classifier_canonical",
            "Transformer-NFN, classifier canonical",
            kind=CanonicalClassifierNFN,
            by_default=False,
            variant_of="transformer_nfn",
        ),
        BenchmarkModel(
            "transformer_nfn_classifier_invariants",
            "Transformer-NFN, classifier's invariants",
            kind=InvariantClassifierNFN,
            by_default=False,
            variant_of="transformer_nfn",
        ),
    )
}
SIX_MODELS = ("mlp", "statnn", "xgboost", "lightgbm", "random_forest", "transformer_nfn")  # those of the paper
USUAL_MODELS = tuple(name for name, model in MODELS.items() if model.by_default)
_OWN: ContextVar[dict[str, BenchmarkModel]] = ContextVar("own models")


@contextmanager
def own_models() -> Iterator[None]:
    """Inside, models of the user's own can be registered; afterwards they are forgotten. Also decorates a command."""
    before = _OWN.set({})
    try:
        yield
    finally:
        _OWN.reset(before)


def register(model: BenchmarkModel) -> None:
    """Makes a model one of ``known_models`` until the enclosing ``own_models`` ends."""
    if model.name in MODELS:
        raise ValueError(f"{model.name} is the name of a model that comes with the benchmarks: choose another")
    _OWN.get()[model.name] = model


def known_models() -> dict[str, BenchmarkModel]:
    """All models by name, in the order of the tables: those that come with the benchmarks, then the user's own."""
    return MODELS | _OWN.get({})


def weight_models() -> tuple[str, ...]:
    """Those that read weights and nothing else, without the variants of others."""
    return tuple(
        name
        for name, model in known_models().items()
        if model.reads_weights and not model.reads_hyperparameters and model.variant_of is None
    )


def builder(
    name: str, spec: TransformerSpec, channels: Sequence[int] | None, components: Sequence[str] | None
) -> Callable[[torch.Generator], Predictor]:
    """A function that makes a neural predictor from a generator; only Transformer-NFN has ``channels``."""
    kind: Callable[..., Predictor] | None = known_models()[name].kind
    assert kind is not None
    options = {} if channels is None else {"channels": tuple(channels)}
    options |= {} if components is None else {"components": tuple(components)}
    return lambda generator: kind(spec, generator=generator, **options)
