"""Fits objects of the user's own that have ``fit(train, validation)`` and ``predict(rows)``."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from benchmarks.data.checkpoints import Checkpoints
from benchmarks.models.registry import Fit
from benchmarks.statistics.ranking import kendall_tau


@dataclass(frozen=True)
class FittedOwn:
    """A fitted object of the user's. How it was fitted is not known."""

    name: str
    fitted: Any
    validation_tau: float
    epoch: None = None
    epochs: None = None
    parameters: None = None

    def predict(self, rows: Checkpoints) -> Float[np.ndarray, " n"]:
        return predictions(self.name, self.fitted, rows)


def fit_of(name: str, own: Any, takes_seed: bool) -> Fit:
    """Fits a new object for each seed: an instance of the class, or a copy of the object."""

    def build(seed: int) -> Any:
        if not isinstance(own, type):
            return copy.deepcopy(own)
        return own(seed=seed) if takes_seed else own()

    def fit(train: Checkpoints, validation: Checkpoints, seeds: Sequence[int], jobs: int) -> list[FittedOwn]:
        all_fitted = []
        for seed in seeds:
            predictor = build(seed)
            predictor.fit(on_cpu(train), on_cpu(validation))
            tau = kendall_tau(predictions(name, predictor, validation), validation.truth())
            all_fitted.append(FittedOwn(name, predictor, tau))
        return all_fitted

    return fit


def on_cpu(rows: Checkpoints) -> Checkpoints:
    return replace(rows, weights=rows.weights.cpu(), accuracy=rows.accuracy.cpu())


def predictions(name: str, predictor: Any, rows: Checkpoints) -> Float[np.ndarray, " n"]:
    """What it predicts for rows whose accuracies it does not see: they are NaN."""
    hidden = replace(on_cpu(rows), accuracy=torch.full((len(rows),), torch.nan))
    result = predictor.predict(hidden)
    predicted = np.asarray(result.detach().cpu() if isinstance(result, torch.Tensor) else result)
    if predicted.shape != (len(rows),) or predicted.dtype.kind not in "fiu":
        got = f"{predicted.dtype} of shape {list(predicted.shape)}"
        raise ValueError(f"{name}.predict must return one number per checkpoint, [{len(rows)}] here, got {got}")
    return predicted.astype(np.float64)
