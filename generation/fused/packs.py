"""Short texts side by side: what four warps with 64 token rows train on at a time."""

from dataclasses import dataclass

import torch
from jaxtyping import Int, Int32
from torch import Tensor

from generation.fused.shared_memory import ROWS, TILE

SAMPLES_SHIFT, TILES_SHIFT = 16, 24  # first sample of the step, samples, tiles of each: 16, 8 and 8 bits


@dataclass(frozen=True)
class Packs:
    """``counts[s]`` packs of step ``s`` stand at the front of ``words[s]``, in the order of their samples."""

    words: Int32[Tensor, "steps batch"]
    counts: Int32[Tensor, " steps"]


def make_packs(lengths: Int[Tensor, "steps batch"]) -> Packs:
    """Neighbors that take the same number of tiles of 16 rows, as many as fit: four of one tile, two of two.

    A step's lengths must be ascending, or all the same.
    """
    steps, batch = lengths.shape
    tiles = (lengths + TILE - 1) // TILE
    place = torch.arange(batch, device=lengths.device).expand(steps, batch).contiguous()
    place_among_equals = place - torch.searchsorted(tiles, tiles)
    equals_left = torch.searchsorted(tiles, tiles, right=True) - place
    room = ROWS // TILE // tiles
    words = place | torch.minimum(room, equals_left) << SAMPLES_SHIFT | tiles << TILES_SHIFT
    leads = place_among_equals % room == 0
    front = leads.logical_not().to(torch.uint8).argsort(dim=1, stable=True)
    return Packs(words.gather(1, front).to(torch.int32), leads.sum(dim=1, dtype=torch.int32))
