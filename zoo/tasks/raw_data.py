"""Data as a file holds them: images as bytes or texts as text, with labels, before any transformer is chosen."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from zoo.tasks.embedding import WordEmbedding
from zoo.tasks.examples import Examples, TaskData
from zoo.tasks.identity import DataIdentity, hash_images, hash_texts
from zoo.transformer.spec import TransformerSpec


@dataclass(frozen=True)
class RawImages:
    """Images as bytes [n, h, w], or [n, h, w, c] with several channels, and labels 0 … ``classes`` − 1."""

    train: Examples
    test: Examples
    source: str
    identity: DataIdentity
    classes: int

    @property
    def size(self) -> tuple[int, int, int]:
        """Height, width and channels."""
        height, width, *channels = self.train.inputs.shape[1:]
        return height, width, channels[0] if channels else 1

    def as_task(self, spec: TransformerSpec) -> TaskData:
        return TaskData(spec, self.train, self.test, self.source, identity=self.identity)


@dataclass(frozen=True)
class LabelledTexts:
    """Texts and the numbers of their classes."""

    texts: Sequence[str]
    labels: Sequence[int]


@dataclass(frozen=True)
class RawTexts:
    """Texts with labels 0 … ``classes`` − 1."""

    train: LabelledTexts
    test: LabelledTexts
    source: str
    identity: DataIdentity
    classes: int

    def encode(self, embedding: WordEmbedding, spec: TransformerSpec) -> TaskData:
        """The texts as word ids of this embedding, ``spec.tokens`` per text."""
        train, test = (
            Examples(embedding.encode(split.texts, spec.tokens), torch.tensor(split.labels, dtype=torch.long))
            for split in (self.train, self.test)
        )
        return TaskData(spec, train, test, self.source, embedding, self.identity)


def identify_images(train: Examples, test: Examples) -> DataIdentity:
    hashes = (hash_images(examples.inputs, examples.labels) for examples in (train, test))
    return DataIdentity(len(train), len(test), *hashes)


def identify_texts(train: LabelledTexts, test: LabelledTexts) -> DataIdentity:
    hashes = (hash_texts(split.texts, split.labels) for split in (train, test))
    return DataIdentity(len(train.texts), len(test.texts), *hashes)
