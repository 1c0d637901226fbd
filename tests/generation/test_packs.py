"""Packs: texts that share the rows of four warps."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from generation.data import TrainingInputs, TrainingRows, epoch_batches
from generation.fused.engine import _COUNT_SHIFT, _TILES_SHIFT, _epoch_examples, _make_packs
from generation.fused.variants import RECENT
from generation.protocol import Protocol
from zoo.tasks.examples import TaskData

Pack = tuple[int, int, int]


def packs_of(lengths: list[list[int]], packs_at_once: int = 3) -> list[list[Pack]]:
    """(first example, examples, tiles of each) of every step."""
    words, counts = _make_packs(torch.tensor(lengths), packs_at_once)
    return [
        [(word & 0xFFFF, word >> _COUNT_SHIFT & 0xFF, word >> _TILES_SHIFT) for word in row[:count]]
        for row, count in zip(words.tolist(), counts.tolist(), strict=True)
    ]


def test_neighbors_of_as_many_tiles_share_the_rows() -> None:
    mixed = [1, 2, 3, 16, 16, 17, 20, 32, 40, 49, 64]
    assert packs_of([mixed, [5] * 11, [64] * 11]) == [
        [(0, 4, 1), (4, 1, 1), (5, 2, 2), (7, 1, 2), (8, 1, 3), (9, 1, 4), (10, 1, 4)],
        [(0, 4, 1), (4, 4, 1), (8, 3, 1)],
        [(i, 1, 4) for i in range(11)],
    ]


def test_a_pack_is_cut_where_sixteen_examples_would_not_end_with_a_round_of_two() -> None:
    lengths = [[10] * 6 + [20] * 4 + [60] * 22]
    ones, longs = [(0, 4, 1), (4, 2, 1)], [(i, 1, 4) for i in range(10, 32)]
    assert packs_of(lengths, 1) == [[*ones, (6, 2, 2), (8, 2, 2), *longs]]
    assert packs_of([[10] * 6 + [20] * 3 + [60] * 23], 2) == [
        [*ones, (6, 1, 2), (7, 1, 2), (8, 1, 2), (9, 1, 4), *longs]
    ]


@pytest.mark.parametrize("packs_at_once", [1, 2, 3])
@given(sets=st.lists(st.lists(st.integers(1, 64), min_size=RECENT, max_size=RECENT), min_size=1, max_size=5))
def test_every_example_is_in_one_pack_that_has_room_for_it(packs_at_once: int, sets: list[list[int]]) -> None:
    lengths = sorted(length for lengths in sets for length in lengths)
    (packs,) = packs_of([lengths], packs_at_once)
    assert [first + i for first, examples, _ in packs for i in range(examples)] == list(range(len(lengths)))
    for first, examples, tiles in packs:
        assert examples * tiles <= 4
        assert all(16 * (tiles - 1) < length <= 16 * tiles for length in lengths[first : first + examples])
    if packs_at_once == 3:
        counts = [sum(16 * (tiles - 1) < length <= 16 * tiles for length in lengths) for tiles in range(1, 5)]
        assert len(packs) == sum(-(-count // (4 // tiles)) for tiles, count in enumerate(counts, 1))
    else:
        ends = [first + examples for first, examples, _ in packs][packs_at_once - 1 :: packs_at_once]
        assert set(range(RECENT, len(lengths) + 1, RECENT)) <= set(ends)


def test_the_news_that_the_kernels_are_tested_with_come_in_packs_of_every_kind(news: TaskData) -> None:
    batches = epoch_batches(TrainingRows.of(news, 1.0), Protocol(batch_size=RECENT), epoch=0)
    lengths = _epoch_examples(TrainingInputs.prepare(news), batches).lengths.view(batches.rows.shape)
    kinds = {(examples, tiles) for step in packs_of(lengths.tolist()) for _, examples, tiles in step}
    assert kinds == {(1, 1), (2, 1), (3, 1), (4, 1), (1, 2), (2, 2), (1, 3), (1, 4)}
