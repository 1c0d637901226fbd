"""Small zoos: cross-validation tests every run once, on fits that have not seen its configuration."""

from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks import kendall, results
from benchmarks import trial as trial_module
from benchmarks.data import BenchmarkData
from benchmarks.results import ResultIndex
from benchmarks.statistics import bootstrap_taus, interval_of, kendall_tau, resample_runs, tau_or_zero
from tests.fabricated import TINY_MNIST, fabricate_shard, publish
from tests.refusal import refusal

OWN = """
import numpy as np

class Mean:
    def fit(self, train, validation):
        self.mean = float(train.accuracy.mean())
    def predict(self, rows):
        return np.full(len(rows), self.mean)

class Size:
    def fit(self, train, validation):
        assert not set(train.runs) & set(validation.runs)
    def predict(self, rows):
        return rows.weights.square().mean(1).numpy()
"""


@pytest.fixture(scope="module")
def small_zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """22 runs, three of them in the test split, and 24 runs of 8 configurations."""
    root = tmp_path_factory.mktemp("small")
    fabricate_shard(root / "runs", TINY_MNIST, count=22)
    fabricate_shard(root / "runs", TINY_MNIST, count=24, seeds="3")
    publish(root / "runs", root / "zoo")
    return root / "zoo"


def folds_of_zoo(count: int, zoo: Path, config: str = "mnist", checkpoint: str | None = None) -> list[BenchmarkData]:
    return [BenchmarkData.from_zoo(zoo, config, checkpoint=checkpoint, fold=(fold, count)) for fold in range(count)]


@pytest.mark.parametrize(("config", "runs"), [("mnist", 22), ("mnist-repeats", 24)])
@pytest.mark.parametrize("checkpoint", [None, "all"])
def test_every_run_is_tested_once_by_fits_that_have_not_seen_its_configuration(
    small_zoo: Path, config: str, runs: int, checkpoint: str | None
) -> None:
    parts = folds_of_zoo(5, small_zoo, config, checkpoint)
    tested = [part.open_test() for part in parts]
    assert len({part.fingerprint for part in parts}) == 1
    for part, test in zip(parts, tested, strict=True):
        splits = (part.train, part.validation, test)
        assert sum(map(len, splits)) == runs * (4 if checkpoint else 1)
        keys = [set(pd.MultiIndex.from_frame(rows.hyperparameters)) for rows in splits]
        assert all(keys)
        assert len(set.union(*keys)) == sum(map(len, keys)), "a configuration is in two parts"
        assert len(set.union(*(set(rows.runs) for rows in splits))) == runs
    tests_of = Counter(run for test in tested for run in set(test.runs))
    assert (len(tests_of), set(tests_of.values())) == (runs, {1})
    sizes = [len(set(pd.MultiIndex.from_frame(test.hyperparameters))) for test in tested]
    assert max(sizes) - min(sizes) <= 1
    again = folds_of_zoo(5, small_zoo, config, checkpoint)
    assert [list(part.open_test().runs) for part in again] == [list(test.runs) for test in tested]


def test_tau_of_folds_counts_the_pairs_within_a_fold() -> None:
    random = np.random.default_rng(0)
    truth, predicted = random.random((2, 23)).astype(np.float32)
    folds = np.arange(23) % 5
    pairs = [(i, j) for i in range(23) for j in range(i) if folds[i] == folds[j]]
    signs = [np.sign(predicted[i] - predicted[j]) * np.sign(truth[i] - truth[j]) for i, j in pairs]
    assert kendall_tau(predicted, truth, folds) == pytest.approx(np.mean(signs), abs=1e-12)
    assert kendall_tau(predicted, truth, np.zeros(23, int)) == pytest.approx(kendall_tau(predicted, truth), abs=1e-12)
    shifted = predicted + 10 * folds.astype(np.float32)
    assert kendall_tau(shifted, truth, folds) == kendall_tau(predicted, truth, folds), "fits are not compared"
    means = np.array([truth[folds != fold].mean() for fold in folds])
    assert kendall_tau(means, truth) < -0.2, "a predictor of the mean, over all pairs"
    assert tau_or_zero(means, truth, folds) == 0
    counts = resample_runs(np.arange(23))
    resampled = bootstrap_taus([predicted], truth, counts, folds)
    drawn = np.repeat(np.arange(23), counts[7].astype(int))
    assert resampled[7] == pytest.approx(kendall_tau(predicted[drawn], truth[drawn], folds[drawn]))
    interval = interval_of(resampled)
    assert interval is not None
    assert interval[0] < np.mean(signs) < interval[1]


