"""A zoo of language models and one of learned word vectors, from text files to what readers get."""

import contextlib
import shutil
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch

import zoo
from generation.run import main as run
from tests.fabricated import TINY_MNIST, fabricate_shard
from tests.faults.rewriting import rewrite, set_value
from tests.generation.small_tasks import TINY_LINES, write_lines, write_texts
from tests.refusal import refusal
from tests.zoo.written_page import config_of, file_beside, write_page
from zoo.describe import main as describe
from zoo.export import main as export
from zoo.format.hyperparameters import HYPERPARAMETERS
from zoo.format.published import PublishedZoo
from zoo.format.schema import LANGUAGE_LABELS
from zoo.join import _join
from zoo.page.pictures import Example, _characters_example, find_example, picture
from zoo.page.tables import hyperparameters
from zoo.plots import plot_circuits
from zoo.publish import main as publish
from zoo.tasks.evaluation import load_task
from zoo.verify import _verify
from zoo.verify import main as verify

RUNS = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``zoo`` with both configs, in a folder with the data and the files of its tasks."""
    folder = tmp_path_factory.mktemp("language")
    write_lines(folder)
    write_texts(folder, train=96, test=40)
    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as unannounced:
        unannounced.setattr("generation.shard.estimate_seconds", lambda *_, **__: (0.0, "torch"))
        for task, shard in (("lines", "0"), ("lines", "1"), ("words", "0")):
            run(["--task", f"{task}.toml", "--shard", shard, "--device", "cpu", "--out", "runs"])
        publish(["runs", "zoo"])
    return folder


def test_what_was_trained_is_verified_and_measured_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    verify(["zoo", "--evaluate", "4"])
    assert "accuracy of 4 random rows per config measured again" in capsys.readouterr().out
    reader = zoo.open("zoo", "lines", split="all")
    assert reader.spec == TINY_LINES
    assert len(reader) == RUNS * 3
    assert set(reader.metadata["checkpoint"]) == {"epoch_1", "epoch_3", "best"}
    assert bool((reader.metadata[list(LANGUAGE_LABELS)].to_numpy() > 0).all())
    for row in (0, 20, 47):
        model = zoo.build_model(reader.spec, reader.weights(row))
        assert model(torch.zeros(2, 8, dtype=torch.long)).shape == (2, 8, 11)
        for task in ("lines", Path("lines.toml")):
            measured = zoo.evaluate(model, task, zoo="zoo")
            assert measured.loss == pytest.approx(float(reader.metadata["test_loss"].iloc[row]), abs=1e-4)
    for run_id, curve, best in zip(*(reader.runs[name] for name in ("run_id", "test_loss", "best_epoch")), strict=True):
        assert best == np.argmin(curve) + 1
        rows = reader.rows(f"run_id == '{run_id}' and checkpoint == 'best'")
        assert reader.metadata["test_loss"].iloc[rows].tolist() == [pytest.approx(min(curve), abs=1e-6)]
    words = zoo.open("zoo", "words", split="all")
    assert (words.spec.vocabulary, words.spec.causal) == (18, False)
    assert not set(LANGUAGE_LABELS) & set(words.metadata.columns)
    measured = zoo.evaluate(zoo.build_model(words.spec, words.weights(0)), "words", zoo="zoo")
    assert measured.loss == pytest.approx(float(words.metadata["test_loss"].iloc[0]), abs=1e-4)


def test_forged_labels_are_found_and_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is too small a change to contradict the run's curve."""
    shutil.copytree(folder / "zoo", tmp_path / "zoo")
    forged = {
        ("lines", 0): {"late_loss": -1e-3},
        ("lines", 1): {"test_loss": 2e-3, "early_loss": 0.01},
        ("lines", 2): {"bigram_divergence": 1e-3, "induction_loss": 0.5},
        ("words", 0): {"test_loss": 2e-3},
    }
    expected = {}
    for (config, row), changes in forged.items():
        (name,) = PublishedZoo.read(tmp_path / "zoo").files(config, "train")
        true = zoo.open(folder / "zoo", config).metadata.iloc[row]
        rewrite(tmp_path / "zoo", name, set_value(row, **{label: true[label] + by for label, by in changes.items()}))
        for label, by in changes.items():
            words = f"stored {label.removeprefix('test_').replace('_', ' ')} {true[label] + by:.4f}"
            expected[f"error: {tmp_path / 'zoo' / name}, row {row}: {words}"] = pytest.approx(true[label], abs=1e-4)
    assert _verify(tmp_path / "zoo") == []
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit):
        verify([str(tmp_path / "zoo"), "--evaluate", "1000"])
    found = dict(line.split(", measured ") for line in capsys.readouterr().err.splitlines())
    assert {line: float(measured) for line, measured in found.items()} == expected


