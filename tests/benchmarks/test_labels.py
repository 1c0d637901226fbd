"""Labels other than accuracy: which direction is better, what is fitted, that rows of two labels never mix; forecasts
of a later checkpoint's label."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import zoo
from benchmarks import augmentation, kendall, predict, pretrain, results, rows, transfer
from benchmarks.data import BenchmarkData, Checkpoints, Outcome, _lacking_one
from benchmarks.models.training import train_together
from benchmarks.results import ResultIndex
from benchmarks.statistics import kendall_tau
from benchmarks.trial import RECIPES, Trial, _average
from nfn import MLPPredictor, load_pretrained
from nfn.predictors.conformal import ConformalInterval
from nfn.predictors.ranks import Ranks
from tests.benchmarks.synthetic import SMALL, invariant_label, invent
from tests.fabricated import TINY_MNIST, TINY_SHAKESPEARE, fabricate_shard, publish
from tests.refusal import refusal
from zoo.export import main as export
from zoo.format.schema import LANGUAGE_LABELS
from zoo.tasks.examples import RawCharacters
from zoo.tasks.paper_data import read_task
from zoo.tasks.task_file import TaskFile

QUICK = ("--epochs", "2", "--seeds", "1", "--jobs", "1", "--device", "cpu")
LABELS = ("test_accuracy", "test_loss", "train_loss", "gap")


class Oracle:
    """Has read the test losses of all runs in a file; the lower, the better."""

    losses: pd.Series

    def fit(self, train: Checkpoints, validation: Checkpoints) -> None:
        assert train.label == "test_loss"
        np.testing.assert_array_equal(train.goodness, -self.losses[train.runs])

    def predict(self, rows: Checkpoints) -> np.ndarray:
        return -self.losses[rows.runs].to_numpy()


class Pessimist(Oracle):
    """Takes the higher loss for the better one."""

    def predict(self, rows: Checkpoints) -> np.ndarray:
        return self.losses[rows.runs].to_numpy()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """70 classifiers and 40 language models with random weights and invented labels."""
    root = tmp_path_factory.mktemp("labels")
    raw = read_task(TaskFile.named("shakespeare"), None)
    assert isinstance(raw, RawCharacters)
    with pytest.MonkeyPatch.context() as unmeasured:
        unmeasured.setattr("tests.fabricated.measure_curves", lambda *_: None)
        fabricate_shard(root / "runs", TINY_SHAKESPEARE, count=40, task=raw.as_task(TINY_SHAKESPEARE))
    fabricate_shard(root / "runs", TINY_MNIST, count=70)
    publish(root / "runs", root / "zoo", splits="60/20/20")
    return root / "zoo"


def test_the_goodness_is_the_label_or_its_negative_where_less_is_better(folder: Path) -> None:
    reader = zoo.open(folder, "mnist", split="train")
    metadata = reader.metadata[reader.metadata["checkpoint"] == "epoch_75"]
    for label in LABELS:
        read = BenchmarkData.from_zoo(folder, "mnist", label=label).train
        values = metadata["test_loss"] - metadata["train_loss"] if label == "gap" else metadata[label]
        np.testing.assert_array_equal(read.truth(), values if label == "test_accuracy" else -values)
        assert len(read.at_least(0.0)) == len(read)
    assert BenchmarkData.from_zoo(folder, "mnist").train.label == "test_accuracy"
    assert BenchmarkData.from_zoo(folder, "shakespeare").train.label == "test_loss"
    for label in LANGUAGE_LABELS:
        assert BenchmarkData.from_zoo(folder, "shakespeare", label=label).train.truth().max() < 0
        with pytest.raises(ValueError, match=f"unknown label '{label}': mnist has test_accuracy, .*, gap$"):
            BenchmarkData.from_zoo(folder, "mnist", label=label)


def test_trials_of_accuracy_keep_their_keys_and_every_other_label_has_its_own(folder: Path) -> None:
    parts = {label: BenchmarkData.from_zoo(folder, "mnist", label=label) for label in LABELS}
    trials = {label: Trial.on(data, "mlp", seed=0) for label, data in parts.items()}
    assert not {"label", "label_checkpoint"} & trials["test_accuracy"].setting().keys()
    assert len({trial.key for trial in trials.values()}) == len(LABELS)
    assert len({data.fingerprint for data in parts.values()}) == len(LABELS)
    later = Trial.on(BenchmarkData.from_zoo(folder, "mnist", label_checkpoint="epoch_100"), "mlp", seed=0)
    assert later.setting()["label_checkpoint"] == "epoch_100"


def test_the_lower_loss_is_the_better_run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = zoo.open(folder, "shakespeare", split="all").metadata
    chosen = metadata[metadata["checkpoint"] == "epoch_75"]
    monkeypatch.setattr(Oracle, "losses", chosen.set_index("run_id")["test_loss"], raising=False)
    names = [f"{__name__}:{name}" for name in ("Oracle", "Pessimist")]
    kendall.main(["--zoo", str(folder), "--config", "shakespeare", "--out", str(tmp_path), *QUICK, "--models", *names])
    index = ResultIndex.latest(results.read("kendall", tmp_path), "shakespeare")
    assert index.label == "test_loss"
    assert [index.value("tau", name) for name in names] == [pytest.approx(1), pytest.approx(-1)]
    assert index.value("noise_ceiling", "data") is None
    assert "by test loss" in (tmp_path / "kendall.shakespeare.md").read_text()
    assert {path.name for path in tmp_path.glob("*.png")} == {
        "kendall.shakespeare.loss.png",
        "kendall.shakespeare.scatter.png",
    }


def test_rows_of_two_labels_are_never_mixed(folder: Path, tmp_path: Path) -> None:
    options = ["--zoo", str(folder), "--config", "mnist", "--out", str(tmp_path), *QUICK, "--models", "hyperparameters"]
    kendall.main([*options, "--thresholds", "none"])
    before = (tmp_path / "kendall.mnist.md").read_bytes()
    for label in ("train_loss", "test_loss"):
        kendall.main([*options, "--label", label])
    assert (tmp_path / "kendall.mnist.md").read_bytes() == before
    rows = results.read("kendall", tmp_path)
    taus = {label: ResultIndex.latest(rows, "mnist", label=label).value("tau", "hyperparameters") for label in LABELS}
    assert taus.pop("gap") is None
    assert len(set(taus.values())) == 3
    usual = ResultIndex.latest(rows, "mnist")
    assert usual.value("tau", "hyperparameters") == taus["test_accuracy"]
    assert not any("label" in row.setting for row in usual.rows)
    assert usual.whole
    assert not ResultIndex.latest(rows, "mnist", label="test_loss").whole
    assert "by train loss" in (tmp_path / "kendall.mnist.train_loss.md").read_text()


def test_thresholds_are_of_accuracies_alone(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--zoo", str(folder), "--config", "mnist", "--out", str(tmp_path), *QUICK, "--label", "gap"]
    line = refusal(kendall.main, [*options, "--thresholds", "none", "80"], capsys)
    assert "--thresholds are accuracies, and these runs are ranked by gap: write --thresholds none" in line


@pytest.mark.parametrize("recipe", ["paper", "place"])
def test_the_rank_is_the_target_for_a_loss_by_every_recipe(recipe: str) -> None:
    """Any increasing function of the goodness has the same ranks, so the same network is trained."""
    train, validation = (invent(count, seed, invariant_label) for seed, count in enumerate((40, 20)))
    predicted = []
    for scale in (1.0, 7.0):
        parts = [
            replace(part, metadata=part.metadata.assign(goodness=scale * part.truth() - 9), label="test_loss")
            for part in (train, validation)
        ]
        build = lambda generator: MLPPredictor(SMALL, generator=generator)  # noqa: E731
        (fitted,) = train_together(build, (0,), parts[0], parts[1], RECIPES[recipe], 3)
        predicted.append(fitted.predict(validation))
        assert predicted[-1].max() < 0
    np.testing.assert_allclose((predicted[0] + 9) * 7, predicted[1] + 9, rtol=1e-5)


@pytest.mark.long
def test_every_table_takes_a_label(folder: Path, tmp_path: Path) -> None:
    options = ["--zoo", str(folder), "--out", str(tmp_path), *QUICK, "--label", "test_loss", "--config"]
    rows.main([*options, "shakespeare", "--models", "hyperparameters", "--sizes", "8", "16"])
    transfer.main([*options, "shakespeare", "--models", "hyperparameters"])
    augmentation.main([*options, "mnist", "--models", "statnn", "--ranges", "1"])
    for benchmark in ("rows", "transfer", "augmentation"):
        found = results.read(benchmark, tmp_path)
        assert found
        assert all(row.setting["label"] == "test_loss" for row in found)


def test_a_stored_predictor_of_losses_says_so_and_ranks_the_lowest_first(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.safetensors"
    monkeypatch.setattr(pretrain, "_FOLDS", 3)
    shared = ["--zoo", str(folder), "--config", "shakespeare", "--device", "cpu", "--epochs", "1"]
    pretrain.main([*shared, "--checkpoint", "epoch_75", "--out", str(file)])
    fitted = load_pretrained(file)
    assert fitted.label == fitted.card["predicts"] == "test_loss"
    data = BenchmarkData.from_zoo(folder, "shakespeare")
    losses, low, high = fitted.predict(data.train.weights)
    assert float(losses.min()) >= -data.train.truth().max()
    assert float(losses.max()) <= -data.train.truth().min()
    assert bool((low <= losses).all())
    assert bool((losses <= high).all())
    capsys.readouterr()
    predict.main([str(folder), "--config", "shakespeare", "--predictor", str(file), "--out", str(tmp_path / "all.csv")])
    assert "shakespeare, test by test loss" in capsys.readouterr().out
    ranking = pd.read_csv(tmp_path / "all.csv")
    assert ranking["predicted"].is_monotonic_increasing
    metadata = zoo.open(folder, "shakespeare", split="test").metadata
    assert sorted(ranking["measured"]) == pytest.approx(sorted(metadata["test_loss"].astype(float)))
    export([str(folder), "shakespeare", str(tmp_path / "files"), "--where", "checkpoint == 'epoch_50'"])
    predict.main([str(tmp_path / "files"), "--predictor", str(file), "--out", str(tmp_path / "files.csv")])
    every = zoo.open(folder, "shakespeare", split="all").metadata
    measured = every[every["checkpoint"] == "epoch_50"]["test_loss"].astype(float)
    assert sorted(pd.read_csv(tmp_path / "files.csv")["measured"]) == pytest.approx(sorted(measured))


def test_the_interval_of_a_loss_has_no_upper_end() -> None:
    interval = ConformalInterval(torch.empty(0), torch.tensor([0.5]))
    assert [float(end) for end in interval(torch.tensor(0.9))] == pytest.approx([0.4, 1.0])
    assert [float(end) for end in replace(interval, most=9.0)(torch.tensor(2.9))] == pytest.approx([2.4, 3.4])


def test_a_forecast_reads_one_checkpoint_and_has_the_label_of_another(folder: Path) -> None:
    reader = zoo.open(folder, "mnist", split="train")
    at = {name: group.set_index("run_id") for name, group in reader.metadata.groupby("checkpoint")}
    for later in ("epoch_100", "best"):
        data = BenchmarkData.from_zoo(folder, "mnist", checkpoint="epoch_50", label_checkpoint=later)
        read, weights = data.train, reader.weights(reader.rows("checkpoint == 'epoch_50'"))
        assert torch.equal(read.weights, weights)
        np.testing.assert_array_equal(read.truth(), at[later]["test_accuracy"][read.runs])
        assert read.current is not None
        np.testing.assert_array_equal(read.current, at["epoch_50"]["test_accuracy"][read.runs])
        assert data.left_out == 0
    with pytest.raises(ValueError, match="unknown label checkpoint 'epoch_99': mnist has epoch_50, "):
        BenchmarkData.from_zoo(folder, "mnist", label_checkpoint="epoch_99")


def test_runs_that_lack_one_of_the_two_checkpoints_are_left_out_and_counted(folder: Path) -> None:
    reader = zoo.open(folder, "mnist", split="train")
    lost = {"epoch_50": reader.metadata["run_id"].iloc[0], "epoch_100": reader.metadata["run_id"].iloc[-1]}
    for name, run in lost.items():
        gone = (reader.metadata["run_id"] == run) & (reader.metadata["checkpoint"] == name)
        reader.metadata.loc[gone, "checkpoint"] = "epoch_7"
    read = Checkpoints.read(reader, "epoch_50", torch.device("cpu"), label_checkpoint="epoch_100")
    assert set(read.runs) == set(reader.metadata["run_id"]) - set(lost.values())
    assert _lacking_one(reader, None, "epoch_50", "epoch_100") == 2
    assert _lacking_one(reader, None, "all", "epoch_100") == 1


def test_todays_label_is_beside_every_forecast(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--zoo", str(folder), "--config", "mnist", "--out", str(tmp_path), *QUICK, "--models", "hyperparameters"]
    forecast = ["--checkpoint", "epoch_50", "--label-checkpoint", "epoch_100"]
    kendall.main([*options, *forecast, "--thresholds", "none"])
    rows = results.read("kendall", tmp_path)
    assert not ResultIndex.latest(rows, "mnist")
    index = ResultIndex.latest(rows, "mnist", label_checkpoint="epoch_100")
    metadata = zoo.open(folder, "mnist", split="test").metadata.set_index(["run_id", "checkpoint"])
    today, final = (metadata["test_accuracy"].xs(name, level=1).sort_index() for name in ("epoch_50", "epoch_100"))
    assert index.value("tau", "current_label") == pytest.approx(kendall_tau(today.to_numpy(), final.to_numpy()))
    together = index.value("tau_above_current_label", "hyperparameters_current_label")
    assert together is not None
    assert index.value("left_out_runs", "data") == 0
    text = (tmp_path / "kendall.mnist.to-epoch_100.md").read_text()
    assert "| today's label | " in text
    assert "τ above today's label" in text
    assert "lack one of the two checkpoints" not in text
    capsys.readouterr()
    line = refusal(kendall.main, [*options[:-1], "current_label", "--quick"], capsys)
    assert "add --label-checkpoint" in line


def test_the_average_with_todays_label_trusts_the_part_that_ranks_validation_better() -> None:
    draw = np.random.default_rng(0)
    training, today = draw.random((2, 30))
    truth, predicted, current = draw.random((3, 20)).astype(np.float32)
    runs = np.arange(20)
    parts = [
        Outcome(values, truth, runs, {"validation_tau": tau, "parameters": 1, "wall_seconds": 1.0})
        for values, tau in ((predicted, 0.5), (current, 0.9))
    ]
    unexplained = np.cos(np.pi / 2 * np.array([0.5, 0.9])) ** 2
    first, second = Ranks.among(training).of(predicted), Ranks.among(today).of(current)
    expected = (first / unexplained[0] + second / unexplained[1]) / (1 / unexplained).sum()
    together = _average(parts, training, today)
    np.testing.assert_allclose(Ranks.among(training).of(together.predicted), expected, atol=1e-5)
    assert unexplained[0] > 20 * unexplained[1]
