"""A baseline that the paper does not have: gradient boosting on the six hyperparameters of a run, without any weights.

A weight-space model that does not beat this baseline has not shown that it reads more than the run's configuration. To
make it a strong baseline, the trees are fitted to the rank of an accuracy among the training rows, not to the accuracy:
the squared error of accuracies is dominated by the few runs that failed, and the order of the good runs suffers.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
from jaxtyping import Float

from benchmarks.data import Checkpoints, Fitted
from benchmarks.statistics import kendall_tau
from nfn.predictors.ranks import Ranks
from zoo.format.hyperparameters import CONFIGURATION, OPTIMIZERS

_ROUNDS, _RATE, _LEAVES, _LEAF_ROWS = 2000, 0.05, 15, 5


def fit_hyperparameters(train: Checkpoints, validation: Checkpoints, seeds: Sequence[int], jobs: int) -> list[Fitted]:
    """The number of rounds is the one with the highest τ on validation. Nothing is random: all seeds are the same."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

    settings: dict[str, Any] = {
        "learning_rate": _RATE,
        "max_iter": _ROUNDS,
        "max_leaf_nodes": _LEAVES,
        "min_samples_leaf": _LEAF_ROWS,
        "categorical_features": [CONFIGURATION.index("optimizer")],
        "early_stopping": False,
        "random_state": 0,
    }
    model = HistGradientBoostingRegressor(**settings)
    ranks = Ranks.among(train.truth())
    # six columns are too little work for several threads: they would wait for each other, on a busy machine for minutes
    with threadpool_limits(1):
        model.fit(_table(train), ranks.of(train.truth()))
    by_round = model.staged_predict(_table(validation))
    taus = [kendall_tau(ranks.accuracy_at(predicted), validation.truth()) for predicted in by_round]
    best = int(np.nan_to_num(taus, nan=-2.0).argmax())  # an undefined τ is worse than any other
    leaves = [tree.get_n_leaf_nodes() for (tree,) in model._predictors[: best + 1]]
    nodes = sum(2 * count - 1 for count in leaves)

    def predict(rows: Checkpoints) -> Float[np.ndarray, " n"]:
        (last,) = islice(model.staged_predict(_table(rows)), best, best + 1)
        return ranks.accuracy_at(last)

    return [Fitted(predict, taus[best], best + 1, _ROUNDS, nodes) for _ in seeds]


def _table(rows: Checkpoints) -> Float[np.ndarray, "n 6"]:
    """The hyperparameters as numbers, the optimizer as its index in the list. Trees need no logarithms."""
    columns = [
        rows.hyperparameters[name].map(OPTIMIZERS.index) if name == "optimizer" else rows.hyperparameters[name]
        for name in CONFIGURATION
    ]
    return np.stack([column.to_numpy(dtype=np.float64) for column in columns], axis=1)
