"""Images or texts that ``datasets`` can load: by a name on the Hugging Face hub, or from a folder."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from zoo.checked import Text, shown
from zoo.tasks.examples import (
    MAX_BYTES,
    ImageSplit,
    LabeledTexts,
    RawImages,
    RawTexts,
    class_names,
    class_numbers,
    join_images,
    join_texts,
)

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_SAVED_FILES = ("dataset_dict.json", "state.json")
"""Written by ``save_to_disk``; such a folder is read by ``load_from_disk`` alone."""


@dataclass(frozen=True)
class HuggingFaceData:
    """A data set with an image or text column and a label column.

    ``path`` is a folder (of ``save_to_disk``, of images, of parquet or CSV files, …) or else a name on the hub.
    ``input`` is by default the only column of images, else the only one of texts. Class labels are taken as they are;
    of numbers and texts, the classes are the distinct ones of the training set.
    """

    path: Text
    config: Text | None = None
    input: Text | None = None
    label: Text = "label"
    train: Text = "train"
    test: Text = "test"

    def __post_init__(self) -> None:
        if self.input == self.label:
            raise ValueError(f"input must be another column than label, got {shown(self.label)} for both")
        if self.train == self.test:
            raise ValueError(f"test must be another split than train, got {shown(self.test)} for both")

    def read(self, base: Path) -> RawImages | RawTexts:
        folder = base / self.path
        local = folder.is_dir()
        where = str(folder) if local else " ".join(filter(None, (self.path, self.config)))
        loaded = _load(self.path, folder, self.config)
        for split in (self.train, self.test):
            if split not in loaded:
                raise ValueError(f"{where} has no split {split!r}: it has {', '.join(map(str, loaded))}")
            if len(loaded[split]) == 0:
                raise ValueError(f"{where}: the split {split!r} is empty")
        train, test = (_Split(loaded[split], f"{where}: {split}") for split in (self.train, self.test))
        column = self.input or train.only_input(self.label)
        _check_columns(train, test, (column, self.label))
        labels, test_labels, classes = _read_labels(train, test, self.label)
        title = folder.resolve().name if local else where
        at, test_at = (split.at(self.label) for split in (train, test))
        if train.holds_images(column):
            return join_images(
                title,
                ImageSplit(train.images(column), torch.tensor(labels), train.at(column), at),
                ImageSplit(test.images(column), torch.tensor(test_labels), test.at(column), test_at),
                classes,
            )
        if not train.holds_texts(column):
            raise ValueError(f"{train.at(column)} holds neither images nor texts")
        texts, test_texts = (split.values(column) for split in (train, test))
        seen, unseen = LabeledTexts(texts, labels), LabeledTexts(test_texts, test_labels)
        return join_texts(title, seen, unseen, classes, at, test_at)


@dataclass(frozen=True)
class _Split:
    """The rows of a split, and what to call them in a message."""

    rows: "Dataset"
    where: str

    def at(self, column: str) -> str:
        return f"{self.where}, column {column}"

    def holds_images(self, column: str) -> bool:
        from datasets import Image

        return isinstance(self.rows.features[column], Image)

    def holds_texts(self, column: str) -> bool:
        return getattr(self.rows.features[column], "dtype", None) in ("string", "large_string")

    def only_input(self, label: str) -> str:
        """The only column of images; where there is none, the only one of texts beside the label."""
        columns = [column for column in self.rows.column_names if column != label]
        found = [column for column in columns if self.holds_images(column)]
        found = found or [column for column in columns if self.holds_texts(column)]
        if not found:
            raise ValueError(f"{self.where} has no column of images or texts: it has {', '.join(columns)}")
        if len(found) > 1:
            raise ValueError(f"{self.where} has several columns to read, {', '.join(found)}: name one as input")
        return found[0]

    def images(self, column: str) -> UInt8[Tensor, "n height width *channels"]:
        """The images as bytes; those that are neither gray nor RGB become RGB."""
        rows, images = self.rows.select_columns(column), None
        for row in range(len(rows)):
            try:
                image = rows[row][column]
            # Pillow raises many types for an image that it cannot read
            except Exception as error:
                raise ValueError(f"{self.at(column)}, row {row + 1:,} cannot be read: {_reason(error)}") from error
            if image is None:
                raise ValueError(f"{self.at(column)}, row {row + 1:,} is empty")
            pixels = np.asarray(image if image.mode in ("L", "RGB") else image.convert("RGB"))
            if images is None:
                if pixels.size * len(rows) > MAX_BYTES:
                    raise ValueError(
                        f"{self.at(column)} holds {len(rows):,} images of {pixels.size:,} bytes each, at most "
                        f"{MAX_BYTES:,} bytes are read"
                    )
                images = np.empty((len(rows), *pixels.shape), dtype=np.uint8)
            if pixels.shape != images.shape[1:]:
                raise ValueError(
                    f"{self.at(column)} must hold images of one size and mode: row {row + 1:,} is "
                    f"{_described(pixels)}, the first is {_described(images[0])}"
                )
            images[row] = pixels
        assert images is not None, "a split has rows"
        return torch.from_numpy(images)

    def values(self, column: str) -> list[Any]:
        """The texts or labels of a column."""
        values = self.rows.select_columns(column)[:][column]
        if None in values:
            raise ValueError(f"{self.at(column)}, row {values.index(None) + 1:,} is empty")
        return values


def _described(pixels: np.ndarray) -> str:
    return f"{pixels.shape[0]}×{pixels.shape[1]} {'gray' if pixels.ndim == 2 else 'RGB'}"


def _load(name: str, folder: Path, config: str | None) -> "DatasetDict":
    """The data set in a folder, or where there is none, under this name on the hub or in the hub's cache."""
    from datasets import DatasetDict, load_dataset, load_from_disk

    local = folder.is_dir()
    saved = any((folder / name).is_file() for name in _SAVED_FILES)
    if saved and config is not None:
        raise ValueError(f"{folder} was written by save_to_disk and has no config: leave config out, got {config!r}")
    if not local and not _HUB_NAME.fullmatch(name):
        raise FileNotFoundError(f"{folder} is not a folder, and {name!r} is not a name on the hub such as OWNER/NAME")
    if not local and Path(name).exists():
        # datasets would take it for the data, whatever it is
        raise ValueError(f"{name!r} is not a folder beside the task file, but there is one in the working directory")
    try:
        loaded = load_from_disk(str(folder)) if saved else load_dataset(str(folder) if local else name, config)
    # datasets and the hub client raise many types for one fact, that there is no data set to read
    except Exception as error:
        if local:
            raise ValueError(f"datasets cannot load {folder}: {_reason(error)}") from error
        raise FileNotFoundError(
            f"{folder} is not a folder, and datasets cannot load {name!r} from the hub: {_reason(error)}"
        ) from error
    if not isinstance(loaded, DatasetDict):
        raise ValueError(
            f"{folder} holds rows without splits: save a DatasetDict, with one split to train on, one to test"
        )
    return loaded


