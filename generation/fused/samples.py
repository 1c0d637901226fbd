"""Examples in the layout the kernels read: tokens as halves, and one word of facts per sample."""

from dataclasses import dataclass

import torch
from jaxtyping import Float16, Int, Int32
from torch import Tensor

from generation.data.batches import EpochBatches, TrainingInputs
from generation.population.forward import prepare_inputs
from zoo.tasks.examples import Examples, TaskData
from zoo.transformer.model import sinusoidal_positions

LABEL_SHIFT, LENGTH_SHIFT = 16, 24  # place in the batch, label, length: 16, 8 and 8 bits


@dataclass(frozen=True)
class Samples:
    """``tokens`` are the pixels of patches, or word vectors with their positions added."""

    tokens: Float16[Tensor, "n tokens features"]
    facts: Int32[Tensor, " n"]

    def __len__(self) -> int:
        return len(self.facts)

    @property
    def lengths(self) -> Int32[Tensor, " n"]:
        return self.facts >> LENGTH_SHIFT


def pack_facts(places: Int[Tensor, " n"], labels: Int[Tensor, " n"], lengths: Int[Tensor, " n"]) -> Int32[Tensor, " n"]:
    return (places | labels << LABEL_SHIFT | lengths << LENGTH_SHIFT).to(torch.int32)


def evaluation_samples(task: TaskData, examples: Examples) -> Samples:
    """All examples in their order; the place in a batch matters only for dropout."""
    return arrange(task, examples, torch.zeros_like(examples.labels))


def epoch_samples(inputs: TrainingInputs, batches: EpochBatches) -> Samples:
    """The samples of an epoch, step by step. Within a step texts are sorted by length, so that those that a thread
    block works on at a time take equally long; each keeps its place in the batch for its dropout."""
    task, (steps, batch) = inputs.task, batches.rows.shape
    places = torch.arange(batch, device=batches.rows.device).repeat(steps)
    rows, offsets = batches.rows.flatten(), batches.offsets.flatten(0, 1)
    labels = task.train.labels[rows]
    if inputs.padded is not None:
        return arrange(task, Examples(inputs.crop(rows, offsets), labels), places)
    ids = task.train.inputs[rows]
    lengths = (ids != 0).sum(dim=1).view(steps, batch)
    order = lengths.argsort(dim=1, stable=True) + batch * torch.arange(steps, device=lengths.device)[:, None]
    order = order.flatten()
    return arrange(task, Examples(ids[order], labels[order]), places[order])


def arrange(task: TaskData, examples: Examples, places: Int[Tensor, " n"]) -> Samples:
    x, mask = task.model_inputs(examples.inputs)
    x = prepare_inputs(task.spec, x)
    if mask is None:
        lengths = torch.full_like(examples.labels, task.spec.tokens)
    else:
        x = x + sinusoidal_positions(task.spec.tokens, task.spec.dim).to(x)
        lengths = mask.sum(dim=1)
    return Samples(x.half().contiguous(), pack_facts(places, examples.labels, lengths))
