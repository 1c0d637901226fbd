"""Examples in the layout that the kernels read: tokens as halves, one word of facts each, short texts in packs."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float16, Int, Int32
from torch import Tensor

from generation.data import EpochBatches, TrainingInputs
from generation.fused.variants import ROWS, THREE_SAMPLES, TILE, TWO_SAMPLES
from generation.population.forward import prepare_inputs
from zoo.tasks import Examples, TaskData
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


SAMPLES_SHIFT, TILES_SHIFT = 16, 24  # first sample of the step, samples, tiles of each: 16, 8 and 8 bits
RECENT = 16  # samples whose rows the classifier's gradients are made of


@dataclass(frozen=True)
class Packs:
    """``counts[s]`` packs of step ``s`` stand at the front of ``words[s]``, in the order of their samples."""

    words: Int32[Tensor, "steps batch"]
    counts: Int32[Tensor, " steps"]


def make_packs(lengths: Int[Tensor, "steps batch"], packs_at_once: int) -> Packs:
    """Neighbors that take the same number of tiles of 16 rows, as many as fit: four of one tile, two of two.

    A step's lengths must be ascending, or all the same. Kernels that work in rounds, of one pack or two, want every 16
    samples to end with a round (``rounds.cuh``).
    """
    steps, batch = lengths.shape
    tiles = (lengths + TILE - 1) // TILE
    if packs_at_once == THREE_SAMPLES:
        leads = leaders(tiles)
    else:
        leads = leaders(tiles.view(-1, RECENT))
        if packs_at_once == TWO_SAMPLES:
            split_odd(leads)
        leads = leads.view(steps, batch)
    place = torch.arange(batch, device=lengths.device).expand(steps, batch)
    next_lead = torch.where(leads, place, batch).flip(1).cummin(dim=1).values.flip(1)[:, 1:]
    next_lead = torch.nn.functional.pad(next_lead, (0, 1), value=batch)
    words = place | (next_lead - place) << SAMPLES_SHIFT | tiles << TILES_SHIFT
    front = leads.logical_not().to(torch.uint8).argsort(dim=1, stable=True)
    return Packs(words.gather(1, front).to(torch.int32), leads.sum(dim=1, dtype=torch.int32))


def leaders(tiles: Int[Tensor, "rows samples"]) -> Bool[Tensor, "rows samples"]:
    """Which samples of a row begin a pack."""
    place = torch.arange(tiles.shape[1], device=tiles.device)
    place_among_equals = place - torch.searchsorted(tiles.contiguous(), tiles.contiguous())
    return place_among_equals % (ROWS // TILE // tiles) == 0


def split_odd(leads: Bool[Tensor, "rows samples"]) -> None:
    """In place: of an odd number of packs one is cut in two. There is one to cut, since the samples are even."""
    rows = (leads.sum(dim=1) % 2 == 1).nonzero()[:, 0]
    last_follower = leads.shape[1] - 1 - leads[rows].flip(1).to(torch.uint8).argmin(dim=1)
    leads[rows, last_follower] = True
