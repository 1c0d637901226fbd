"""The models of a table: their names and titles, how they are fitted, what they need."""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from benchmarks.data.benchmark_data import Fitted
from benchmarks.data.checkpoints import Checkpoints
from benchmarks.models.hyperparameters import fit_hyperparameters
from benchmarks.models.trees import fit_lightgbm, fit_random_forest, fit_xgboost
from nfn import GaugeNFN, MLPPredictor, Predictor, ProbeNFN, RawMomentsPredictor, StatNN, TransformerNFN
from zoo import TransformerSpec


class FittedModel(Fitted, Protocol):
    """What every way of fitting returns. An epoch is a round of boosting for trees."""

    @property
    def epoch(self) -> int:
        """The epoch that did best on validation."""
        ...

    @property
    def epochs(self) -> int:
        """All epochs that were trained."""
        ...

    @property
    def parameters(self) -> int: ...

    @property
    def validation_tau(self) -> float: ...


Fit = Callable[[Checkpoints, Checkpoints, Sequence[int], int], Sequence[FittedModel]]
"""Train, validation, seeds and threads → one fitted model per seed."""


@dataclass(frozen=True)
class BenchmarkModel:
    """One model. ``kind`` is the class of a neural predictor, ``fit`` fits any other model; a model has one of them.

    ``library`` is imported by ``fit``. ``seeded`` says whether a seed changes anything: boosting without subsampling
    has no randomness, so one fit stands for all seeds. ``recipe`` is what a neural predictor is trained by for the main
    columns. One that takes hours without a GPU is fitted only where it is named, not ``by_default``. ``edition`` is
    raised when the way of fitting this model changes, so that stored trials of earlier editions are not used.
    """

    name: str
    title: str
    kind: type[Predictor] | None = None
    fit: Fit | None = None
    library: str | None = None
    seeded: bool = True
    recipe: str = "paper"
    by_default: bool = True
    edition: int = 1

    def missing(self) -> str | None:
        """Why this model cannot be fitted on this machine, in one line; None if it can."""
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
            edition=2,
        ),
        BenchmarkModel("raw_moments", "raw moments", kind=RawMomentsPredictor, recipe="gauge"),
        BenchmarkModel("probes", "probes", kind=ProbeNFN, recipe="place", by_default=False),
        BenchmarkModel("transformer_nfn", "Transformer-NFN", kind=TransformerNFN),
        BenchmarkModel("gauge_nfn", "Gauge-NFN", kind=GaugeNFN, recipe="gauge"),
    )
}
SIX_MODELS = ("mlp", "statnn", "xgboost", "lightgbm", "random_forest", "transformer_nfn")  # those of the paper
WEIGHT_MODELS = tuple(name for name in MODELS if name != "hyperparameters")  # those that read weights
USUAL_MODELS = tuple(name for name, model in MODELS.items() if model.by_default)
NEURAL = tuple(name for name, model in MODELS.items() if model.kind is not None)


def builder(
    name: str, spec: TransformerSpec, channels: Sequence[int] | None, components: Sequence[str] | None
) -> Callable[[torch.Generator], Predictor]:
    """A function that makes a neural predictor from a generator; only Transformer-NFN has ``channels``."""
    kind: Callable[..., Predictor] | None = MODELS[name].kind
    assert kind is not None
    options = {} if channels is None else {"channels": tuple(channels)}
    options |= {} if components is None else {"components": tuple(components)}
    return lambda generator: kind(spec, generator=generator, **options)


def check_models(names: Sequence[str]) -> tuple[str, ...]:
    """The names in the order of the tables, each once."""
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        raise ValueError(f"unknown model {unknown[0]!r}: choose some of {', '.join(MODELS)}")
    return tuple(name for name in MODELS if name in names)
