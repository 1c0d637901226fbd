"""Fresh runs: the same configurations with seeds that no zoo has, measured against what was predicted."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import results
from tests import fresh_runs
from tests.fresh_runs import FRACTIONS, SHARED, Options, drawn
from zoo.format.recipe import seeds_by_policy


@pytest.mark.parametrize("task", FRACTIONS)
def test_each_configuration_is_trained_with_a_shared_seed_and_with_its_own_and_none_is_of_a_zoo(task: str) -> None:
    runs = drawn(Options(task=task, count=20))
    together, apart = runs[:20], runs[20:]
    assert [replace(run, seed=0) for run in together] == [replace(run, seed=0) for run in apart]
    assert {run.seed for run in together} == {SHARED}
    assert len({run.seed for run in apart} - {SHARED}) == 20
    assert {run.train_fraction for run in runs} == {FRACTIONS[task]}
    of_zoos = {
        seed
        for run in together
        for policy in ("shared", "distinct", "16")
        for seed in seeds_by_policy(policy, run.hyperparameters(), task)
    }
    assert not of_zoos & {run.seed for run in runs}


@pytest.mark.long
def test_fresh_language_models_are_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--task", "shakespeare", "--count", "2", "--preset", "demo", "--device", "cpu", "--out", str(tmp_path)]
    fresh_runs.main(options)
    rows = {(row.variant, row.metric): row for row in results.read("fresh", tmp_path)}
    for kind in ("one other seed", "a seed for each run"):
        assert rows[kind, "tau"].n == 8  # two runs, four checkpoints
        assert rows[kind, "tau"].value > 0.5
        assert 0 <= rows[kind, "share_inside_interval"].value <= 1
        assert rows[kind, "mean_absolute_error"].value < 0.5
    assert "a seed for each run" in capsys.readouterr().out
