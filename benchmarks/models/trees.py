"""The tree models on flattened weights (appendix:baselines): depth 10, min child weight 50, 256 leaves, squared error.

The paper says no more. The rest is decided here: boosting stops when validation has not improved for 20 rounds, or
after 300, at the default learning rate of each library. The random forest is LightGBM's, as the paper takes all three
models from boosting libraries, with 100 trees, each on the share of the rows that a bootstrap has (63.2 %) and on the
usual third of the features. A child with fewer than 50 rows is never made, so fewer than 100 training rows give a
constant.

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
MAX_ROUNDS, PATIENCE = 300, 20
BINS = 64  # per feature; a child holds 50 of a few thousand rows, so finer bins would hardly change the splits
HISTOGRAM_MEGABYTES = 4096
FOREST_TREES, BOOTSTRAP_SHARE, FEATURE_SHARE = 100, 0.632, 1 / 3


@dataclass(frozen=True)
class FittedTrees:
    """An ensemble of trees, up to the round that did best on validation.

    ``parameters`` counts what was fitted: a number for every leaf and a threshold for every split.
    """

    score: Callable[[np.ndarray], Float[np.ndarray, " n"]]
    parameters: int
    epoch: int
    epochs: int
    validation_tau: float

    def predict(self, rows: Checkpoints) -> Float[np.ndarray, " n"]:
        return self.score(flat(rows))


@dataclass(frozen=True)
class BinnedSplits:
    """Both splits in the format of a library, its features sorted into bins, for the fits of all seeds.

    ``rows`` are those of validation, ``mean`` is the mean accuracy of train.
    """

    train: Any
    validation: Any
    rows: Checkpoints
    mean: float

    def fitted(
        self, score: Callable[[np.ndarray], np.ndarray], leaves: list[int], best: int, rounds: int
    ) -> FittedTrees:
        """The trees up to round ``best`` of ``rounds``, with the leaves of each."""
        tau = kendall_tau(score(flat(self.rows)), self.rows.truth())
        return FittedTrees(score, sum(2 * count - 1 for count in leaves), best, rounds, tau)


def flat(rows: Checkpoints) -> Float[np.ndarray, "n d"]:
    return rows.weights.cpu().numpy()


def mean_accuracy(rows: Checkpoints) -> float:
    return float(rows.truth().mean(dtype=np.float64))


def fit_xgboost(train: Checkpoints, validation: Checkpoints, seeds: Sequence[int], jobs: int) -> list[FittedTrees]:
    import xgboost

    binned = xgboost.QuantileDMatrix(flat(train), train.truth(), max_bin=BINS, nthread=jobs)
    held_out = xgboost.QuantileDMatrix(flat(validation), validation.truth(), ref=binned, max_bin=BINS, nthread=jobs)
    splits = BinnedSplits(binned, held_out, validation, mean_accuracy(train))
    return [boost_xgboost(splits, seed, jobs) for seed in seeds]


def boost_xgboost(splits: BinnedSplits, seed: int, jobs: int) -> FittedTrees:
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
        splits.train,
        MAX_ROUNDS,
        evals=[(splits.validation, "validation")],
        early_stopping_rounds=PATIENCE,
        verbose_eval=False,
    )
    rounds = booster.best_iteration + 1
    leaves = [tree.count("leaf=") for tree in booster[:rounds].get_dump()]

    def score(features: np.ndarray) -> np.ndarray:
        return booster.predict(xgboost.DMatrix(features, nthread=jobs), iteration_range=(0, rounds))

    return splits.fitted(score, leaves, rounds, booster.num_boosted_rounds())


def fit_lightgbm(train: Checkpoints, validation: Checkpoints, seeds: Sequence[int], jobs: int) -> list[FittedTrees]:
    return fit_with_lightgbm(train, validation, seeds, {"boosting": "gbdt", "num_threads": jobs}, MAX_ROUNDS)


def fit_random_forest(
    train: Checkpoints, validation: Checkpoints, seeds: Sequence[int], jobs: int
) -> list[FittedTrees]:
    subsampling = {"bagging_fraction": BOOTSTRAP_SHARE, "bagging_freq": 1, "feature_fraction": FEATURE_SHARE}
    settings = {"boosting": "rf", "num_threads": jobs} | subsampling
    return fit_with_lightgbm(train, validation, seeds, settings, FOREST_TREES)


def fit_with_lightgbm(
    train: Checkpoints, validation: Checkpoints, seeds: Sequence[int], settings: dict[str, Any], rounds: int
) -> list[FittedTrees]:
    """LightGBM with the shared settings; boosting stops early, a forest always has all its trees."""
    import lightgbm

    settings = settings | {
        "objective": "regression",
        "metric": "l2",
        "max_depth": DEPTH,
        "min_sum_hessian_in_leaf": CHILD_WEIGHT,
        # no more than can hold their 50 rows: the same trees, but LightGBM keeps a histogram of 19 MB for each leaf
        "num_leaves": max(2, min(LEAVES, len(train) // CHILD_WEIGHT)),
        "histogram_pool_size": HISTOGRAM_MEGABYTES,
        "max_bin": BINS,
        "deterministic": True,
        "force_col_wise": True,
        "verbosity": -1,
    }
    binned = lightgbm.Dataset(flat(train), train.truth(), params=settings)
    held_out = lightgbm.Dataset(flat(validation), validation.truth(), reference=binned, params=settings)
    splits = BinnedSplits(binned, held_out, validation, mean_accuracy(train))
    return [grow_lightgbm(splits, settings | {"seed": seed}, rounds) for seed in seeds]


def grow_lightgbm(splits: BinnedSplits, settings: dict[str, Any], rounds: int) -> FittedTrees:
    """LightGBM at one seed."""
    import lightgbm

    stops = [] if settings["boosting"] == "rf" else [lightgbm.early_stopping(PATIENCE, verbose=False)]
    booster = lightgbm.train(settings, splits.train, rounds, valid_sets=[splits.validation], callbacks=stops)
    best = booster.best_iteration if stops and booster.best_iteration > 0 else booster.num_trees()
    # from the model as text: as JSON, the average of zero rows is a word that JSON does not have
    text = booster.model_to_string(num_iteration=best)
    leaves = [int(line.removeprefix("num_leaves=")) for line in text.splitlines() if line.startswith("num_leaves=")]

    def score(features: np.ndarray) -> np.ndarray:
        if max(leaves) == 1:
            # a forest without a single split predicts 0 for everything
            return np.full(len(features), splits.mean)
        return np.asarray(booster.predict(features, num_iteration=best, num_threads=settings["num_threads"]))

    return splits.fitted(score, leaves, best, booster.num_trees())
