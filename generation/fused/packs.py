"""Short texts side by side: what four warps with 64 token rows train on at a time."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Int32
from torch import Tensor

from generation.fused.shared_memory import ROWS, THREE_SAMPLES, TILE, TWO_SAMPLES

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
