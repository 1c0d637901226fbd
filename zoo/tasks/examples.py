"""A task's data as tensors: what trainers read and what evaluation measures on."""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int, Integer, UInt8
from torch import Tensor

from zoo.tasks.embedding import WordEmbedding
from zoo.tasks.identity import DataIdentity
from zoo.transformer.spec import TransformerSpec


@dataclass(frozen=True)
class Examples:
    """A set of labelled examples, whole: images as bytes, or texts as word ids padded with 0.

    Images of several channels have them last, as files do; those of one channel need no such dimension.
    """

    inputs: UInt8[Tensor, "n height width *channels"] | Int[Tensor, "n tokens"]
    labels: Integer[Tensor, " n"]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: slice | Tensor) -> "Examples":
        return type(self)(self.inputs[rows], self.labels[rows])

    def to(self, device: torch.device | str) -> "Examples":
        return type(self)(self.inputs.to(device), self.labels.to(device))


@dataclass(frozen=True)
class TaskData:
    """Training and test examples of one task, and where they come from."""

    spec: TransformerSpec
    train: Examples
    test: Examples
    source: str
    embedding: WordEmbedding | None = None
    identity: DataIdentity | None = None

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

    def model_inputs(self, inputs: Tensor) -> tuple[Float[Tensor, "b ..."], Bool[Tensor, "b t"] | None]:
        """What a ``ZooTransformer`` takes for these raw inputs.

        Pixels in [−1, 1] as [b, channels, height, width], or word vectors and their mask.
        """
        if self.embedding is not None:
            return self.embedding(inputs)
        pixels = normalize_pixels(inputs)
        return pixels[:, None] if pixels.ndim == 3 else pixels.movedim(-1, 1), None


def normalize_pixels(images: UInt8[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Bytes 0 … 255 to [−1, 1], as torchvision's ToTensor and Normalize([0.5], [0.5]) do."""
    return (images.float() / 255 - 0.5) / 0.5
