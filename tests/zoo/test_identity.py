"""The identity of data: recognized by content, kept apart by content, and named in manifest and card."""

from dataclasses import replace
from pathlib import Path

import datasets
import pytest
import torch

import zoo
from tests.fabricated import TINY_MNIST, fabricate_shard, publish
from zoo.format.published import PublishedZoo
from zoo.format.record import check_same_data
from zoo.format.schema import PUBLISHED_RUN_SCHEMA
from zoo.join import _join
from zoo.publish import main
from zoo.tasks.examples import Examples, LabeledTexts, RawImages, TaskData
from zoo.tasks.identity import KNOWN, DataIdentity, shortfall, source_of
from zoo.verify import _Options, _verify, _verify_labels

NEWS = KNOWN["agnews"]
PART = DataIdentity(48_000, 7_600, "a" * 64, NEWS.test_sha256)
OTHER = DataIdentity(60_000, 10_000, "b" * 64, "c" * 64)


def invented_digits(seed: int) -> TaskData:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (50, 28, 28), dtype=torch.uint8, generator=generator)
    examples = Examples(images, torch.randint(0, 10, (50,), generator=generator))
    identity = RawImages.of(examples, examples, 10, str).identity
    return TaskData(TINY_MNIST, examples, examples, source_of("mnist", identity), identity=identity)


def test_a_part_of_the_known_training_set_is_named_with_both_counts() -> None:
    assert source_of("agnews", PART) == "ag_news"
    assert shortfall("agnews", "ag_news", PART) == "48,000 of the 120,000 training rows of AG News"
    assert shortfall("agnews", "ag_news", replace(PART, train_rows=120_000)) is None
    assert shortfall("agnews", "ag_news", None) is None


def test_other_data_in_the_same_form_has_a_name_of_its_own() -> None:
    source = source_of("mnist", OTHER)
    assert source.startswith("other data than MNIST, ")
    assert source_of("mnist", replace(OTHER, train_sha256="d" * 64)) != source
    note = shortfall("mnist", source, OTHER)
    assert note == f"{source} (60,000 training and 10,000 test rows), not on the whole of MNIST"


def test_the_known_test_set_with_another_training_set_of_full_size_is_other_data() -> None:
    mnist = KNOWN["mnist"]
    assert mnist.train_sha256 is not None
    whole = DataIdentity(60_000, 10_000, mnist.train_sha256, mnist.test_sha256)
    assert source_of("mnist", whole) == "mnist"
    assert source_of("mnist", replace(whole, train_sha256="d" * 64)).startswith("other data")


def test_hashes_see_every_pixel_label_and_boundary_of_texts() -> None:
    images, labels = torch.zeros(2, 3, 4, dtype=torch.uint8), torch.tensor([0, 1])
    changed = images.clone()
    changed[1, 2, 3] = 1
    hashes = [
        Examples(images, labels).content_hash(),
        Examples(changed, labels).content_hash(),
        Examples(images, labels.flip(0)).content_hash(),
        Examples(images.view(2, 4, 3), labels).content_hash(),
        LabeledTexts(["ab", "c"], [0, 1]).content_hash(),
        LabeledTexts(["a", "bc"], [0, 1]).content_hash(),
        LabeledTexts(["ab", "c"], [1, 0]).content_hash(),
    ]
    assert len(set(hashes)) == len(hashes)


def test_shards_of_different_data_are_not_published_as_one(tmp_path: Path) -> None:
    for shard in (0, 1):
        fabricate_shard(tmp_path / "runs", TINY_MNIST, shard=shard, count=4, task=invented_digits(shard))
    with pytest.raises(ValueError, match="mixes shards trained differently: data_source is"):
        publish(tmp_path / "runs", tmp_path / "out")


def test_shards_of_one_name_but_different_content_are_not_published_as_one(tmp_path: Path) -> None:
    for shard in (0, 1):
        task = replace(invented_digits(shard), source="mnist")
        fabricate_shard(tmp_path / "runs", TINY_MNIST, shard=shard, count=4, task=task)
    with pytest.raises(ValueError, match="mixes shards trained differently: data is"):
        publish(tmp_path / "runs", tmp_path / "out")


