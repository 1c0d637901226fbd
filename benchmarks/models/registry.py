"""The seven rows of a table: what they are called, what they are, what they need."""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.models.hyperparameters import fit_hyperparameters
from benchmarks.models.trees import fit_lightgbm, fit_random_forest, fit_xgboost
from nfn import MLPPredictor, Predictor, StatNN, TransformerNFN
from zoo import TransformerSpec


@dataclass(frozen=True)
class BenchmarkModel:
    """One row. ``kind`` is a neural predictor's class, ``fit`` what fits any other; a row has one of them.

    ``library`` is imported by ``fit``. ``seeded`` says whether a seed changes anything: boosting without subsampling
    draws nothing, so one fit is all of its seeds. ``edition`` is raised when the way of fitting this row changes, so
    that no trial of the old way is taken for one.
    """

    name: str
    title: str
    kind: type[Predictor] | None = None
    fit: Callable[..., Any] | None = None
    library: str | None = None
    seeded: bool = True
    edition: int = 1

    def missing(self) -> str | None:
        """Why this row cannot be computed on this machine, in one line; None where it can."""
        if self.library is None or importlib.util.find_spec(self.library) is not None:
            return None
        return f"{self.title} needs {self.library}: pip install 'small-transformer-zoo[benchmarks]'"


MODELS = {
    one.name: one
    for one in (
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
        BenchmarkModel("transformer_nfn", "Transformer-NFN", kind=TransformerNFN),
    )
}
SIX_MODELS = tuple(name for name in MODELS if name != "hyperparameters")
NEURAL = tuple(name for name, one in MODELS.items() if one.kind is not None)


def builder(
    name: str, spec: TransformerSpec, channels: Sequence[int] | None, components: Sequence[str] | None
) -> Callable[[torch.Generator], Predictor]:
    """Makes a neural predictor from a generator; ``channels`` are Transformer-NFN's alone."""
    kind = MODELS[name].kind
    assert kind is not None
    own = {} if channels is None else {"channels": tuple(channels)}
    return lambda generator: kind(spec, components=components, generator=generator, **own)


def check_models(names: Sequence[str]) -> tuple[str, ...]:
    """The names in the order of the table, each once."""
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        raise ValueError(f"unknown model {unknown[0]!r}: some of {', '.join(MODELS)}")
    return tuple(name for name in MODELS if name in names)
