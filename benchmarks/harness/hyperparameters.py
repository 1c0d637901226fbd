"""The row that no paper reports: gradient boosting on the six hyperparameters of a run, without a single weight.

What a weight-space model adds to what the run's configuration already says is its distance from this row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from benchmarks.harness.checkpoints import HYPERPARAMETERS, Checkpoints
from benchmarks.harness.ranking import kendall_tau
from zoo.schema import OPTIMIZERS

ROUNDS, RATE, LEAVES, LEAF_ROWS = 500, 0.05, 15, 5


@dataclass(frozen=True)
class FittedHyperparameters:
    """Boosted trees on the hyperparameters, cut at the round that did best on validation."""

    model: Any
    epoch: int
    parameters: int
    validation_tau: float
    epochs: int = ROUNDS

    def predict(self, rows: Checkpoints) -> Float[np.ndarray, " n"]:
        return rounds_of(self.model, rows)[self.epoch - 1]


def fit_hyperparameters(
    train: Checkpoints, validation: Checkpoints, seeds: Sequence[int], jobs: int
) -> list[FittedHyperparameters]:
    """The number of rounds is the one with the least squared error on validation. Nothing is drawn, so no spread."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

    settings: dict[str, Any] = {
        "learning_rate": RATE,
        "max_iter": ROUNDS,
        "max_leaf_nodes": LEAVES,
        "min_samples_leaf": LEAF_ROWS,
        "categorical_features": [HYPERPARAMETERS.index("optimizer")],
        "early_stopping": False,
        "random_state": 0,
    }
    model = HistGradientBoostingRegressor(**settings)
    # six columns are too little work to share: threads would wait for each other, on a busy machine for minutes
    with threadpool_limits(1):
        model.fit(table(train), train.truth())
    by_round = rounds_of(model, validation)
    best = int(np.square(by_round - validation.truth()).mean(1).argmin())
    leaves = [tree.get_n_leaf_nodes() for (tree,) in model._predictors[: best + 1]]
    tau = kendall_tau(by_round[best], validation.truth())
    return [FittedHyperparameters(model, best + 1, sum(2 * count - 1 for count in leaves), tau) for _ in seeds]


def rounds_of(model: Any, rows: Checkpoints) -> Float[np.ndarray, "rounds n"]:
    """The prediction after every round."""
    return np.stack(list(model.staged_predict(table(rows))))


def table(rows: Checkpoints) -> Float[np.ndarray, "n 6"]:
    """The hyperparameters as numbers, the optimizer by its place in the list; trees need no logarithms."""
    columns = [
        rows.hyperparameters[name].map(OPTIMIZERS.index) if name == "optimizer" else rows.hyperparameters[name]
        for name in HYPERPARAMETERS
    ]
    return np.stack([column.to_numpy(dtype=np.float64) for column in columns], axis=1)
