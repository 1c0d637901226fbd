"""Which recipe made these weights: on a zoo whose weights show the initial deviation and nothing else."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import zoo
from benchmarks import recipe, results
from benchmarks.recipe import _edges, _features, _values
from benchmarks.report import _Contents
from benchmarks.results import ResultIndex
from nfn import MLPPredictor, RawMomentsPredictor, StatNN
from tests import fabricated as testing
from tests.fabricated import TINY_MNIST, fabricate_shard, publish
from tests.refusal import refusal
from zoo import TransformerWeights


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 runs; the size of the weights is the initial deviation."""
    root, deviations = tmp_path_factory.mktemp("recipe"), {}
    run_row, invented = testing.run_row, testing.invented_weights

    def remembered(*arguments):
        row = run_row(*arguments)
        deviations[row["run_id"]] = row["init_std"]
        return row

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(testing, "run_row", remembered)
        patch.setattr(testing, "invented_weights", lambda *which: np.float32(deviations[which[1]]) * invented(*which))
        fabricate_shard(root / "runs", TINY_MNIST, count=120)
    publish(root / "runs", root / "zoo")
    return root / "zoo"


def test_what_the_weights_show_is_read_and_nothing_else_is(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--zoo", str(folder), "--out", str(tmp_path), "--device", "cpu", "--seeds", "2", "--epochs", "12"]
    recipe.main([*options, "--models", "raw_moments", "statnn"])
    index = ResultIndex.latest(results.read("recipe", tmp_path), "mnist")
    asked = {str(row.setting["hyperparameter"]) for row in index.rows}
    assert asked == {"optimizer", "learning_rate", "weight_decay", "init_std", "dropout", "epoch"}
    for model in ("raw_moments", "statnn"):
        assert (index.value("accuracy", model, hyperparameter="init_std") or 0) > 0.95
        assert (index.value("tau", model, hyperparameter="init_std") or 0) > 0.6
        assert index.value("tau", model, hyperparameter="optimizer") is None
        for unseen in ("optimizer", "learning_rate", "dropout", "epoch"):
            interval = index.interval("accuracy", model, hyperparameter=unseen)
            chance = index.value("chance", "data", hyperparameter=unseen)
            assert interval is not None
            assert chance is not None
            assert interval[0] - 0.1 < chance < interval[1] + 0.1
    assert index.value("chance", "data", hyperparameter="weight_decay") == 1 / 8
    text = (tmp_path / "recipe.mnist.md").read_text()
    assert text.startswith(
        "| Accuracy, mnist | optimizer | learning rate | weight decay | init std | dropout | epoch |"
    )
    assert "| majority | " in text
    assert _Contents(tmp_path).names()["recipes"]() == text.strip()
    assert _Contents(tmp_path / "elsewhere").names()["recipes"]() == ""
    capsys.readouterr()
    line = refusal(recipe.main, [*options, "--models", "hyperparameters"], capsys)
    assert "hyperparameters has no features to read" in line
    runs = [zoo.open(folder, "mnist", split=split).metadata["run_id"].iloc[0] for split in ("train", "validation")]
    few = ["--models", "statnn", "--where", f"run_id in {runs} and checkpoint == 'best'"]
    line = refusal(recipe.main, [*options, *few], capsys)
    assert "the validation split of mnist has 1 row, at least 2 needed" in line


def test_the_classes_are_the_values_of_the_grid_or_equally_full_intervals() -> None:
    grid = _edges(pd.DataFrame({"learning_rate": [1e-2, 1e-4, 1e-4, 1e-3]}), "learning_rate")
    rows = pd.DataFrame({"learning_rate": [1e-4, 1e-3, 1e-2, 1.0], "optimizer": ["sgd", "adam", "rmsprop", "sgd"]})
    assert len(grid) == 2
    assert np.searchsorted(grid, _values(rows, "learning_rate")).tolist() == [0, 1, 2, 2]
    optimizers = _edges(rows, "optimizer")
    assert len(optimizers) == 3
    assert np.searchsorted(optimizers, _values(rows, "optimizer")).tolist() == [0, 2, 3, 0]
    many = pd.DataFrame({"weight_decay": np.random.default_rng(0).random(800)})
    edges = _edges(many, "weight_decay")
    assert np.bincount(np.searchsorted(edges, _values(many, "weight_decay"))).tolist() == [100] * 8


def test_features_are_what_the_networks_of_a_predictor_read() -> None:
    weights = TransformerWeights.from_flat(TINY_MNIST, torch.randn(5, TINY_MNIST.num_parameters))
    mlp, moments = MLPPredictor(TINY_MNIST), RawMomentsPredictor(TINY_MNIST)
    assert torch.equal(_features(mlp, weights), weights.flat())
    assert torch.equal(_features(moments, weights), moments.inputs(weights))
    statistics = _features(StatNN(TINY_MNIST, components=["classifier"]), weights)
    first = weights["classifier.fc1.weight"].flatten(1)
    assert statistics.shape == (5, 4 * 7)
    torch.testing.assert_close(statistics[:, [0, 2, 6]], torch.stack([first.mean(1), *first.aminmax(dim=1)], dim=1))