def test_labels_are_those_of_the_text_that_was_trained_on(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The test text is the same, but the bigrams of the training text are others."""
    text = (folder / "lines.txt").read_text()
    (tmp_path / "lines.txt").write_text(text[1::-1] + text[2:])
    assert "with another text: name the folder of the same data with --data" in refusal(
        verify, [str(folder / "zoo"), "--evaluate", "1", "--data", str(tmp_path)], capsys
    )


def test_datasets_loads_every_column(folder: Path, tmp_path: Path) -> None:
    for load in (zoo.load_dataset, datasets.load_dataset):
        loaded = load(str(folder / "zoo"), "lines", cache_dir=str(tmp_path / "cache"))
        assert isinstance(loaded, datasets.DatasetDict)
        assert sum(map(len, loaded.values())) == RUNS * 3
        for split, rows in loaded.items():
            reader = zoo.open(folder / "zoo", "lines", split=str(split))
            assert rows.column_names == [*reader.metadata.columns, "weights"]
            for name in reader.metadata.columns:
                assert list(rows[name]) == reader.metadata[name].tolist(), name
            weights = rows.with_format("torch")["weights"]
            assert torch.equal(torch.stack(list(weights)), reader.weights(slice(None)))


def test_the_manifest_and_the_card_describe_the_tokens(folder: Path) -> None:
    details = PublishedZoo.read(folder / "zoo").configs
    assert details["lines"].characters == " abcdefghij"
    assert details["words"].characters is None
    card = (folder / "zoo" / "README.md").read_text()
    for statement in (
        "The transformers of `lines` are language models",
        "Token i stands for the i-th of the\n`characters` in `manifest.json`",
        "best (highest test accuracy; lowest test loss of language models)",
        "In `words` word vectors are learned, as rows of `embedding.weight`",
        *(f"| {name} | float | of language models: " for name in LANGUAGE_LABELS),
        "| `unembedding.weight` | 11 × 6 | – |",
    ):
        assert statement in card, statement


def test_learned_words_are_published_without_vectors(folder: Path) -> None:
    embedding = zoo.open(folder / "zoo", "words").embedding
    assert embedding is not None
    assert (len(embedding.vocabulary), embedding.table.shape) == (16, (18, 0))
    assert (folder / "zoo/words/embedding.safetensors").stat().st_size < 300
    card = (folder / "zoo/README.md").read_text()
    assert "embedding.safetensors" not in card
    assert "then those of `vocabulary.json`" in card


def test_it_is_described_and_exported(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    describe([str(folder / "zoo"), "--config", "lines"])
    assert "16 runs completed" in capsys.readouterr().out
    export([str(folder / "zoo"), "lines", str(tmp_path / "best"), "--where", "checkpoint == 'best'"])
    assert len(list((tmp_path / "best").glob("*-best.safetensors"))) == RUNS


@pytest.mark.long
def test_circuits_of_the_best_model_are_drawn(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr("zoo.describe.plot_circuits", lambda *given: drawn.append(given) or plot_circuits(*given))
    describe([str(folder / "zoo"), "--plots", str(tmp_path)])
    assert (tmp_path / "circuits.lines.png").read_bytes().startswith(b"\x89PNG")
    ((_, weights, characters, _),) = drawn
    reader = zoo.open(folder / "zoo", "lines", split="all")
    best = int(reader.metadata["test_loss"].argmin())
    assert torch.equal(weights.flat(), reader.weights(best))
    assert characters == reader.characters


def test_pictures_show_the_beginning_of_the_test_text(folder: Path) -> None:
    reader = zoo.open(folder / "zoo", "lines", split="all")
    example = find_example(reader, folder)
    assert isinstance(example, Example)
    text = (folder / "lines.txt").read_text()
    cut = len(text) * 9 // 10
    assert example.words == list(text[cut : cut + 8].replace(" ", "␣").replace("\n", "↵"))
    assert example.label is not None
    assert " abcdefghij"[example.label] == text[cut + 8]
    model = zoo.build_model(reader.spec, reader.weights(5))
    shown = picture(model, zoo.TransformerWeights.from_flat(reader.spec, reader.weights(5)), example)
    expected = torch.softmax(model(example.inputs)[0, -1], dim=-1).tolist()
    assert shown["probabilities"] == pytest.approx(expected, abs=1e-3)
    assert shown["tokens"] == 8
    assert "filters" not in shown
    assert {column["name"] for column in hyperparameters(reader)} == set(HYPERPARAMETERS)
    task = load_task(reader.details.definition(folder), folder, lambda: "")
    assert _characters_example(reader, replace(task, characters="!abcdefghij")) == (
        f"the characters of {task.source} are not those of these transformers"
    )


def test_pictures_of_learned_words_read_their_numbers(folder: Path) -> None:
    reader = zoo.open(folder / "zoo", "words", split="all")
    weights = zoo.TransformerWeights.from_flat(reader.spec, reader.weights(0))
    for data in (folder, folder / "nowhere"):
        example = find_example(reader, data)
        assert isinstance(example, Example)
        shown = picture(zoo.build_model(reader.spec, weights), weights, example)
        assert sum(shown["probabilities"]) == pytest.approx(1, abs=0.01)
        assert shown["tokens"] == len(example.words or [])


@pytest.mark.long
def test_a_page_holds_both(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    write_page(folder / "zoo", tmp_path / "site", pictured=1)
    for index, name in enumerate(("lines", "words")):
        config, spec = config_of(tmp_path / "site", index), zoo.open("zoo", name).spec
        (pictured,) = config["pictured"]
        shown = file_beside(tmp_path / "site", f"runs/{index}-{pictured:05d}")["best"]
        assert shown["tokens"] == len(config["example"]["words"])
        assert len(shown["probabilities"]) == spec.classes


def test_language_models_and_classifiers_are_one_sound_zoo(folder: Path, tmp_path: Path) -> None:
    fabricate_shard(tmp_path / "runs", TINY_MNIST)
    publish([str(tmp_path / "runs"), str(tmp_path / "mnist")])
    _join([folder / "zoo", tmp_path / "mnist"], tmp_path / "both")
    assert _verify(tmp_path / "both") == []
    assert list(PublishedZoo.read(tmp_path / "both").configs) == ["lines", "mnist", "words"]
    assert zoo.open(tmp_path / "both", "lines", split="all").metadata.equals(
        zoo.open(folder / "zoo", "lines", split="all").metadata
    )
