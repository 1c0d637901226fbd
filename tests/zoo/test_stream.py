"""Streams: workers and ranks share the rows, each row exactly once."""

import itertools

import pytest
import torch
from torch.utils.data import DataLoader

import zoo


@pytest.fixture(scope="module")
def reader(zoo_folder) -> zoo.ZooReader:
    return zoo.open(zoo_folder, "mnist", split="train")


def rows_of(batches) -> list[int]:
    return [row for _, metadata in batches for row in metadata.index]


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_workers_get_disjoint_rows_and_together_all(reader, context):
    stream = zoo.CheckpointStream(reader, batch_size=16, shuffle=True, seed=1)
    with_workers = []
    for weights, metadata in DataLoader(stream, batch_size=None, num_workers=2, multiprocessing_context=context):
        assert torch.equal(weights.flat(), reader.weights(metadata.index))
        with_workers += metadata.index.tolist()
    assert sorted(with_workers) == list(range(len(reader)))
    assert with_workers == rows_of(stream), "the order should not depend on the number of workers"


def test_ranks_and_their_workers_get_disjoint_rows(reader):
    seen = []
    for rank in range(3):
        stream = zoo.CheckpointStream(reader, 8, shuffle=True, seed=2, rank=rank, world_size=3)
        seen.append(rows_of(DataLoader(stream, batch_size=None, num_workers=2)))
        assert len(seen[-1]) <= 8 * len(stream)
    assert sorted(itertools.chain(*seen)) == list(range(len(reader)))


def test_drop_last_gives_every_rank_as_many_full_batches(reader):
    streams = [zoo.CheckpointStream(reader, 10, drop_last=True, rank=rank, world_size=4) for rank in range(4)]
    counts = {len(rows_of(stream)) for stream in streams}
    assert counts == {10 * (len(reader) // 40)}


def test_an_epoch_is_another_permutation_that_living_workers_see(reader):
    stream = zoo.CheckpointStream(reader, 16, shuffle=True)
    loader = DataLoader(stream, batch_size=None, num_workers=1, persistent_workers=True)
    orders = []
    for epoch in (0, 1, 0):
        stream.set_epoch(epoch)
        orders.append(rows_of(loader))
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[1]) == list(range(len(reader)))


def test_a_function_as_selection_need_not_be_picklable(reader):
    stream = zoo.CheckpointStream(reader, 16, where=lambda metadata: metadata["optimizer"] == "adam")
    loader = DataLoader(stream, batch_size=None, num_workers=1)
    assert rows_of(loader) == list(reader.rows("optimizer == 'adam'"))


def test_a_rank_outside_the_world_is_refused(reader):
    with pytest.raises(ValueError, match="got 2 of 2"):
        zoo.CheckpointStream(reader, rank=2, world_size=2)


def test_loaders_work_as_torch_users_type_them(reader):
    expected = reader.weights(slice(None)).clone()
    seen = [row for loaded in DataLoader(reader, batch_size=16, shuffle=True) for row in loaded["weights"]]
    assert torch.equal(torch.stack(seen).sort(dim=0).values, expected.sort(dim=0).values)
    first = next(iter(DataLoader(reader, batch_size=4)))
    assert torch.equal(first["weights"], expected[:4])
    assert first["run_id"] == list(reader.metadata["run_id"][:4])
    assert first["test_accuracy"].tolist() == pytest.approx(list(reader.metadata["test_accuracy"][:4]))
    for weights, rows in DataLoader(zoo.CheckpointStream(reader, batch_size=32)):
        assert torch.equal(weights.flat(), expected[rows.index])
    for loaded in DataLoader(zoo.CheckpointStream(reader, batch_size=32), batch_size=2):
        assert torch.equal(loaded.weights.flat(), expected[loaded.metadata.index])


def test_rows_are_indexed_as_in_datasets(reader):
    row = reader[3]
    assert list(row) == [*reader.metadata.columns, "weights"]
    assert row["run_id"] == reader.metadata["run_id"][3]
    assert torch.equal(row["weights"], reader.weights(3))
    assert torch.equal(reader[-1]["weights"], reader.weights(len(reader) - 1))
    some = reader[2:5]
    assert some["run_id"] == list(reader.metadata["run_id"][2:5])
    assert torch.equal(some["weights"], reader.weights(slice(2, 5)))
    assert len(list(reader)) == len(reader)
    for rows in (slice(2, 5), [2, 3, 4], torch.arange(2, 5), [number in (2, 3, 4) for number in range(len(reader))]):
        assert reader.table(rows)["run_id"].to_pylist() == some["run_id"]
    assert len(reader.table([])) == 0
    with pytest.raises(IndexError, match="no such row"):
        reader[len(reader)]