def _reason(error: Exception) -> str:
    """The type of an error and its first line."""
    return ": ".join([type(error).__name__, *str(error).splitlines()[:1]])


def _check_columns(train: _Split, test: _Split, columns: tuple[str, ...]) -> None:
    """Refuses a column that is not in both splits, or is of two types."""
    for column in columns:
        for split in (train, test):
            if column not in split.rows.features:
                raise ValueError(
                    f"{split.where} has no column {shown(column)}: it has {', '.join(split.rows.column_names)}"
                )
        if train.rows.features[column] != test.rows.features[column]:
            raise ValueError(f"{test.at(column)} is of another type than {train.at(column)}")


def _read_labels(train: _Split, test: _Split, column: str) -> tuple[list[int], list[int], int]:
    """The labels of both splits as numbers, and how many classes there are."""
    from datasets import ClassLabel

    feature = train.rows.features[column]
    dtype = str(getattr(feature, "dtype", None))
    if not dtype.startswith(("int", "uint")) and not train.holds_texts(column):
        raise ValueError(f"{train.at(column)} holds {dtype}: labels are class labels, whole numbers or texts")
    labels, test_labels = train.values(column), test.values(column)
    known = range(len(feature.names)) if isinstance(feature, ClassLabel) else labels
    names = class_names(known, train.at(column))
    train_numbers = class_numbers(labels, names, train.at(column))
    return train_numbers, class_numbers(test_labels, names, test.at(column)), len(names)