@pytest.mark.long
def test_folds_go_with_the_other_options_and_their_trials_are_kept(
    small_zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fold_models.py").write_text(OWN)
    shared = ["--zoo", str(small_zoo), "--out", "out", "--seeds", "2", "--epochs", "1", "--recipes", "paper"]
    arguments = [*shared, "--models", "mlp", "fold_models:Mean", "fold_models:Size", "--folds", "4"]
    arguments += ["--thresholds", "none", "30"]
    kendall.main(arguments)
    shown = capsys.readouterr().out
    assert "Kendall's τ, mnist, epoch_75, 4 folds" in shown
    assert "τ counts the pairs of runs within a fold" in shown
    assert "Only 22 test runs" in shown
    assert "--folds 5" not in shown
    rows = results.read("kendall", tmp_path / "out")
    index = ResultIndex.latest(rows, "mnist", folds=4)
    assert not ResultIndex.latest(rows, "mnist").rows, "they are not taken for rows of the zoo's own test split"
    assert index.value("test_runs", "data", threshold=0.0) == 22
    assert index.value("train_rows", "data", threshold=0.0) == 10, "22 runs without two folds of six"
    assert index.value("tau", "fold_models:Mean", threshold=0.0) == 0
    tau = index.find("tau", "mlp", threshold=0.0)
    assert tau is not None
    assert (tau.n, tau.setting.get("folds"), "fold" in tau.setting) == (2, 4, False)
    folds = folds_of_zoo(4, small_zoo)
    sizes = [(test.weights.square().mean(1), test.accuracy) for test in (part.open_test() for part in folds)]
    predicted, truth = (torch.cat(parts).numpy() for parts in zip(*sizes, strict=True))
    expected = kendall_tau(predicted, truth, np.repeat(range(4), [len(size) for size, _ in sizes]))
    assert index.value("tau", "fold_models:Size", threshold=0.0) == pytest.approx(expected)
    assert {path.name for path in Path("out").glob("*.*")} == {
        "kendall.jsonl",
        "kendall.mnist.4-folds.md",
        *(f"kendall.mnist.{plot}.4-folds.png" for plot in ("scatter", "thresholds", "accuracy")),
    }
    fit = trial_module._fit_and_judge
    monkeypatch.setattr(trial_module, "_fit_and_judge", lambda *_: pytest.fail("a finished trial was computed again"))
    kendall.main(arguments)
    assert results.read("kendall", tmp_path / "out") == rows
    monkeypatch.setattr(trial_module, "_fit_and_judge", fit)
    where = ["--where", "optimizer != 'adam'", "--checkpoint", "all", "--quick"]
    kendall.main([*shared, "--models", "fold_models:Size", "--folds", "3", *where])
    assert "mnist, all checkpoints, 3 folds where optimizer != 'adam'" in capsys.readouterr().out


def test_a_cross_validation_may_leave_out_the_test_split(
    small_zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("split_models.py").write_text(OWN)
    words = ["--zoo", str(small_zoo), "--out", "out", "--quick", "--models", "split_models:Size"]
    split = ["--split", "train+validation"]
    kendall.main([*words, "--folds", "3", *split])
    assert "Kendall's τ, mnist, epoch_75, 3 folds of train+validation" in capsys.readouterr().out
    index = ResultIndex.latest(results.read("kendall", tmp_path / "out"), "mnist", folds=3)
    parts = [BenchmarkData.from_zoo(small_zoo, "mnist", fold=(fold, 3), split=split[1]) for fold in range(3)]
    runs = {run for part in parts for rows in (part.train, part.validation, part.open_test()) for run in rows.runs}
    own = BenchmarkData.from_zoo(small_zoo, "mnist")
    assert runs == {*own.train.runs, *own.validation.runs}
    assert index.value("test_runs", "data") == len(runs)
    assert all(row.setting["split"] == "train+validation" for row in index.rows)
    assert (tmp_path / "out" / "kendall.mnist.3-folds.train+validation.md").exists()
    assert "add --folds" in refusal(kendall.main, [*words, *split], capsys)
    assert "unknown split 'tests'" in refusal(kendall.main, [*words, "--folds", "3", "--split", "tests"], capsys)


@pytest.mark.long
def test_an_average_of_predictors_is_made_in_every_fold(small_zoo: Path, tmp_path: Path) -> None:
    arguments = ["--zoo", str(small_zoo), "--out", str(tmp_path), "--quick", "--epochs", "1", "--folds", "3"]
    kendall.main([*arguments, "--models", "gauge_nfn_hyperparameters"])
    index = ResultIndex.latest(results.read("kendall", tmp_path), "mnist", folds=3)
    assert index.value("tau", "gauge_nfn_hyperparameters") is not None


@pytest.mark.parametrize(
    ("folds", "message"),
    [
        ("2", "argument --folds: must be a whole number of at least 3, got '2'"),
        ("23", "23 folds need as many configurations, these runs have 22"),
    ],
)
def test_impossible_folds_are_one_clear_line(
    small_zoo: Path, tmp_path: Path, folds: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--zoo", str(small_zoo), "--out", str(tmp_path), "--models", "mlp", "--folds", folds]
    assert message in refusal(kendall.main, arguments, capsys)


@pytest.mark.long
def test_folds_need_no_run_in_the_test_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=6)
    publish(tmp_path / "runs", tmp_path / "zoo", splits="98/1/1")
    arguments = ["--zoo", str(tmp_path / "zoo"), "--out", str(tmp_path / "out"), "--quick", "--epochs", "1"]
    line = refusal(kendall.main, [*arguments, "--models", "mlp"], capsys)
    assert line.endswith("add runs to the zoo, or publish it with other --splits\n")
    kendall.main([*arguments, "--models", "mlp", "--folds", "3"])
    assert "Only 6 test runs" in capsys.readouterr().out


@pytest.mark.long
def test_few_test_runs_are_named_and_none_is_the_best(
    small_zoo: Path, tiny_zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--quick", "--epochs", "1", "--models", "mlp", "--out", str(tmp_path)]
    kendall.main(["--zoo", str(small_zoo), *arguments])
    shown = capsys.readouterr().out
    assert "Only 3 test runs: this τ cannot order predictors, so none is marked as the best." in shown
    assert "--folds 5" in shown
    assert "*" not in shown
    assert "behind" not in shown
    assert "**" not in (tmp_path / "kendall.mnist.md").read_text()
    kendall.main(["--zoo", str(tiny_zoo), *arguments, "--folds", "5"])
    shown = capsys.readouterr().out
    assert "cannot order" not in shown, "70 runs are tested"
    assert shown.count(" *\n") == 1
    assert "* is the best model" in shown
