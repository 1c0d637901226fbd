"""What the data of every format must be. A fault is one line that says where it is: file, array or column, and row."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Integer, UInt8
from torch import Tensor

from zoo.tasks.examples import Examples
from zoo.tasks.identity import name_of
from zoo.tasks.raw_data import LabelledTexts, RawImages, RawTexts, identify_images, identify_texts
from zoo.tasks.toml_table import shown

MOST_CLASSES = 256
"""A label is hashed as one byte."""
MAX_BYTES = 1 << 30
"""Of the images of a data set, in memory or on disk."""
WHOLE_NUMBER = re.compile(r"-?\d{1,18}", re.ASCII)


@dataclass(frozen=True)
class ImageSplit:
    """Images and labels of a split, and what to call the two in a message."""

    images: UInt8[Tensor, "n height width *channels"]
    labels: Integer[Tensor, " m"]
    images_at: str
    labels_at: str

    def examples(self) -> Examples:
        """Pairs that are as many as they should be; a single channel has no axis of its own."""
        images, labels = self.images, self.labels
        if len(images) != len(labels):
            raise ValueError(
                f"{self.labels_at} holds {len(labels):,} labels for the {len(images):,} images of {self.images_at}"
            )
        if images.numel() == 0:
            raise ValueError(f"{self.images_at} is empty: its shape is {tuple(images.shape)}")
        check_range(labels, self.labels_at)
        return Examples(images[..., 0] if images.ndim == 4 and images.shape[3] == 1 else images, labels.long())


@dataclass(frozen=True)
class TextSplit:
    """Texts and the numbers of their classes, and what to call the latter in a message."""

    texts: Sequence[str]
    labels: Sequence[int]
    labels_at: str


def check_range(labels: Integer[Tensor, " n"], place: str) -> None:
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= MOST_CLASSES:
        raise ValueError(f"{place} must hold labels from 0 to {MOST_CLASSES - 1}, got {low if low < 0 else high}")


def join_images(title: str, train: ImageSplit, test: ImageSplit, classes: int | None = None) -> RawImages:
    """The two splits of a data set of images; without ``classes``, the largest training label is the last class."""
    seen, unseen = train.examples(), test.examples()
    if seen.inputs.shape[1:] != unseen.inputs.shape[1:]:
        raise ValueError(
            f"{test.images_at} holds images {size_of(unseen)}, those of {train.images_at} are {size_of(seen)}"
        )
    check_classes(seen.labels, unseen.labels, train.labels_at, test.labels_at)
    identity = identify_images(seen, unseen)
    return RawImages(seen, unseen, name_of(title, identity), identity, classes or int(seen.labels.max()) + 1)


def size_of(examples: Examples) -> str:
    return "×".join(map(str, examples.inputs.shape[1:]))


def join_texts(title: str, train: TextSplit, test: TextSplit, classes: int) -> RawTexts:
    """The two splits of a data set of texts."""
    check_classes(torch.tensor(train.labels), torch.tensor(test.labels), train.labels_at, test.labels_at)
    seen, unseen = (LabelledTexts(split.texts, split.labels) for split in (train, test))
    identity = identify_texts(seen, unseen)
    return RawTexts(seen, unseen, name_of(title, identity), identity, classes)


def check_classes(train: Integer[Tensor, " n"], test: Integer[Tensor, " m"], train_at: str, test_at: str) -> None:
    """Two classes at least, and none in the test set that the training set does not have."""
    known = torch.unique(train)
    if len(known) < 2:
        raise ValueError(f"{train_at} holds only the class {int(known[0])}: a task has at least two")
    strange = test[~torch.isin(test, known)]
    if len(strange):
        raise ValueError(f"{test_at} holds the class {int(strange[0])}, which {train_at} does not have")


def class_names(labels: Sequence[str | int], place: str) -> list[str | int]:
    """The distinct labels of a training set: sorted as numbers where all are whole numbers, else as text."""
    names = set(labels)
    if len(names) > MOST_CLASSES:
        raise ValueError(f"{place} holds {len(names):,} different labels, at most {MOST_CLASSES} are possible")
    whole = all(isinstance(name, int) or WHOLE_NUMBER.fullmatch(name) for name in names)
    return sorted(names, key=lambda name: (int(name) if whole else 0, str(name)))


def class_numbers(labels: Sequence[str | int], names: Sequence[str | int], place: str) -> list[int]:
    """Each label as its place among the names of the classes."""
    numbers = {name: number for number, name in enumerate(names)}
    for row, label in enumerate(labels, start=1):
        if label not in numbers:
            raise ValueError(f"{place}, row {row:,}: {shown(label)} is none of the classes {shown([*names])}")
    return [numbers[label] for label in labels]
