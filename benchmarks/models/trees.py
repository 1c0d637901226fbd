"""The tree models: the paper's three on flattened weights, and boosting on hyperparameters without any weights.

On weights (appendix:baselines): depth 10, min child weight 50, 256 leaves, squared error. The paper gives no more
settings. The rest is decided here: boosting stops when validation has not improved for 20 rounds, or after 300, at the
default learning rate of each library. The random forest is LightGBM's, as the paper takes all three models from
boosting libraries, with 100 trees, each on the share of the rows that a bootstrap has (63.2 %) and on the usual third
of the features. Each ``fit`` takes several seeds: sorting 18,506 features into bins takes as long as a dozen trees.

On the six hyperparameters of a run, trees are fitted to the rank of an accuracy among the training rows: the squared
error of accuracies is dominated by the few runs that failed, and the order of the good runs suffers.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from benchmarks.data import Checkpoints, Fitted
from benchmarks.statistics import kendall_tau
from nfn.predictors.ranks import Ranks
from zoo.format.hyperparameters import CONFIGURATION, OPTIMIZERS

_DEPTH, _CHILD_WEIGHT, _LEAVES = 10, 50, 256
_MAX_ROUNDS, _PATIENCE = 300, 20
_BINS = 64  # per feature; a child holds 50 of a few thousand rows, so finer bins would hardly change the splits
_HISTOGRAM_MEGABYTES = 4096
_FOREST_TREES, _BOOTSTRAP_SHARE, _FEATURE_SHARE = 100, 0.632, 1 / 3
_ROUNDS, _RATE, _SMALL_LEAVES, _LEAF_ROWS = 2000, 0.05, 15, 5  # on hyperparameters


def _fitted(
    predict: Callable[[Checkpoints], np.ndarray], leaves: list[int], best: int, rounds: int, validation: Checkpoints
) -> Fitted:
    """The trees up to round ``best`` of ``rounds``, from the leaves of each.

    ``parameters`` counts what was fitted: a number for every leaf and a threshold for every split.
    """
    tau = kendall_tau(predict(validation), validation.truth())
    return Fitted(predict, tau, best, rounds, sum(2 * count - 1 for count in leaves))


def _flat(rows: Checkpoints) -> Float[np.ndarray, "n d"]:
    return rows.weights.cpu().numpy()


def fit_xgboost(train: Checkpoints, validation: Checkpoints, seeds: Sequence[int], jobs: int) -> list[Fitted]:
    """Nothing is random: all seeds are the same."""
    from xgboost import XGBRegressor

    settings: dict[str, Any] = {"max_depth": _DEPTH, "min_child_weight": _CHILD_WEIGHT, "max_leaves": _LEAVES}
    settings |= {"tree_method": "hist", "max_bin": _BINS, "n_jobs": jobs, "verbosity": 0}
    model = XGBRegressor(n_estimators=_MAX_ROUNDS, early_stopping_rounds=_PATIENCE, **settings)
    model.fit(_flat(train), train.truth(), eval_set=[(_flat(validation), validation.truth())], verbose=False)
    rounds, booster = model.best_iteration + 1, model.get_booster()
    leaves = [tree.count("leaf=") for tree in booster[:rounds].get_dump()]

    def predict(rows: Checkpoints) -> np.ndarray:
        return model.predict(_flat(rows))  # by the best round

    return [_fitted(predict, leaves, rounds, booster.num_boosted_rounds(), validation)] * len(seeds)


def fit_lightgbm(train: Checkpoints, validation: Checkpoints, seeds: Sequence[int], jobs: int) -> list[Fitted]:
    return _fit_with_lightgbm(train, validation, seeds, {"boosting": "gbdt", "num_threads": jobs}, _MAX_ROUNDS)


def fit_random_forest(train: Checkpoints, validation: Checkpoints, seeds: Sequence[int], jobs: int) -> list[Fitted]:
    subsampling = {"bagging_fraction": _BOOTSTRAP_SHARE, "bagging_freq": 1, "feature_fraction": _FEATURE_SHARE}
    settings = {"boosting": "rf", "num_threads": jobs} | subsampling
    return _fit_with_lightgbm(train, validation, seeds, settings, _FOREST_TREES)


def _fit_with_lightgbm(
    train: Checkpoints, validation: Checkpoints, seeds: Sequence[int], settings: dict[str, Any], rounds: int
) -> list[Fitted]:
    """LightGBM with the shared settings; boosting stops early, a forest always has all its trees."""
    import lightgbm

    settings = settings | {
        "objective": "regression",
        "metric": "l2",
        "max_depth": _DEPTH,
        "min_sum_hessian_in_leaf": _CHILD_WEIGHT,
        # no more than can hold their 50 rows: the same trees, but LightGBM keeps a histogram of 19 MB for each leaf
        "num_leaves": max(2, min(_LEAVES, len(train) // _CHILD_WEIGHT)),
        "histogram_pool_size": _HISTOGRAM_MEGABYTES,
        "max_bin": _BINS,
        "deterministic": True,
        "force_col_wise": True,
        "verbosity": -1,
    }
    binned = lightgbm.Dataset(_flat(train), train.truth(), params=settings)
    held_out = lightgbm.Dataset(_flat(validation), validation.truth(), reference=binned, params=settings)
    mean = float(train.truth().mean(dtype=np.float64))

    def grow(seed: int) -> Fitted:
        stops = [] if settings["boosting"] == "rf" else [lightgbm.early_stopping(_PATIENCE, verbose=False)]
        booster = lightgbm.train(settings | {"seed": seed}, binned, rounds, valid_sets=[held_out], callbacks=stops)
        best = booster.best_iteration if stops and booster.best_iteration > 0 else booster.num_trees()
        # from the model as text: as JSON, the average of zero rows is a word that JSON does not have
        text = booster.model_to_string(num_iteration=best)
        leaves = [int(line.removeprefix("num_leaves=")) for line in text.splitlines() if line.startswith("num_leaves=")]

        def predict(rows: Checkpoints) -> np.ndarray:
            if max(leaves) == 1:
                # a forest without a single split predicts 0 for everything
                return np.full(len(rows), mean)
            return np.asarray(booster.predict(_flat(rows), num_iteration=best, num_threads=settings["num_threads"]))

        return _fitted(predict, leaves, best, booster.num_trees(), validation)

    return [grow(seed) for seed in seeds]


def fit_hyperparameters(train: Checkpoints, validation: Checkpoints, seeds: Sequence[int], jobs: int) -> list[Fitted]:
    """The number of rounds is the one with the highest τ on validation. Nothing is random: all seeds are the same."""
    seen, held_out = (hyperparameter_table(rows.hyperparameters) for rows in (train, validation))
    optimizer = CONFIGURATION.index("optimizer")
    read, leaves, best = fit_ranks(seen, held_out, train.truth(), validation.truth(), (optimizer,))

    def predict(rows: Checkpoints) -> Float[np.ndarray, " n"]:
        return read(hyperparameter_table(rows.hyperparameters))

    return [_fitted(predict, leaves, best, _ROUNDS, validation)] * len(seeds)


def fit_ranks(
    train: Float[np.ndarray, "n columns"],
    validation: Float[np.ndarray, "m columns"],
    train_truth: Float[np.ndarray, " n"],
    validation_truth: Float[np.ndarray, " m"],
    categories: Sequence[int] = (),
) -> tuple[Callable[[np.ndarray], Float[np.ndarray, " k"]], list[int], int]:
    """Boosted trees on the columns of a table, some of which are categories, fitted to the ranks of the truth.

    What predicts for other rows, the leaves of each tree, and how many rounds have the highest τ on validation.
    """
    from sklearn.ensemble import HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

    settings: dict[str, Any] = {"max_iter": _ROUNDS, "max_leaf_nodes": _SMALL_LEAVES, "min_samples_leaf": _LEAF_ROWS}
    settings |= {"learning_rate": _RATE, "early_stopping": False, "random_state": 0}
    settings |= {"categorical_features": list(categories)}
    model = HistGradientBoostingRegressor(**settings)
    ranks = Ranks.among(train_truth)
    # six columns are too little work for several threads: they would wait for each other, on a busy machine for minutes
    with threadpool_limits(1):
        model.fit(train, ranks.of(train_truth))
    by_round = model.staged_predict(validation)
    taus = [kendall_tau(ranks.accuracy_at(predicted), validation_truth) for predicted in by_round]
    best = int(np.nan_to_num(taus, nan=-2.0).argmax())  # an undefined τ is worse than any other
    leaves = [tree.get_n_leaf_nodes() for (tree,) in model._predictors[: best + 1]]

    def predict(rows: Float[np.ndarray, "k columns"]) -> Float[np.ndarray, " k"]:
        (last,) = islice(model.staged_predict(rows), best, best + 1)
        return ranks.accuracy_at(last)

    return predict, leaves, best + 1


def fit_current_label(train: Checkpoints, validation: Checkpoints, seeds: Sequence[int], jobs: int) -> list[Fitted]:
    """Takes today's label for the later one. Nothing is fitted: a forecast has to do better than this."""

    def predict(rows: Checkpoints) -> Float[np.ndarray, " n"]:
        if rows.current is None:
            raise ValueError("current_label takes one checkpoint's label for another's: add --label-checkpoint")
        return rows.current

    return [Fitted(predict, kendall_tau(predict(validation), validation.truth()))] * len(seeds)


def hyperparameter_table(rows: pd.DataFrame) -> Float[np.ndarray, "n 6"]:
    """The hyperparameters as numbers, the optimizer as its index in the list. Trees need no logarithms."""
    return rows.assign(optimizer=rows["optimizer"].map(OPTIMIZERS.index))[list(CONFIGURATION)].to_numpy(np.float64)