def test_configs_of_one_task_share_their_data(tmp_path: Path) -> None:
    for name, seeds in (("a", "shared"), ("b", "distinct")):
        for runs in (tmp_path / "runs", tmp_path / f"runs-{name}"):
            fabricate_shard(runs, TINY_MNIST, count=6, seeds=seeds, task=invented_digits(len(seeds)))
        publish(tmp_path / f"runs-{name}", tmp_path / name)
    with pytest.raises(ValueError, match="mnist and mnist-seeds were trained on different data"):
        publish(tmp_path / "runs", tmp_path / "out")
    with pytest.raises(ValueError, match="mnist and mnist-seeds were trained on different data"):
        _join([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_manifest_and_card_name_the_data(tmp_path: Path) -> None:
    task = invented_digits(0)
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=6, task=task)
    publish(tmp_path / "runs", tmp_path / "my-digits")
    config = PublishedZoo.read(tmp_path / "my-digits").config("mnist")
    assert config.data == task.identity
    check_same_data({"mnist": config})
    card = (tmp_path / "my-digits" / "README.md").read_text()
    assert task.source in card
    assert "50 training and 50 test rows" in card
    assert "50 of 60,000" not in card, "other data are not a part of MNIST"
    assert config.data is not None
    assert config.data.test_sha256[:12] in card


def test_accuracy_is_measured_again_only_on_the_same_test_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = replace(invented_digits(0), source="mnist")
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=6, task=task)
    publish(tmp_path / "runs", tmp_path / "zoo")
    monkeypatch.setattr("zoo.verify.load_task", lambda *_: task)
    assert _verify_labels(tmp_path / "zoo", _Options(evaluate=2, data=tmp_path)) == []
    monkeypatch.setattr("zoo.verify.load_task", lambda *_: replace(invented_digits(1), source="mnist"))
    with pytest.raises(ValueError, match="with another test set"):
        _verify_labels(tmp_path / "zoo", _Options(evaluate=2, data=tmp_path))


def test_a_zoo_with_an_empty_split_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=3)
    main([str(tmp_path / "runs"), str(tmp_path / "zoo")])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "no run belongs in test yet" in line]
    assert line.startswith("mnist: ")
    assert line.endswith("more runs fill it, or other --splits of zoo.publish than 70/15/15")
    assert _verify(tmp_path / "zoo") == []
    assert len(zoo.open(tmp_path / "zoo", "mnist", split="test")) == 0
    for load in (datasets.load_dataset, zoo.load_dataset):
        loaded = load(str(tmp_path / "zoo"), "mnist", cache_dir=str(tmp_path / "cache"))
        assert {split: len(rows) for split, rows in loaded.items()} == {"train": 8, "validation": 4}


def test_the_card_names_its_own_zoo_and_sizes(tmp_path: Path) -> None:
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=8, diverged=1)
    publish(tmp_path / "runs", tmp_path / "my-digits")
    card = (tmp_path / "my-digits" / "README.md").read_text()
    assert 'load_dataset("my-digits", "mnist")' in card
    assert f"float32 [{TINY_MNIST.num_parameters}]" in card
    assert "AG News" not in card
    assert f"| mnist | {TINY_MNIST.num_parameters} | 4 | 2 | 2 | 2 | 2 | 4 | 49 | 10 | 4×4 patches |" in card
    assert all(f"| {name} |" in card for name in PUBLISHED_RUN_SCHEMA.names)
    publish(tmp_path / "runs", tmp_path / "pushed", name="owner/digits")
    assert 'zoo.open("owner/digits", "mnist"' in (tmp_path / "pushed" / "README.md").read_text()


def test_the_card_at_the_top_of_the_repository_is_the_samples() -> None:
    root = Path(__file__).parent.parent.parent
    assert (root / "DATASET_CARD.md").read_bytes() == (root / "small-transformer-zoo" / "README.md").read_bytes()
