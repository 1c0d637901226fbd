"""A submission made from a predictor: fitted by the protocol of the tables, asked once about the test rows."""

import inspect
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from benchmarks.data import BenchmarkData
from benchmarks.execution import average, fit_and_judge
from benchmarks.models.registry import MODELS, BenchmarkModel, known_models
from benchmarks.trial import Trial

ROOT = Path(__file__).parent.parent.parent
OWN_AUTHORS = ("The Small Transformer Zoo authors",)
THE_PAPER = "https://arxiv.org/abs/2410.04209"
PAPERS = dict.fromkeys(("mlp", "xgboost", "lightgbm", "random_forest", "transformer_nfn"), THE_PAPER) | {
    "statnn": "https://arxiv.org/abs/2002.11448"
}
"""Where the models that come with the benchmarks are described; those without an entry are new here."""


@dataclass(frozen=True)
class FittedPredictions:
    """What a fitted model predicts for the test rows, in their order, and what is known of it besides.

    ``change_under_group`` is not measured for an average.
    """

    predicted: Float[np.ndarray, " n"]
    parameters: int | None
    change_under_group: float | None


def fit_predictions(
    model: str, zoo: str, config: str, checkpoint: str, *, seed: int, device: torch.device, jobs: int
) -> FittedPredictions:
    """Fits one of ``known_models`` on train, chooses on validation, by its own recipe; of an average, its parts."""
    models = known_models()
    for name in (model, *models[model].parts):
        if missing := models[name].missing():
            raise ValueError(missing)
    data = BenchmarkData.from_zoo(zoo, config, checkpoint=checkpoint, device=device)
    trial = Trial(
        "kendall", config, model, seed, data.fingerprint, checkpoint=data.checkpoint, recipe=models[model].recipe
    ).normalized()
    outcomes = [fit_and_judge([fit], data, jobs)[fit] for fit in trial.parts or (trial,)]
    outcome = average(outcomes, data.train.truth()) if trial.parts else outcomes[0]
    parameters, change = outcome.notes["parameters"], outcome.notes["mean_change"]
    assert not isinstance(change, str)
    return FittedPredictions(outcome.predicted, None if parameters is None else int(parameters), change)


def reads_of(model: BenchmarkModel) -> tuple[str, ...]:
    """What a model reads of a checkpoint, as a card says it."""
    reads = {
        "weights": model.reads_weights,
        "hyperparameters": model.reads_hyperparameters,
        "probes": model.name == "probes",
    }
    return tuple(name for name, read in reads.items() if read)


def code_of(model: BenchmarkModel) -> str | None:
    """The file of this repository that a model of the benchmarks is in."""
    what = model.kind or model.fit
    if model.name not in MODELS or what is None or (file := inspect.getsourcefile(what)) is None:
        return None
    return Path(file).resolve().relative_to(ROOT).as_posix()
