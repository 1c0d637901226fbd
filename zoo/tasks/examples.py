"""The examples of a task: as its files hold them, and as the tensors that trainers and evaluation read.

The checks here hold for every format. A fault is one line that names file, array or column, and row.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Generic, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Integer, Shaped, UInt8, UInt32
from torch import Tensor

from zoo.checked import shown
from zoo.tasks.embedding import PADDING, WordEmbedding
from zoo.tasks.identity import DataIdentity, name_of
from zoo.tasks.limits import MOST_CLASSES, MOST_TOKENS
from zoo.transformer.spec import TransformerSpec

_CHARACTERS_AT_ONCE = 1 << 20
_WHOLE_NUMBER = re.compile(r"-?\d{1,18}", re.ASCII)


@dataclass(frozen=True)
class Examples:
    """A set of labeled examples, whole: images as bytes, texts as word ids padded with 0, or windows of characters.

    Images of several channels have them last, as files do; those of one channel need no such dimension. A window has a
    label for each of its characters, the one after it.
    """

    inputs: UInt8[Tensor, "n height width *channels"] | Int[Tensor, "n tokens"]
    labels: Integer[Tensor, " n *tokens"]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: slice | Tensor) -> "Examples":
        return type(self)(self.inputs[rows], self.labels[rows])

    def to(self, device: torch.device | str) -> "Examples":
        return type(self)(self.inputs.to(device), self.labels.to(device))

    def content_hash(self) -> str:
        """SHA-256 of images: of their shape, the pixels and the labels as one byte each."""
        digest = hashlib.sha256(" ".join(map(str, self.inputs.shape)).encode())
        digest.update(self.inputs.contiguous().numpy().data)
        digest.update(self.labels.to(torch.uint8).contiguous().numpy().data)
        return digest.hexdigest()

    @property
    def image_size(self) -> str:
        """Such as 28×28."""
        return "×".join(map(str, self.inputs.shape[1:]))


@dataclass(frozen=True)
class TaskData:
    """Training and test examples of one task, and where they come from."""

    spec: TransformerSpec
    train: Examples
    test: Examples
    source: str
    embedding: WordEmbedding | None = None
    identity: DataIdentity | None = None
    characters: str | None = None
    """Those of a language model's text: number i stands for the i-th of them."""

    def to(self, device: torch.device | str) -> "TaskData":
        embedding = self.embedding.to(device) if self.embedding else None
        return replace(self, train=self.train.to(device), test=self.test.to(device), embedding=embedding)

    @cached_property
    def sha256(self) -> str:
        """Hash of every input and label: two data sets with the same hash train and measure the same."""
        digest = hashlib.sha256((self.embedding.sha256 if self.embedding else "").encode())
        for examples in (self.train, self.test):
            for tensor in (examples.inputs, examples.labels):
                digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
                digest.update(tensor.cpu().contiguous().numpy().data)
        return digest.hexdigest()

    @cached_property
    def successors(self) -> Int[Tensor, "V V"]:
        """How often each token follows each in the training text; sparse, since there may be 65,536."""
        pairs = torch.stack([self.train.inputs.flatten().long(), self.train.labels.flatten()])
        counts = torch.ones(pairs.shape[1], dtype=torch.int32, device=pairs.device)
        return torch.sparse_coo_tensor(pairs, counts, (self.spec.classes,) * 2, check_invariants=True).coalesce()

    def model_inputs(self, inputs: Tensor) -> tuple[Shaped[Tensor, "b ..."], Bool[Tensor, "b t"] | None]:
        """The input of a ``ZooTransformer`` for these raw inputs.

        Pixels in [−1, 1] as [b, channels, height, width], word vectors or word ids and their mask, or characters.
        """
        if self.spec.vocabulary is not None:
            return inputs.long(), None if self.spec.causal else inputs != PADDING
        if self.embedding is not None:
            return self.embedding(inputs)
        pixels = _normalize_pixels(inputs)
        return pixels[:, None] if pixels.ndim == 3 else pixels.movedim(-1, 1), None


