"""τ within a configuration: the statistic, and the table of a zoo whose configurations were trained several times."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import kendall, results
from benchmarks.data import Outcome
from benchmarks.results import ResultIndex
from benchmarks.statistics import kendall_tau, noise_ceiling, noise_ceiling_within, resampled_means, taus_within
from benchmarks.trial import _pack, _read
from tests.fabricated import TINY_MNIST, fabricate_shard, publish

SETTING = {"threshold": 0.0}


def test_it_is_the_tau_of_each_configuration_that_can_be_ranked() -> None:
    random = np.random.default_rng(0)
    configurations = np.array([0] * 5 + [1] + [2] * 4 + [3] * 3 + [7] * 6)
    predicted, truth = random.random(19), random.random(19)
    truth[configurations == 2] = 0.5  # nothing to rank
    predicted[configurations == 3] = 0.5  # ranks nothing
    expected = [kendall_tau(predicted[rows], truth[rows]) for rows in (slice(0, 5), slice(13, 19))]
    shuffled = random.permutation(19)
    for order in (np.arange(19), shuffled):
        taus = taus_within(predicted[order], truth[order], configurations[order])
        np.testing.assert_allclose(taus, [expected[0], 0.0, expected[1]])


def test_what_differs_between_configurations_alone_scores_zero() -> None:
    """The ranking of configurations is perfect, and no run is told from its repeats."""
    configurations = np.repeat(np.arange(10), 8)
    truth = configurations + np.random.default_rng(1).random(80) / 2
    assert kendall_tau(configurations.astype(float), truth) > 0.9
    assert taus_within(configurations.astype(float), truth, configurations).tolist() == [0.0] * 10
    assert taus_within(truth, truth, configurations).tolist() == pytest.approx([1.0] * 10)


def test_the_noise_ceiling_within_is_the_mean_of_those_of_the_configurations() -> None:
    configurations = np.array([0] * 20 + [1] + [2] * 20 + [3] * 4)
    truth = np.concatenate([np.linspace(0.1, 0.9, 20), [0.3], np.linspace(0.90, 0.91, 20), [0.5] * 4])
    wide, narrow = noise_ceiling(truth[:20], 10_000), noise_ceiling(truth[21:41], 10_000)
    assert wide is not None
    assert narrow is not None
    assert wide > narrow + 0.2
    assert noise_ceiling_within(truth, configurations, 10_000) == pytest.approx((wide + narrow) / 2)
    assert noise_ceiling_within(truth[-4:], configurations[-4:], 10_000) is None


def test_resamples_draw_configurations_with_replacement() -> None:
    taus = np.random.default_rng(2).normal(0.3, 0.2, size=50)
    means = resampled_means(taus, resamples=4000)
    assert means.mean() == pytest.approx(taus.mean(), abs=0.005)
    assert means.std() == pytest.approx(taus.std() / np.sqrt(50), rel=0.1)
    assert set(resampled_means(np.array([0.25]))) == {0.25}
    assert set(resampled_means(np.array([0, 0.5, 1, 1, 1]), units=np.array([3, 3, 4, 4, 4]))) == {0.25, 0.7, 1.0}


def test_stored_trials_keep_the_configurations_where_there_are_any(tmp_path: Path) -> None:
    numbers, runs = np.zeros(3, np.float32), np.arange(3, dtype=np.int32)
    outcomes = {
        "with": Outcome(numbers, numbers, runs, {}, np.array([0, 0, 1], np.int32)),
        "without": Outcome(numbers, numbers, runs, {}),
    }
    path = tmp_path / "cells"
    path.write_bytes(_pack(outcomes))
    stored = _read(path)
    assert stored["with"].configurations is not None
    assert stored["with"].configurations.tolist() == [0, 0, 1]
    assert stored["without"].configurations is None


@pytest.mark.long
def test_the_table_of_a_zoo_with_repeats(tmp_path: Path) -> None:
    for shard in (0, 1):
        fabricate_shard(tmp_path / "runs", TINY_MNIST, shard=shard, count=96, seeds="4")
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=60)
    publish(tmp_path / "runs", tmp_path / "zoo")
    options = ["--zoo", str(tmp_path / "zoo"), "--out", str(tmp_path / "out"), "--epochs", "2", "--seeds", "2"]
    options += ["--thresholds", "none", "--recipes", "paper", "--jobs", "1", "--device", "cpu"]
    kendall.main([*options, "--config", "mnist", "--models", "mlp"])
    kendall.main([*options, "--config", "mnist-repeats", "--models", "mlp", "hyperparameters"])
    rows = results.read("kendall", tmp_path / "out")
    index = ResultIndex.latest(rows, "mnist-repeats")
    assert index.value("tau_within", "hyperparameters", **SETTING) == 0.0
    assert index.interval("tau_within", "hyperparameters", **SETTING) == (0.0, 0.0)
    assert index.value("tau", "hyperparameters", **SETTING) != 0.0
    within = index.find("tau_within", "mlp", **SETTING)
    assert within is not None
    assert within.value != 0.0
    assert within.stderr is not None
    interval = index.interval("tau_within", "mlp", **SETTING)
    assert interval is not None
    assert interval[0] < within.value < interval[1]
    test_rows = index.value("test_rows", "data", **SETTING)
    assert test_rows is not None
    assert index.value("configurations_within", "data", **SETTING) == test_rows / 4
    ceiling = index.value("noise_ceiling_within", "data", **SETTING)
    assert ceiling is not None
    assert 0 < ceiling < 1
    table = (tmp_path / "out" / "kendall.mnist-repeats.md").read_text()
    assert f"the noise ceiling there is {ceiling:.3f}" in table
    assert "| no threshold | τ within a configuration | τ above" in table
    assert "| hyperparameters only | 0.000 [0.000, 0.000] |" in table
    assert "Hyperparameters score 0 there by construction" in table
    assert not any(row.metric.startswith("tau_within") for row in rows if row.config == "mnist")
    assert "within a configuration" not in (tmp_path / "out" / "kendall.mnist.md").read_text()
    kendall.main([*options, "--config", "mnist-repeats", "--models", "mlp", "--checkpoint", "all"])
    every = ResultIndex.latest(results.read("kendall", tmp_path / "out"), "mnist-repeats")
    assert every.find("tau", "mlp", checkpoint="all") is not None
    assert every.find("tau_within", "mlp", checkpoint="all") is None, "checkpoints of a run are not repeats"
