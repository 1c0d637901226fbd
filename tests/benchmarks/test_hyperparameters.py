"""The baseline without weights: it must be as good as the configuration allows, or it is not a yardstick."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.data import Checkpoints
from benchmarks.models.registry import MODELS
from benchmarks.models.trees import fit_hyperparameters
from benchmarks.statistics import kendall_tau
from benchmarks.trial import Trial
from nfn.predictors.ranks import Ranks
from tests.benchmarks.synthetic import invent, random_label


@pytest.fixture(autouse=True)
def _few_rounds() -> None:
    """All rounds here, in place of the few of the other tests."""


def test_ranks_among_the_training_accuracies_can_be_converted_back():
    ranks = Ranks.among(np.array([0.9, 0.1, 0.1, 0.5, 0.1]))
    assert ranks.of(np.array([0.1, 0.5, 0.9])).tolist() == [0.25, 0.75, 1.0]
    assert ranks.accuracy_at(np.array([0.25, 0.75, 1.0])).tolist() == [0.1, 0.5, 0.9]
    interpolated_and_clipped = ranks.accuracy_at(np.array([-1.0, 0.5, 2.0])).tolist()
    assert interpolated_and_clipped == pytest.approx([0.1, 0.3, 0.9])
    assert Ranks.among(np.array([0.3])).of(np.array([0.7])).tolist() == [0.0]


def with_failures(count: int, seed: int) -> Checkpoints:
    """Good runs differ slightly, by three hyperparameters; half of those with a high learning rate fail at random."""
    rows = invent(count, seed, random_label)
    table = rows.hyperparameters
    failed = (table["learning_rate"] == 0.3) & (np.random.default_rng(seed).random(count) < 0.5)
    good = 0.87 + 0.01 * (table["weight_decay"] + 3 * table["init_std"] + 9 * table["dropout"])
    accuracy = np.where(failed, 0.25, good).astype(np.float32)
    return replace(rows, metadata=rows.metadata.assign(goodness=accuracy))


@pytest.mark.long
def test_failed_runs_do_not_spoil_the_order_of_the_good_ones():
    pytest.importorskip("sklearn")
    train, validation, test = (with_failures(count, seed) for seed, count in enumerate((300, 100, 200)))
    (fitted,) = fit_hyperparameters(train, validation, [0], jobs=1)
    predicted, truth = fitted.predict(test), test.truth()
    safe = test.hyperparameters["learning_rate"].to_numpy() < 0.3
    assert kendall_tau(predicted[safe], truth[safe]) > 0.9
    assert np.abs(predicted - truth)[safe].max() < 0.05, "accuracies, not ranks"


def test_another_edition_of_a_model_is_another_trial(monkeypatch: pytest.MonkeyPatch):
    trials = [Trial("kendall", "mnist", name, 0, "zoo") for name in ("hyperparameters", "mlp")]
    before = [trial.key for trial in trials]
    monkeypatch.setitem(MODELS, "hyperparameters", replace(MODELS["hyperparameters"], edition=3))
    after = [trial.key for trial in trials]
    assert before[0] != after[0]
    assert before[1] == after[1]
