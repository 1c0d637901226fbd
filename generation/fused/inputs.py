"""Examples in the layout that the kernels read: tokens as halves, one word of facts each, short texts in packs."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float16, Int, Int32
from torch import Tensor

from generation.data import EpochBatches, TrainingInputs
from generation.fused.variants import RECENT, ROWS, TILE
from generation.population.forward import prepare_inputs
from zoo.tasks.examples import Examples, TaskData
from zoo.transformer.model import sinusoidal_positions

_LABEL_SHIFT, _LENGTH_SHIFT = 16, 24  # rank in the batch, label, length: 16, 8 and 8 bits
_COUNT_SHIFT, _TILES_SHIFT = 16, 24  # first example of the step, examples, tiles of each: 16, 8 and 8 bits


@dataclass(frozen=True)
class _KernelExamples:
    """``tokens`` are the pixels of patches, or word vectors with their positions added."""

    tokens: Float16[Tensor, "n tokens features"]
    facts: Int32[Tensor, " n"]

    def __len__(self) -> int:
        return len(self.facts)

    @property
    def lengths(self) -> Int32[Tensor, " n"]:
        return self.facts >> _LENGTH_SHIFT


def evaluation_examples(task: TaskData, examples: Examples) -> _KernelExamples:
    """All examples in their order; the rank in a batch matters only for dropout."""
    return _arrange(task, examples, torch.zeros_like(examples.labels))


def epoch_examples(inputs: TrainingInputs, batches: EpochBatches) -> _KernelExamples:
    """The examples of an epoch, step by step. Within a step texts are sorted by length, so that those that a thread
    block works on at a time take equally long; each keeps its rank in the batch for its dropout."""
    task, (steps, batch) = inputs.task, batches.rows.shape
    ranks = torch.arange(batch, device=batches.rows.device).repeat(steps)
    rows, offsets = batches.rows.flatten(), batches.offsets.flatten(0, 1)
    labels = task.train.labels[rows]
    if inputs.padded is not None:
        return _arrange(task, Examples(inputs.crop(rows, offsets), labels), ranks)
    ids = task.train.inputs[rows]
    lengths = (ids != 0).sum(dim=1).view(steps, batch)
    order = lengths.argsort(dim=1, stable=True) + batch * torch.arange(steps, device=lengths.device)[:, None]
    order = order.flatten()
    return _arrange(task, Examples(ids[order], labels[order]), ranks[order])


def _arrange(task: TaskData, examples: Examples, ranks: Int[Tensor, " n"]) -> _KernelExamples:
    x, mask = task.model_inputs(examples.inputs)
    x = prepare_inputs(task.spec, x)
    if mask is None:
        lengths = torch.full_like(examples.labels, task.spec.tokens)
    else:
        x = x + sinusoidal_positions(task.spec.tokens, task.spec.dim).to(x)
        lengths = mask.sum(dim=1)
    facts = ranks | examples.labels << _LABEL_SHIFT | lengths << _LENGTH_SHIFT
    return _KernelExamples(x.half().contiguous(), facts.to(torch.int32))


@dataclass(frozen=True)
class _Packs:
    """``counts[s]`` packs of step ``s`` stand at the front of ``words[s]``, in the order of their examples."""

    words: Int32[Tensor, "steps batch"]
    counts: Int32[Tensor, " steps"]


def make_packs(lengths: Int[Tensor, "steps batch"], packs_at_once: int) -> _Packs:
    """Neighbors that take the same number of tiles of 16 rows, as many as fit: four of one tile, two of two.

    A step's lengths must be ascending, or all the same. Kernels that work in rounds, of one pack or two, want every 16
    examples to end with a round (``rounds.cuh``).
    """
    steps, batch = lengths.shape
    tiles = (lengths + TILE - 1) // TILE
    if packs_at_once == 3:
        leads = _leaders(tiles)
    else:
        leads = _leaders(tiles.view(-1, RECENT))
        if packs_at_once == 2:
            _split_odd(leads)
        leads = leads.view(steps, batch)
    rank = torch.arange(batch, device=lengths.device).expand(steps, batch)
    next_lead = torch.where(leads, rank, batch).flip(1).cummin(dim=1).values.flip(1)[:, 1:]
    next_lead = torch.nn.functional.pad(next_lead, (0, 1), value=batch)
    words = rank | (next_lead - rank) << _COUNT_SHIFT | tiles << _TILES_SHIFT
    front = leads.logical_not().to(torch.uint8).argsort(dim=1, stable=True)
    return _Packs(words.gather(1, front).to(torch.int32), leads.sum(dim=1, dtype=torch.int32))


def _leaders(tiles: Int[Tensor, "rows examples"]) -> Bool[Tensor, "rows examples"]:
    """Marks the examples of a row that begin a pack."""
    rank = torch.arange(tiles.shape[1], device=tiles.device)
    rank_among_equals = rank - torch.searchsorted(tiles.contiguous(), tiles.contiguous())
    return rank_among_equals % (ROWS // TILE // tiles) == 0


def _split_odd(leads: Bool[Tensor, "rows examples"]) -> None:
    """Cuts a pack of each row with an odd number of them in two, in place. Since the number of examples is even, a row
    with an odd number of packs has one to cut."""
    rows = (leads.sum(dim=1) % 2 == 1).nonzero()[:, 0]
    last_follower = leads.shape[1] - 1 - leads[rows].flip(1).to(torch.uint8).argmin(dim=1)
    leads[rows, last_follower] = True
