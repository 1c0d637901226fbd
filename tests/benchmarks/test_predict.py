"""Ranking checkpoints with a fitted predictor: zoos, files, and one line for whatever cannot be read."""

import csv
import re
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

import nfn
import zoo
from benchmarks import kendall, predict, pretrain
from benchmarks.data import Checkpoints, Fitted
from benchmarks.leaderboard.__main__ import main as leaderboard
from benchmarks.models import training
from benchmarks.statistics import kendall_tau
from nfn.predictors.conformal import ConformalInterval
from tests.benchmarks.synthetic import invent_data, random_label
from tests.fabricated import TINY_MNIST, fabricate_shard, folder_contents, publish
from tests.refusal import refusal
from zoo.export import export_checkpoints
from zoo.format.hyperparameters import CONFIGURATION
from zoo.format.splits import SPLITS

SAMPLE = "small-transformer-zoo"


@pytest.fixture(scope="module")
def tiny_zoo(make_zoo: Callable[[int, int], Path]) -> Path:
    """Fewer runs than elsewhere: Gauge-NFN asks each of their checkpoints about 192 images."""
    return make_zoo(24, 9)


@pytest.fixture(scope="module")
def fitted(tiny_zoo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A predictor of the tiny zoo, fitted for one epoch."""
    path = tmp_path_factory.mktemp("fitted") / "tiny.safetensors"
    pretrain.main(["--zoo", str(tiny_zoo), "--config", "mnist", "--epochs", "1", "--out", str(path)])
    return path


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_predictor_that_was_fitted_on_a_gpu_is_asked_on_the_cpu(tiny_zoo: Path, tmp_path: Path) -> None:
    path = tmp_path / "mnist.safetensors"
    pretrain.main(
        ["--zoo", str(tiny_zoo), "--config", "mnist", "--epochs", "1", "--device", "cuda", "--out", str(path)]
    )
    assert path.with_suffix(".toml").exists()


def test_the_card_says_what_the_stored_predictor_reaches(fitted: Path, tiny_zoo: Path) -> None:
    predictor = nfn.load_pretrained(fitted)
    test = zoo.open(tiny_zoo, "mnist", split="test")
    accuracy, low, high = predictor.predict(test.weights(slice(None)))
    truth = test.metadata["test_accuracy"].to_numpy()
    (measured,) = predictor.card["test"]
    assert (measured["config"], measured["configurations"]) == ("mnist", "all")
    assert measured["tau"] == pytest.approx(kendall_tau(accuracy.numpy(), truth), abs=1e-4)
    inside = (low.numpy() <= truth) & (truth <= high.numpy())
    assert measured["share_inside_interval"] == pytest.approx(inside.mean(), abs=1e-4)
    assert predictor.card["data"]["train_rows"] == len(zoo.open(tiny_zoo, "mnist", split="train"))
    assert type(predictor.predictor) is nfn.GaugeNFN
    assert predictor.predictor.sources == ("invariants", "responses")


class Joint(NamedTuple):
    """A zoo with one seed and with a seed for each run, and a predictor of both, fitted for one epoch."""

    zoo: Path
    predictor: Path
    fits: list[tuple[Checkpoints, Checkpoints, Fitted]]
    """The train and validation rows of every fit, and what was fitted."""


@pytest.fixture(scope="module")
def joint(tmp_path_factory: pytest.TempPathFactory) -> Joint:
    folder = tmp_path_factory.mktemp("joint")
    for seeds, count in (("shared", 32), ("distinct", 48)):
        fabricate_shard(folder / "runs", TINY_MNIST, count=count, seeds=seeds)
    publish(folder / "runs", folder / "zoo")
    made = Joint(folder / "zoo", folder / "mnist.safetensors", [])
    configs = ["--config", "mnist", "mnist-seeds", "mnist"]

    def train_together(build, seeds, train, validation, *rest):
        (fitted,) = training.train_together(build, seeds, train, validation, *rest)
        made.fits.append((train, validation, fitted))
        return [fitted]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretrain, "train_together", train_together)
        pretrain.main(["--zoo", str(made.zoo), *configs, "--epochs", "1", "--out", str(made.predictor)])
    return made


def test_one_predictor_is_fitted_on_several_configs_and_tested_on_each(joint: Joint, capsys) -> None:
    folder, path, _ = joint
    predictor = nfn.load_pretrained(path)
    card, configs = predictor.card, ("mnist", "mnist-seeds")
    assert card["data"]["config"] == list(configs)
    readers = {config: {split: zoo.open(folder, config, split=split) for split in SPLITS} for config in configs}
    for split in ("train", "validation"):
        assert card["data"][f"{split}_rows"] == sum(len(readers[config][split]) for config in configs)
    tests = {(test["config"], test["configurations"]): test for test in card["test"]}
    assert tests.keys() == {(config, rows) for config in configs for rows in ("all", "unseen")}
    fitted_on = pd.concat([readers[config]["train"].metadata for config in configs])
    for config in configs:
        test = readers[config]["test"]
        predicted, truth = predictor(test.weights(slice(None))).detach(), test.metadata["test_accuracy"].to_numpy()
        new = ~pd.MultiIndex.from_frame(test.metadata[list(CONFIGURATION)]).isin(
            pd.MultiIndex.from_frame(fitted_on[list(CONFIGURATION)])
        )
        assert 0 < new.sum() < len(new)
        for rows, chosen in (("all", np.full(len(test), True)), ("unseen", new)):
            assert tests[config, rows]["rows"] == chosen.sum()
            tau = kendall_tau(predicted.numpy()[chosen], truth[chosen])
            assert tests[config, rows]["tau"] == pytest.approx(tau, abs=1e-4)
        predict.main([str(folder), "--config", config, "--predictor", str(path)])
        assert f"measured checkpoints of {len(set(test.metadata['run_id']))} runs" in capsys.readouterr().out
    predict.main([str(folder), "--predictor", str(path)])
    assert ", mnist, test: " in capsys.readouterr().out, "the first that it was fitted on"


def test_the_interval_is_made_for_seeds_of_ones_own_and_configurations_that_were_not_fitted_on(joint: Joint) -> None:
    predictor = nfn.load_pretrained(joint.predictor)
    *folds, (train, validation, last) = joint.fits
    every = train.with_rows_of(validation)
    own = np.isin(every.runs, zoo.open(joint.zoo, "mnist-seeds", split="all").metadata["run_id"])
    numbers, predicted = every.configurations(), np.full(len(every), np.nan, np.float32)
    for fitted_on, chosen_on, fitted in folds:
        known = np.isin(every.runs, [*fitted_on.runs, *chosen_on.runs])
        assert not set(numbers[known]) & set(numbers[~known]), "all runs of a configuration are held out together"
        assert len(set(fitted_on.runs)) > len(set(every.runs)) / 2
        rows = np.flatnonzero(~known & own)
        assert np.isnan(predicted[rows]).all(), "each row is held out once"
        predicted[rows] = fitted.predict(every.take(rows))
    card = predictor.card["interval"]
    assert (card["config"], card["folds"], card["rows"]) == (["mnist-seeds"], len(folds), own.sum())
    assert np.isfinite(predicted[own]).all()
    expected = ConformalInterval.fit(torch.from_numpy(predicted[own]), torch.from_numpy(every.truth()[own]))
    torch.testing.assert_close(predictor.interval.half_widths, expected.half_widths, atol=1e-3, rtol=0)
    np.testing.assert_allclose(last.predict(validation), predictor(validation.weights).detach(), atol=1e-3)


def test_a_run_of_two_configs_is_on_one_side_of_every_split() -> None:
    one, other = (invent_data(6, 4, 2, random_label) for _ in range(2))
    in_train, in_validation, in_test = one.train.runs[0], one.validation.runs[0], one.open_test().runs[0]
    train, validation = [in_validation, in_test, in_train, "a", "b", "c"], [in_train, in_test, in_validation, "d"]
    other = replace(
        other,
        train=replace(other.train, metadata=other.train.metadata.assign(run_id=train)),
        validation=replace(other.validation, metadata=other.validation.metadata.assign(run_id=validation)),
    )
    joined = pretrain._joined([one, other], list(one.open_test().runs))
    assert joined.train.runs.tolist() == [*one.train.runs[1:], "a", "b", "c"], "each run once"
    assert joined.validation.runs.tolist() == [*one.validation.runs, in_train, "d"]
    for rows in (joined.train, joined.validation):
        assert len(rows.weights) == len(rows.accuracy) == len(rows.hyperparameters) == len(rows.runs)
    torch.testing.assert_close(joined.train.weights[-3:], other.train.weights[3:])


def test_the_sample_is_ranked_with_the_predictor_of_its_config(tmp_path: Path, capsys) -> None:
    out = tmp_path / "ranking.csv"
    predict.main([SAMPLE, "--config", "mnist", "--top", "3", "--out", str(out)])
    printed = capsys.readouterr().out
    rows = list(csv.DictReader(out.read_text().splitlines()))
    predicted = np.array([float(row["predicted"]) for row in rows])
    assert (np.diff(predicted) <= 0).all()
    assert f"1. {rows[0]['checkpoint']}" in printed
    assert "\n4. " not in printed
    tau = kendall_tau(predicted, np.array([float(row["measured"]) for row in rows]))
    assert f"measured checkpoints of 41 runs: {tau:.3f} [" in printed
    assert tau > 0.85, "it was fitted on other runs"
    assert all(float(row["low"]) <= float(row["predicted"]) <= float(row["high"]) for row in rows)


def test_files_are_ranked_as_their_rows_are(tmp_path: Path, capsys) -> None:
    reader = zoo.open(SAMPLE, "agnews", split="test")
    export_checkpoints(reader, tmp_path / "files", "safetensors", "checkpoint == 'best'")
    first = reader.rows("checkpoint == 'best'")[0]
    model = zoo.build_model(zoo.AGNEWS, reader.weights(int(first)))
    torch.save(model.state_dict(), tmp_path / "model.pt")
    out = tmp_path / "files.csv"
    predict.main([str(tmp_path / "files"), str(tmp_path / "model.pt"), "--out", str(out)])
    by_name = {Path(row["checkpoint"]).name: row for row in csv.DictReader(out.read_text().splitlines())}
    rows = tmp_path / "rows.csv"
    predict.main([SAMPLE, "--config", "agnews", "--where", "checkpoint == 'best'", "--out", str(rows)])
    in_zoo = {
        row["checkpoint"].replace(" ", "-") + ".safetensors": row
        for row in csv.DictReader(rows.read_text().splitlines())
    }
    for name, row in in_zoo.items():
        assert float(by_name[name]["predicted"]) == pytest.approx(float(row["predicted"]), abs=1e-6)
        assert float(by_name[name]["measured"]) == pytest.approx(float(row["measured"]))
    same = f"{reader.metadata['run_id'].iloc[first]}-best.safetensors"
    assert float(by_name["model.pt"]["predicted"]) == pytest.approx(float(by_name[same]["predicted"]), abs=1e-6)
    assert by_name["model.pt"]["measured"] == "", "a state_dict does not say how accurate it is"
    assert f"{len(in_zoo)} measured checkpoints" in capsys.readouterr().out


def test_a_predictor_of_ones_own_is_named_by_its_file_or_folder(fitted: Path, tiny_zoo: Path, tmp_path: Path, capsys):
    predict.main([str(tiny_zoo), "--predictor", str(fitted)])
    assert re.search(r"Kendall's τ on 12 measured checkpoints of 3 runs: ", capsys.readouterr().out)
    spec = zoo.open(tiny_zoo, "mnist").spec
    nfn.save_predictor(nfn.StatNN(spec), tmp_path / "saved")
    predict.main([str(tiny_zoo), "--config", "mnist", "--predictor", str(tmp_path / "saved")])
    assert "interval" not in capsys.readouterr().out, "it has none"


@pytest.mark.parametrize("text", ["data = 3", "data = {config = 3}", "data = {config = [3]}"])
def test_a_card_whose_data_are_no_table_is_one_line(
    text: str, fitted: Path, tiny_zoo: Path, tmp_path: Path, capsys
) -> None:
    own = tmp_path / "own.safetensors"
    own.write_bytes(fitted.read_bytes())
    own.with_suffix(".toml").write_text(text)
    words = [str(tiny_zoo), "--predictor", str(own)]
    assert "data must be a table with the config" in refusal(predict.main, words, capsys)


def few_runs(folder: Path, count: int) -> Path:
    """A zoo of the first runs of MNIST: the first two are in train, the next three not in test, the sixth is."""
    fabricate_shard(folder / "runs", TINY_MNIST, count=count)
    publish(folder / "runs", folder / "zoo")
    return folder / "zoo"


def test_a_split_without_rows_is_one_line(fitted: Path, tmp_path: Path, capsys) -> None:
    zoo_without_test = few_runs(tmp_path, 4)
    words = ["--zoo", str(zoo_without_test), "--out", str(tmp_path / "out"), "--checkpoint"]
    for main, arguments in (
        (predict.main, [str(zoo_without_test), "--predictor", str(fitted)]),
        (kendall.main, [*words, "all"]),
        (kendall.main, [*words, "best"]),
        (leaderboard, ["submit", "hyperparameters", *words, "all"]),
    ):
        assert "the test split of mnist has no rows" in refusal(main, arguments, capsys)


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        (4, "the test split of mnist has no rows"),
        (6, "the test split of mnist has 1 row, at least 2 needed"),
    ],
)
def test_a_predictor_is_not_fitted_where_a_split_has_too_few_rows(
    runs: int, message: str, tmp_path: Path, capsys
) -> None:
    out = tmp_path / "out" / "few.safetensors"
    words = ["--zoo", str(few_runs(tmp_path, runs)), "--checkpoint", "best", "--out", str(out)]
    assert message in refusal(pretrain.main, words, capsys)
    assert not out.parent.exists()


def test_a_predictor_that_cannot_be_judged_leaves_the_old_one_and_its_card(
    fitted: Path, tiny_zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    out = tmp_path / "tiny.safetensors"
    for suffix in (".safetensors", ".toml"):
        shutil.copy(fitted.with_suffix(suffix), out.with_suffix(suffix))
    old = folder_contents(tmp_path)

    def fail(*_: object) -> None:
        raise ValueError("not judged")

    monkeypatch.setattr(pretrain, "_measured", fail)
    words = ["--zoo", str(tiny_zoo), "--config", "mnist", "--epochs", "1", "--out", str(out)]
    assert "not judged" in refusal(pretrain.main, words, capsys)
    assert folder_contents(tmp_path) == old


def hostile(path: Path) -> None:
    class Harm:
        def __reduce__(self):
            return Path.touch, (path.parent / "harmed",)

    torch.save({"embedding.weight": Harm()}, path)


def bomb(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("archive/data/0", "w") as file:
        for _ in range(65):
            file.write(bytes(1 << 20))


STATE = {name: torch.zeros(slot.shape) for name, slot in zoo.MNIST.tensors.items()}
NOT_ONE = "is not a state_dict of floating-point tensors: 'embedding.bias' is not one"
FAULTS = {
    "wider.safetensors": (
        lambda path: save_file(STATE | {"blocks.1.query.weight": torch.zeros(64, 32)}, path),
        "for mnist, blocks.1.query.weight is [64, 32] instead of [32, 32]",
    ),
    "more.pt": (lambda path: torch.save(STATE | {"norm.weight": torch.zeros(3)}, path), "norm.weight is unknown"),
    "less.safetensors": (lambda path: save_file({"a": torch.zeros(3)}, path), "embedding.weight is missing"),
    "nan.pt": (
        lambda path: torch.save(STATE | {"embedding.bias": torch.full((32,), torch.nan)}, path),
        "weights hold NaN or infinity, first in embedding.bias",
    ),
    "whole.numbers.pt": (lambda path: torch.save({"a": torch.zeros(3, dtype=torch.int64)}, path), "'a' is not one"),
    "sparse.pt": (lambda path: torch.save(STATE | {"embedding.bias": torch.zeros(32).to_sparse()}, path), NOT_ONE),
    "meta.pt": (lambda path: torch.save(STATE | {"embedding.bias": torch.zeros(32, device="meta")}, path), NOT_ONE),
    "complex.pt": (lambda path: torch.save(STATE | {"embedding.bias": torch.zeros(32) * 1j}, path), NOT_ONE),
    "list.pt": (lambda path: torch.save([torch.zeros(3)], path), "is not a state_dict but a list"),
    "hostile.pt": (hostile, "holds more than tensors and is not read: save model.state_dict()"),
    "bomb.pt": (bomb, "bytes unpacked, at most 67,108,864 are read"),
    "text.pt": (lambda path: path.write_text("weights"), "is not a file that torch.save writes"),
    "text.safetensors": (lambda path: path.write_text("weights"), "is damaged"),
    "weights.npy": (lambda path: np.save(path, np.zeros(3)), "should end in .safetensors, .pt"),
    "empty": (Path.mkdir, "holds neither a zoo"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_cannot_be_ranked_is_one_line(name: str, tmp_path: Path, capsys) -> None:
    write, message = FAULTS[name]
    write(tmp_path / name)
    assert message in refusal(predict.main, [str(tmp_path / name)], capsys)
    assert not (tmp_path / "harmed").exists()


def test_options_that_do_not_fit_are_one_line(tiny_zoo: Path, fitted: Path, tmp_path: Path, capsys) -> None:
    assert "choose one of agnews, mnist with --config" in refusal(predict.main, [str(tiny_zoo)], capsys)
    assert "no fitted predictor of this package reads mnist" in refusal(
        predict.main, [str(tiny_zoo), "--config", "mnist"], capsys
    )
    assert "dim 4 and 32" in refusal(predict.main, [SAMPLE, "--config", "mnist", "--predictor", str(fitted)], capsys)
    assert "no zoo called 'nowhere'" in refusal(predict.main, ["nowhere"], capsys)
    assert "some/where.pt: No such file" in refusal(predict.main, ["some/where.pt"], capsys)
    torch.save(STATE, tmp_path / "a.pt")
    assert "choose rows of a zoo" in refusal(predict.main, [str(tmp_path / "a.pt"), "--where", "seed == 0"], capsys)
    assert "choose rows of a zoo" in refusal(predict.main, [str(tmp_path / "a.pt"), "--split", "train"], capsys)
    assert "must end in .safetensors" in refusal(pretrain.main, ["--out", "a.pt"], capsys)
    words = ["--zoo", str(tiny_zoo), "--out", str(tmp_path / "a.safetensors"), "--config", "mnist"]
    assert "mnist and agnews differ: task mnist and agnews" in refusal(pretrain.main, [*words, "agnews"], capsys)
    assert "has no config 'mnist-seeds'" in refusal(pretrain.main, [*words, "mnist-seeds"], capsys)


def test_a_file_that_is_not_an_older_predictor_is_never_replaced(
    fitted: Path, tmp_path: Path, tiny_zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--zoo", str(tiny_zoo), "--epochs", "1", "--out", str(tmp_path / "mine.safetensors")]
    (tmp_path / "mine.toml").write_text('name = "digits"\n')
    assert "mine.toml exists and is not the card of a predictor" in refusal(pretrain.main, words, capsys)
    shutil.copy(fitted, tmp_path / "mine.safetensors")
    assert "mine.toml exists and is not the card of a predictor" in refusal(pretrain.main, words, capsys)
    assert (tmp_path / "mine.toml").read_text() == 'name = "digits"\n'
    shutil.copy(fitted.with_suffix(".toml"), tmp_path / "mine.toml")
    pretrain.main(words)
    (tmp_path / "mine.safetensors").write_bytes(b"notes")
    assert "mine.safetensors is damaged" in refusal(pretrain.main, words, capsys)
    assert (tmp_path / "mine.safetensors").read_bytes() == b"notes"


def test_runs_of_one_configuration_are_drawn_together() -> None:
    random = np.random.default_rng(0)
    names = [f"{number:02d}" for number in range(12)]
    ranking = pd.DataFrame(dict.fromkeys(("predicted", "measured"), random.random(12)) | {"run": names})
    ranking = ranking.assign(predicted=random.random(12), low=np.nan, high=np.nan)
    by_run, by_unit = predict._verdict(ranking), predict._verdict(ranking.assign(unit=[0, 1] * 6))
    alone = predict._verdict(ranking.assign(unit=0))
    tau, interval = by_run.split(" [")
    assert by_unit.startswith(f"{tau} [")
    assert not by_unit.endswith(interval)
    assert alone == tau, "one configuration has no interval"