def _normalize_pixels(images: UInt8[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Bytes 0 … 255 to [−1, 1], as torchvision's ToTensor and Normalize([0.5], [0.5]) do."""
    return (images.float() / 255 - 0.5) / 0.5


@dataclass(frozen=True)
class LabeledTexts:
    """Texts and the numbers of their classes."""

    texts: Sequence[str]
    labels: Sequence[int]

    def __len__(self) -> int:
        return len(self.labels)

    def content_hash(self) -> str:
        """SHA-256 of every label and text; each text comes with its length, so that no two sets run together."""
        digest = hashlib.sha256()
        for label, text in zip(self.labels, self.texts, strict=True):
            content = text.encode()
            digest.update(f"{label} {len(content)} ".encode() + content)
        return digest.hexdigest()


_Split = TypeVar("_Split", Examples, LabeledTexts)
_Raw = TypeVar("_Raw", bound="_RawData")


@dataclass(frozen=True)
class _RawData(Generic[_Split]):
    """What the files of a data set hold, with labels 0 … ``classes`` − 1."""

    train: _Split
    test: _Split
    source: str
    identity: DataIdentity
    classes: int

    @classmethod
    def of(cls: type[_Raw], train: _Split, test: _Split, classes: int, name: Callable[[DataIdentity], str]) -> _Raw:
        """The two splits, whose identity gives their source its name."""
        identity = DataIdentity(len(train), len(test), train.content_hash(), test.content_hash())
        return cls(train, test, name(identity), identity, classes)


class RawImages(_RawData[Examples]):
    """Images as bytes [n, h, w], or [n, h, w, c] with several channels."""

    @classmethod
    def joined(cls, title: str, train: "ImageSplit", test: "ImageSplit", classes: int | None = None) -> "RawImages":
        """The two splits of a data set; without ``classes``, the largest training label is the last class."""
        seen, unseen = train.examples(), test.examples()
        if seen.inputs.shape[1:] != unseen.inputs.shape[1:]:
            raise ValueError(
                f"{test.images_at} holds images {unseen.image_size}, those of {train.images_at} are {seen.image_size}"
            )
        _check_classes(seen.labels, unseen.labels, train.labels_at, test.labels_at)
        return cls.of(seen, unseen, classes or int(seen.labels.max()) + 1, partial(name_of, title))

    @property
    def size(self) -> tuple[int, int, int]:
        """Height, width and channels."""
        height, width, *channels = self.train.inputs.shape[1:]
        return height, width, channels[0] if channels else 1

    def as_task(self, spec: TransformerSpec) -> TaskData:
        return TaskData(spec, self.train, self.test, self.source, identity=self.identity)


class RawTexts(_RawData[LabeledTexts]):
    """Texts as they are."""

    @classmethod
    def joined(
        cls, title: str, train: LabeledTexts, test: LabeledTexts, classes: int, train_at: str, test_at: str
    ) -> "RawTexts":
        """The two splits of a data set; ``train_at`` and ``test_at`` name their labels in a message."""
        labels, test_labels = (torch.tensor(split.labels, dtype=torch.uint8) for split in (train, test))
        _check_classes(labels, test_labels, train_at, test_at)
        return cls.of(train, test, classes, partial(name_of, title))

    def encode(self, embedding: WordEmbedding, spec: TransformerSpec) -> TaskData:
        """The texts as word ids of this embedding, ``spec.tokens`` per text."""
        texts = len(self.train) + len(self.test)
        if texts * spec.tokens > MOST_TOKENS:
            sizes = f"{texts:,} texts of {spec.tokens:,} tokens"
            raise ValueError(f"{self.source}: {sizes}, at most {MOST_TOKENS:,} tokens are read")
        train, test = (
            Examples(embedding.encode(split.texts, spec.tokens), torch.tensor(split.labels, dtype=torch.long))
            for split in (self.train, self.test)
        )
        return TaskData(spec, train, test, self.source, embedding, self.identity)


@dataclass(frozen=True)
class RawCharacters:
    """A text to train on and one to test on, and their characters in order."""

    train: str
    test: str
    characters: str
    title: str
    where: str

    def as_task(self, spec: TransformerSpec) -> TaskData:
        """The texts cut into windows of T + 1 characters: T inputs, and each one's successor as its label.

        The last character of a window is the first of the next. What is left over at the end is left out.
        """
        least = spec.tokens + 1
        if len(self.train) < least or len(self.test) < least:
            raise ValueError(
                f"{self.where} has {len(self.train):,} characters to train and {len(self.test):,} to test on: a window "
                f"of {spec.tokens:,} tokens takes {least:,} of each"
            )
        train, test = (self._windows(text, spec.tokens) for text in (self.train, self.test))
        hashes = (hashlib.sha256(text.encode()).hexdigest() for text in (self.train, self.test))
        identity = DataIdentity(len(train), len(test), *hashes)
        return TaskData(spec, train, test, name_of(self.title, identity), identity=identity, characters=self.characters)

    def _windows(self, text: str, tokens: int) -> Examples:
        # the place of each character among all, found for some at a time, since NumPy finds 64 bits
        order, parts = _code_points(self.characters), range(0, len(text), _CHARACTERS_AT_ONCE)
        found = (np.searchsorted(order, _code_points(text[at : at + _CHARACTERS_AT_ONCE])) for at in parts)
        numbers = torch.cat([torch.from_numpy(part.astype(np.int32)) for part in found])
        count = (len(numbers) - 1) // tokens
        inputs, labels = (numbers[shift : shift + count * tokens].view(count, tokens) for shift in (0, 1))
        return Examples(inputs, labels.long())


def _code_points(text: str) -> UInt32[np.ndarray, " n"]:
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")


@dataclass(frozen=True)
class ImageSplit:
    """Images and labels of a split, and what to call the two in a message."""

    images: UInt8[Tensor, "n height width *channels"]
    labels: Integer[Tensor, " m"]
    images_at: str
    labels_at: str

    def examples(self) -> Examples:
        """The images with their labels, checked; a single channel has no axis of its own."""
        images, labels = self.images, self.labels
        if len(images) != len(labels):
            raise ValueError(
                f"{self.labels_at} holds {len(labels):,} labels for the {len(images):,} images of {self.images_at}"
            )
        if images.numel() == 0:
            raise ValueError(f"{self.images_at} is empty: its shape is {tuple(images.shape)}")
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= MOST_CLASSES:
            got = low if low < 0 else high
            raise ValueError(f"{self.labels_at} must hold labels from 0 to {MOST_CLASSES - 1}, got {got}")
        return Examples(images[..., 0] if images.ndim == 4 and images.shape[3] == 1 else images, labels.long())


def _check_classes(train: Integer[Tensor, " n"], test: Integer[Tensor, " m"], train_at: str, test_at: str) -> None:
    """There must be at least two classes, and none in the test set that the training set does not have."""
    known = torch.bincount(train, minlength=MOST_CLASSES) > 0
    if int(known.sum()) < 2:
        raise ValueError(f"{train_at} holds only the class {int(train[0])}: a task has at least two")
    strange = test[~known[test.int()]]
    if len(strange):
        raise ValueError(f"{test_at} holds the class {int(strange[0])}, which {train_at} does not have")


def class_names(labels: Sequence[str | int], where: str) -> list[str | int]:
    """The distinct labels of a training set: sorted as numbers where all are whole numbers, else as text."""
    names = set(labels)
    if len(names) > MOST_CLASSES:
        raise ValueError(f"{where} holds {len(names):,} different labels, at most {MOST_CLASSES} are possible")
    whole = all(isinstance(name, int) or _WHOLE_NUMBER.fullmatch(name) for name in names)
    return sorted(names, key=lambda name: (int(name) if whole else 0, str(name)))


def class_numbers(labels: Sequence[str | int], names: Sequence[str | int], where: str) -> list[int]:
    """The index of each label among the names of the classes."""
    numbers = {name: number for number, name in enumerate(names)}
    for row, label in enumerate(labels, start=1):
        if label not in numbers:
            raise ValueError(f"{where}, row {row:,}: {shown(label)} is none of the classes {shown([*names])}")
    return [numbers[label] for label in labels]
