"""The tree models on flattened weights (appendix:baselines): depth 10, min child weight 50, 256 leaves, squared error.

The paper says no more. The rest is decided here: boosting goes on until 20 rounds bring nothing on validation, 300 at
most, at each library's own learning rate; the random forest is LightGBM's, as the paper takes all three from boosting
libraries, with 100 trees, each on a bootstrap's share (63.2 %) of the rows and the customary third of the features. A
child of less than 50 rows is never made, so fewer than 100 training rows give a constant.

Each ``fit`` takes several seeds: sorting 18,506 features into bins takes as long as a dozen trees, and is done once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from benchmarks.data.checkpoints import Checkpoints
from benchmarks.statistics.ranking import kendall_tau

DEPTH, CHILD_WEIGHT, LEAVES = 10, 50, 256
MOST_ROUNDS, PATIENCE = 300, 20
BINS = 64  # of a feature's values; a child holds 50 of a few thousand rows, so a finer cut would hardly be another one
HISTOGRAM_MEGABYTES = 4096
FOREST_TREES, BOOTSTRAP_SHARE, FEATURE_SHARE = 100, 0.632, 1 / 3


@dataclass(frozen=True)
class FittedTrees:
    """A grown ensemble of trees, cut at the round that did best on validation.

    ``parameters`` counts what was fitted: a number for every leaf and a threshold for every split.
    """

    score: Callable[[np.ndarray], Float[np.ndarray, " n"]]
    parameters: int
    epoch: int
    epochs: int
    validation_tau: float

    def predict(self, rows: Checkpoints) -> Float[np.ndarray, " n"]:
        return self.score(flat(rows))


def flat(rows: Checkpoints) -> Float[np.ndarray, "n d"]:
    return rows.weights.cpu().numpy()


def fit_xgboost(train: Checkpoints, validation: Checkpoints, seeds: Sequence[int], jobs: int) -> list[FittedTrees]:
    import xgboost

    data = xgboost.QuantileDMatrix(flat(train), train.truth(), max_bin=BINS, nthread=jobs)
    held = xgboost.QuantileDMatrix(flat(validation), validation.truth(), ref=data, max_bin=BINS, nthread=jobs)
    return [boost(data, held, validation, seed, jobs) for seed in seeds]


def boost(data: Any, held: Any, validation: Checkpoints, seed: int, jobs: int) -> FittedTrees:
    """XGBoost at one seed."""
    import xgboost

    settings = {
        "objective": "reg:squarederror",
        "tree_method": "hist",
        "max_depth": DEPTH,
        "min_child_weight": CHILD_WEIGHT,
        "max_leaves": LEAVES,
        "max_bin": BINS,
        "nthread": jobs,
        "seed": seed,
        "verbosity": 0,
    }
    booster = xgboost.train(
        settings,
        data,
        MOST_ROUNDS,
        evals=[(held, "validation")],
        early_stopping_rounds=PATIENCE,
        verbose_eval=False,
    )
    rounds = booster.best_iteration + 1
    leaves = [tree.count("leaf=") for tree in booster[:rounds].get_dump()]

    def score(features: np.ndarray) -> np.ndarray:
        return booster.predict(xgboost.DMatrix(features, nthread=jobs), iteration_range=(0, rounds))

    return fitted(score, validation, leaves, rounds, booster.num_boosted_rounds())


def fit_lightgbm(train: Checkpoints, validation: Checkpoints, seeds: Sequence[int], jobs: int) -> list[FittedTrees]:
    return grow(train, validation, seeds, {"boosting": "gbdt", "num_threads": jobs}, MOST_ROUNDS)


def fit_random_forest(
    train: Checkpoints, validation: Checkpoints, seeds: Sequence[int], jobs: int
) -> list[FittedTrees]:
    chance = {"bagging_fraction": BOOTSTRAP_SHARE, "bagging_freq": 1, "feature_fraction": FEATURE_SHARE}
    return grow(train, validation, seeds, {"boosting": "rf", "num_threads": jobs} | chance, FOREST_TREES)


def grow(
    train: Checkpoints, validation: Checkpoints, seeds: Sequence[int], settings: dict[str, Any], rounds: int
) -> list[FittedTrees]:
    """LightGBM with the shared settings; boosting stops early, a forest is grown whole."""
    import lightgbm

    settings = settings | {
        "objective": "regression",
        "metric": "l2",
        "max_depth": DEPTH,
        "min_sum_hessian_in_leaf": CHILD_WEIGHT,
        # no more than can hold their 50 rows: the same trees, but LightGBM keeps a histogram for each, 19 MB
        "num_leaves": max(2, min(LEAVES, len(train) // CHILD_WEIGHT)),
        "histogram_pool_size": HISTOGRAM_MEGABYTES,
        "max_bin": BINS,
        "deterministic": True,
        "force_col_wise": True,
        "verbosity": -1,
    }
    data = lightgbm.Dataset(flat(train), train.truth(), params=settings)
    held = lightgbm.Dataset(flat(validation), validation.truth(), reference=data, params=settings)
    mean = float(train.truth().mean(dtype=np.float64))
    return [grow_one(data, held, validation, mean, settings | {"seed": seed}, rounds) for seed in seeds]


def grow_one(
    data: Any, held: Any, validation: Checkpoints, mean: float, settings: dict[str, Any], rounds: int
) -> FittedTrees:
    """LightGBM at one seed; ``mean`` is the training accuracies'."""
    import lightgbm

    stops = [] if settings["boosting"] == "rf" else [lightgbm.early_stopping(PATIENCE, verbose=False)]
    booster = lightgbm.train(settings, data, rounds, valid_sets=[held], callbacks=stops)
    best = booster.best_iteration if stops and booster.best_iteration > 0 else booster.num_trees()
    # from the model as text: as JSON, the average of no rows at all is a word that JSON does not have
    text = booster.model_to_string(num_iteration=best)
    leaves = [int(line.removeprefix("num_leaves=")) for line in text.splitlines() if line.startswith("num_leaves=")]

    def score(features: np.ndarray) -> np.ndarray:
        if max(leaves) == 1:
            # a forest that could not split once answers 0 to everything
            return np.full(len(features), mean)
        return np.asarray(booster.predict(features, num_iteration=best, num_threads=settings["num_threads"]))

    return fitted(score, validation, leaves, best, booster.num_trees())


def fitted(
    score: Callable[[np.ndarray], np.ndarray], validation: Checkpoints, leaves: list[int], best: int, rounds: int
) -> FittedTrees:
    tau = kendall_tau(score(flat(validation)), validation.truth())
    return FittedTrees(score, sum(2 * count - 1 for count in leaves), best, rounds, tau)
