"""A zoo of a user's own task: opened without the name of its config, evaluated by name, described as it is."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml

import zoo
from tests.fabricated import TINY_MNIST, fabricate_shard, publish
from tests.refusal import refusal
from tests.zoo.own_zoo import publish_own_zoo
from zoo.export import main as export
from zoo.tasks.evaluation import _define_task
from zoo.verify import main as verify


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    publish_own_zoo(folder)
    return folder


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.usefixtures("here")
def test_the_only_config_need_not_be_named(tmp_path):
    import datasets

    named = zoo.open("my-zoo", "my-digits", split="test")
    assert zoo.open("my-zoo", split="test").metadata.equals(named.metadata)
    for load in (zoo.load_dataset, datasets.load_dataset):
        rows = load("my-zoo", split="test", cache_dir=str(tmp_path / "cache"))
        assert list(rows["run_id"]) == list(named.metadata["run_id"])  # pyright: ignore[reportIndexIssue]
    export(["my-zoo", str(tmp_path / "out"), "--format", "parquet", "--split", "test"])
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["my-digits-test.parquet"]


def test_of_several_configs_one_is_named_unless_there_is_mnist(zoo_folder, tmp_path):
    assert zoo.open(zoo_folder).config == "mnist"
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=8, seeds="distinct")
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=8, seeds="2", shard=1)
    publish(tmp_path / "runs", tmp_path / "zoo")
    with pytest.raises(ValueError, match="has 2 configs: name one of mnist-repeats, mnist-seeds"):
        zoo.open(tmp_path / "zoo")


@pytest.mark.usefixtures("here")
def test_a_model_is_evaluated_by_the_task_file_in_the_manifest(monkeypatch):
    reader = zoo.open("my-zoo", split="all")
    model = zoo.build_model(reader.spec, reader.weights(3))
    stored = pytest.approx(float(reader.metadata["test_accuracy"].iloc[3]))
    assert zoo.evaluate(model, "my-digits", zoo="my-zoo").accuracy == stored
    assert zoo.evaluate(model, "my-zoo").accuracy == stored
    with pytest.raises(ValueError, match=r"unknown task 'my-digits': mnist, agnews.* or a task of another zoo=FOLDER"):
        zoo.evaluate(model, "my-digits")
    monkeypatch.setenv("SMALL_TRANSFORMER_ZOO", str(Path("my-zoo").resolve()))
    assert zoo.evaluate(model, "my-digits").accuracy == stored
    monkeypatch.chdir("runs")
    with pytest.raises(FileNotFoundError, match=r"digits\.npz"):
        zoo.evaluate(model, "my-digits")
    assert zoo.evaluate(model, "my-digits", data="..").accuracy == stored


def test_a_config_with_another_name_than_its_task_names_it_too():
    assert _define_task("mnist-seeds", "small-transformer-zoo", fetch=False).name == "mnist"


@pytest.mark.usefixtures("here")
def test_the_card_says_nothing_that_is_not_so(tmp_path, monkeypatch):
    card = Path("my-zoo", "README.md").read_text()
    head = yaml.safe_load(card.split("---\n")[1])
    assert head.keys() == {"pretty_name", "size_categories", "tags", "configs"}, "neither a license nor a language"
    assert [config.get("default") for config in head["configs"]] == [True, None]
    for absent in ("mbedding.safetensors", "vocabulary", "-seeds", "shared seed", "reproduces", "Texts", "MNIST"):
        assert absent not in card
    assert "No license is stated for the checkpoints" in card
    assert "no residual connections" in card
    where = re.search(r"where=\"(checkpoint == .*)\"\)", card)
    assert where
    reader = zoo.open("my-zoo")
    chosen, at_checkpoint = len(reader.rows(where[1])), len(reader.rows(where[1].partition(" and ")[0]))
    assert at_checkpoint / 2 <= chosen <= at_checkpoint
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    example = re.search(r"```python\n(from datasets.*?)```", card, re.DOTALL)
    assert example
    values: dict = {}
    exec(example[1], values)  # noqa: S102
    assert values["weights"].flat().shape[0] == chosen


def test_parts_of_a_zoo_that_are_there_are_named(zoo_folder):
    card = (zoo_folder / "README.md").read_text()
    assert "`agnews/embedding.safetensors`, `agnews/vocabulary.json`" in card
    assert "With one shared seed" in card
    assert "The configs with a seed for each run show what remains." in card
    assert "default: true" not in card
    assert "Checkpoints of 117 small transformers (`agnews`, 20 runs" in card, "without the three that diverged"


def test_a_zoo_without_a_completed_run_has_no_examples(tmp_path):
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=2, diverged=2)
    publish(tmp_path / "runs", tmp_path / "zoo")
    assert "```python" not in (tmp_path / "zoo" / "README.md").read_text()
    verify([str(tmp_path / "zoo")])


def test_arrays_are_what_scikit_learn_takes(here):
    from sklearn.linear_model import Ridge

    reader = zoo.open("my-zoo", split="train")
    X, y = reader.arrays(where="checkpoint == 'best'", label="test_loss")
    rows = reader.rows("checkpoint == 'best'")
    assert (X.dtype, X.shape) == (np.float32, (len(rows), reader.spec.num_parameters))
    assert np.array_equal(X, reader.weights(rows).numpy())
    assert np.array_equal(y, reader.metadata["test_loss"].to_numpy()[rows])
    assert Ridge(alpha=1e-3).fit(X, y).score(X, y) > 0.9, "more weights than rows"
    whole, accuracy = reader.arrays()
    assert np.shares_memory(whole, reader.weights(slice(0, 64)).numpy()), "64 rows are a view of the file"
    assert np.array_equal(accuracy, reader.metadata["test_accuracy"])
    with pytest.raises(ValueError, match="read-only"):
        whole[0] = 0
    with pytest.raises(ValueError, match="'optimizer' is not a column of numbers: there are epoch, test_accuracy"):
        reader.arrays(label="optimizer")


def test_what_is_printed_of_an_object_is_one_line(zoo_folder):
    reader = zoo.open(zoo_folder, "agnews")
    assert repr(reader.embedding) == "<embedding of 50 words in 4 dimensions>"
    weights = zoo.TransformerWeights.from_flat(reader.spec, reader.weights(slice(0, 3)))
    assert repr(weights) == f"<weights of agnews [3, {reader.spec.num_parameters}], torch.float32>"
    for each in (reader, reader.embedding, reader.spec, weights):
        assert "\n" not in repr(each)
        assert len(repr(each)) < 300


def test_tables_take_the_only_config_and_name_the_choices(here, tmp_path, capsys):
    from benchmarks import kendall
    from benchmarks.experiment import Experiment
    from benchmarks.options import TableOptions

    usual = {"kendall": ("mnist",), "ablation_components": ("mnist", "agnews"), "augmentation": ("agnews",)}
    for benchmark, configs in usual.items():
        own = TableOptions(zoo=str(here / "my-zoo"), device="cpu")
        assert Experiment(benchmark, own).configs == ("my-digits",)
        assert Experiment(benchmark, TableOptions(device="cpu")).configs == configs
    line = refusal(kendall.main, ["--zoo", "my-zoo", "--config", "mnist"], capsys)
    assert "has no config 'mnist': it has my-digits" in line
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=8, seeds="distinct")
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=8, seeds="2", shard=1)
    publish(tmp_path / "runs", tmp_path / "zoo")
    line = refusal(kendall.main, ["--zoo", str(tmp_path / "zoo")], capsys)
    assert "has 2 configs: name one of mnist-repeats, mnist-seeds" in line
