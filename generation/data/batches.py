"""Which examples a training step sees: the subset, the order and the crops, the same for every run of a train fraction.

All of it is a pure function of the data seed and the epoch, so a resumed training sees what an undisturbed one does.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from generation.protocol import Protocol
from zoo.tasks import Examples, TaskData

CROP_PADDING = 2
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
    offsets = random_numbers(CROPS, epoch).integers(0, 2 * CROP_PADDING + 1, size=(steps, batch, 2))
    return EpochBatches(subset[order].view(steps, batch), torch.from_numpy(offsets))


@dataclass(frozen=True)
class TrainingInputs:
    """The training set ready for batches: images padded once, so that a crop is a gather."""

    task: TaskData
    padded: UInt8[Tensor, "n side side"] | None

    @classmethod
    def prepare(cls, task: TaskData) -> "TrainingInputs":
        images = task.train.inputs
        pad = (CROP_PADDING,) * 4
        return cls(task, torch.nn.functional.pad(images, pad) if task.embedding is None else None)

    def batch(self, batches: EpochBatches, step: int) -> Examples:
        """The examples of one step, images cropped, still as bytes or word ids."""
        rows = batches.rows[step]
        labels = self.task.train.labels[rows]
        if self.padded is None:
            return Examples(self.task.train.inputs[rows], labels)
        return Examples(crop(self.padded, rows, batches.offsets[step]), labels)


def crop(
    padded: UInt8[Tensor, "n padded padded"], rows: Int[Tensor, " batch"], offsets: Int[Tensor, "batch 2"]
) -> UInt8[Tensor, "batch side side"]:
    """For each row of ``padded``, the window whose upper left corner is its offset."""
    window = torch.arange(padded.shape[1] - 2 * CROP_PADDING, device=padded.device)
    y = offsets[:, 0, None] + window
    x = offsets[:, 1, None] + window
    return padded[rows[:, None, None], y[:, :, None], x[:, None, :]]


def model_batch(
    inputs: TrainingInputs, batches: EpochBatches, step: int
) -> tuple[Float[Tensor, "b ..."], Tensor | None, Tensor]:
    """One step's model inputs, mask and labels."""
    examples = inputs.batch(batches, step)
    x, mask = inputs.task.model_inputs(examples.inputs)
    return x, mask, examples.labels
