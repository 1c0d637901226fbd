"""Which examples a training step sees: the subset, the order and the crops, the same for every run of a train fraction.

All of it is a pure function of the data seed and the epoch, so a resumed training sees what an undisturbed one does.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from generation.protocol import CROP_PADDING, Protocol
from zoo.tasks.examples import Examples, TaskData

DATA_SEED = 0
SUBSET, ORDER, CROPS = 0, 1, 2  # the purposes that random numbers are drawn for


def random_numbers(*key: int) -> np.random.Generator:
    """A separate generator for every key, from the counter-based Philox."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((DATA_SEED, *key))))


def train_subset(size: int, fraction: float) -> Int[Tensor, " n"]:
    """⌊fraction·size⌋ examples, drawn once for all runs of this train fraction."""
    return random_subset(size, int(fraction * size))


def random_subset(size: int, count: int) -> Int[Tensor, " n"]:
    """``count`` of ``size`` rows in ascending order, always the same ones; a smaller choice lies within a larger."""
    return torch.from_numpy(np.sort(random_numbers(SUBSET).permutation(size)[:count]))


@dataclass(frozen=True)
class EpochBatches:
    """The batches of one epoch: rows of the training set, and for images where to crop each."""

    rows: Int[Tensor, "steps batch"]
    offsets: Int[Tensor, "steps batch 2"]

    def __len__(self) -> int:
        return len(self.rows)

    def to(self, device: torch.device | str) -> "EpochBatches":
        return EpochBatches(self.rows.to(device), self.offsets.to(device))


def epoch_batches(subset: Int[Tensor, " n"], protocol: Protocol, epoch: int) -> EpochBatches:
    """The subset in a new random order, cut into whole batches; what is left over is dropped."""
    steps, batch = len(subset) // protocol.batch_size, protocol.batch_size
    if steps == 0:
        raise ValueError(f"{len(subset)} training examples do not fill one batch of {batch}")
    order = torch.from_numpy(random_numbers(ORDER, epoch).permutation(len(subset))[: steps * batch])
    offsets = random_numbers(CROPS, epoch).integers(0, 2 * protocol.crop_padding + 1, size=(steps, batch, 2))
    return EpochBatches(subset[order].view(steps, batch), torch.from_numpy(offsets))


@dataclass(frozen=True)
class TrainingInputs:
    """The training set ready for batches: images padded once, so that a crop is a gather."""

    task: TaskData
    padded: UInt8[Tensor, "n padded_height padded_width *channels"] | None
    crop_padding: int

    @classmethod
    def prepare(cls, task: TaskData, crop_padding: int = CROP_PADDING) -> "TrainingInputs":
        if task.embedding is not None:
            return cls(task, None, crop_padding)
        return cls(task, pad(task.train.inputs, crop_padding), crop_padding)

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


def pad(
    images: UInt8[Tensor, "n height width *channels"], margin: int
) -> UInt8[Tensor, "n padded_height padded_width *channels"]:
    """The images with ``margin`` zeros around them."""
    n, height, width, *channels = images.shape
    padded = images.new_zeros(n, height + 2 * margin, width + 2 * margin, *channels)
    padded[:, margin : margin + height, margin : margin + width] = images
    return padded


def model_batch(
    inputs: TrainingInputs, batches: EpochBatches, step: int
) -> tuple[Float[Tensor, "b ..."], Tensor | None, Tensor]:
    """One step's model inputs, mask and labels."""
    examples = inputs.batch(batches, step)
    x, mask = inputs.task.model_inputs(examples.inputs)
    return x, mask, examples.labels
