"""Which texts share four warps' rows."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from generation.fused.packs import SAMPLES_SHIFT, TILES_SHIFT, make_packs

Pack = tuple[int, int, int]


def packs_of(lengths: list[list[int]]) -> list[list[Pack]]:
    """(first sample, samples, tiles of each) of every step."""
    packs = make_packs(torch.tensor(lengths))
    return [
        [(word & 0xFFFF, word >> SAMPLES_SHIFT & 0xFF, word >> TILES_SHIFT) for word in row[:count]]
        for row, count in zip(packs.words.tolist(), packs.counts.tolist(), strict=True)
    ]


def test_neighbors_of_as_many_tiles_share_the_rows() -> None:
    mixed = [1, 2, 3, 16, 16, 17, 20, 32, 40, 49, 64]
    assert packs_of([mixed, [5] * 11, [64] * 11]) == [
        [(0, 4, 1), (4, 1, 1), (5, 2, 2), (7, 1, 2), (8, 1, 3), (9, 1, 4), (10, 1, 4)],
        [(0, 4, 1), (4, 4, 1), (8, 3, 1)],
        [(i, 1, 4) for i in range(11)],
    ]


@given(st.lists(st.integers(1, 64), min_size=1, max_size=64))
def test_every_sample_is_in_one_pack_that_has_room_for_it(lengths: list[int]) -> None:
    lengths = sorted(lengths)
    (packs,) = packs_of([lengths])
    assert [first + i for first, samples, _ in packs for i in range(samples)] == list(range(len(lengths)))
    for first, samples, tiles in packs:
        assert samples * tiles <= 4
        assert all(16 * (tiles - 1) < length <= 16 * tiles for length in lengths[first : first + samples])
    fewest = sum(-(-sum(16 * (tiles - 1) < n <= 16 * tiles for n in lengths) // (4 // tiles)) for tiles in range(1, 5))
    assert len(packs) == fewest
