"""The reader: views of the file, exact shuffling, selections, many readers at once."""

import pickle
import shutil
import warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
import torch

import zoo
from tests.fabricated import TINY_MNIST, fabricate_shard, folder_contents, publish
from zoo.format.manifest import read_one_edition
from zoo.reading.selection import Selection


@pytest.fixture(scope="module")
def reader(zoo_folder) -> zoo.ZooReader:
    return zoo.open(zoo_folder, "mnist", split="train")


def all_weights(reader: zoo.ZooReader) -> torch.Tensor:
    """Every row, one by one: the slow twin."""
    return torch.stack([reader.weights(row) for row in range(len(reader))])


def test_any_rows_in_any_form_are_the_same_weights(reader):
    expected = all_weights(reader)
    n = len(reader)
    for rows in (
        slice(None),
        slice(3, 17),
        slice(60, 70),
        slice(10, 0, -3),
        [5, 5, 0],
        [-1, 2],
        np.array([70, 3, 69]),
        torch.tensor([1, 2, 3]),
        np.arange(n) % 3 == 0,
        reader.metadata.index[4:9],
        [],
    ):
        index = (
            torch.as_tensor(np.arange(n)[np.asarray(rows, dtype=None if len(rows) else int)])
            if not isinstance(rows, slice)
            else torch.as_tensor(np.arange(n)[rows].copy())
        )
        assert torch.equal(reader.weights(rows), expected[index])
    assert reader.weights([]).shape == (0, reader.spec.num_parameters)


def test_one_row_by_any_kind_of_number(reader):
    chosen = reader.rows("checkpoint == 'best'")[1]
    for row in (chosen, int(chosen), torch.tensor(int(chosen)), np.array(chosen)):
        assert torch.equal(reader.weights(row), reader.weights(slice(None))[int(chosen)])
        assert reader[row]["run_id"] == reader.metadata["run_id"][int(chosen)]


@pytest.mark.parametrize(
    "rows",
    [10**6, [10**6], [-(10**6)], np.array(["a"]), np.array([[1, 2]]), np.array([0.5]), np.array([True])],
)
def test_rows_that_do_not_exist_are_one_clear_error(reader, rows):
    with pytest.raises(ValueError, match="row"):
        reader.weights(rows)


def test_rows_in_one_record_batch_are_views_of_the_file(reader):
    views = reader.weights(slice(3, 64)), reader.weights(slice(0, 64))
    assert views[0].data_ptr() == views[1][3].data_ptr()
    assert reader.weights(slice(3, 65)).data_ptr() != reader.weights(slice(3, 65)).data_ptr()
    first = [weights.flat().data_ptr() for weights, _ in reader.batches(32)]
    again = [weights.flat().data_ptr() for weights, _ in reader.batches(32)]
    assert first == again, "batches in order should be views"


def test_no_warning_and_no_way_to_write_to_the_file(spoiled):
    before = folder_contents(spoiled)
    reader = zoo.open(spoiled, "mnist")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reader.weights(slice(0, 4)).zero_()
    assert folder_contents(spoiled) == before
    assert bool(zoo.open(spoiled, "mnist").weights(slice(0, 4)).any())


@pytest.mark.parametrize("batch_size", [1, 7, 64, 100, 10_000])
@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_give_every_row_once_with_its_own_metadata(reader, batch_size, shuffle):
    expected = all_weights(reader)
    order = []
    for weights, metadata in reader.batches(batch_size, shuffle=shuffle, seed=3):
        rows = metadata.index.tolist()
        assert torch.equal(weights.flat(), expected[rows])
        assert list(metadata["run_id"]) == list(reader.metadata["run_id"].iloc[rows])
        order += rows
    assert sorted(order) == list(range(len(reader)))
    assert (order == sorted(order)) is not shuffle


def test_shuffling_is_exact_and_a_function_of_the_seed(reader):
    def order(seed):
        return [row for _, metadata in reader.batches(10, shuffle=True, seed=seed) for row in metadata.index]

    assert order(1) == order(1) != order(2)
    # every row is as likely in the first batch as in the last, wherever it lies in the files
    starts = np.mean([order(seed)[:20] for seed in range(200)])
    assert starts == pytest.approx((len(reader) - 1) / 2, rel=0.05)


def test_selection_reaches_the_batches(reader):
    where = "checkpoint == 'epoch_75' and test_accuracy >= 0.5"
    frame = reader.metadata
    expected = frame.index[(frame["checkpoint"] == "epoch_75") & (frame["test_accuracy"] >= 0.5)]
    for form in (where, lambda m: (m["checkpoint"] == "epoch_75") & (m["test_accuracy"] >= 0.5), frame.eval(where)):
        rows = [row for _, metadata in reader.batches(5, where=form) for row in metadata.index]
        assert rows == list(expected)


def test_drop_last_gives_only_full_batches(reader):
    assert {len(metadata) for _, metadata in reader.batches(50, drop_last=True)} == {50}
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        reader.batches(0)


def test_metadata_reads_no_weights_from_the_disk(tmp_path):
    fabricate_shard(tmp_path / "runs", zoo.MNIST, count=64)
    publish(tmp_path / "runs", tmp_path / "zoo")
    reader = zoo.open(tmp_path / "zoo", "mnist", split="all")
    assert len(reader.metadata) == 256
    size = sum(path.stat().st_size for path in reader._rows.paths)
    assert size > 15e6
    assert resident_bytes(tmp_path / "zoo") < 0.2 * size
    reader.weights(slice(None)).sum()
    assert resident_bytes(tmp_path / "zoo") > 0.9 * size


def resident_bytes(folder: Path) -> int:
    """How much of the files below a folder this process has touched through its maps."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(maxsplit=1)[0] and not line.split(maxsplit=1)[0].endswith(":"):
            ours = f"{folder}/" in line
        elif ours and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def test_a_pickled_reader_is_only_its_address(reader):
    data = pickle.dumps(reader)
    assert len(data) < 1000
    assert torch.equal(pickle.loads(data).weights(slice(None)), reader.weights(slice(None)))  # noqa: S301


def test_a_pickled_reader_does_not_mix_editions(spoiled, tmp_path):
    data = pickle.dumps(zoo.open(spoiled, "mnist"))
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=5)
    shutil.rmtree(spoiled)
    publish(tmp_path / "runs", spoiled)
    with pytest.raises(ValueError, match="was published again since"):
        pickle.loads(data)  # noqa: S301


def test_an_open_reader_keeps_its_edition(spoiled, tmp_path):
    reader, news = zoo.open(spoiled, "mnist"), zoo.open(spoiled, "agnews")
    before = reader.weights([0, 100]).clone()
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=5)
    shutil.rmtree(spoiled)
    publish(tmp_path / "runs", spoiled)
    assert torch.equal(reader.weights([0, 100]), before)
    # read for the first time after their files were replaced or deleted
    assert set(reader.metadata["run_id"]) <= set(reader.runs["run_id"])
    assert news.embedding is not None
    assert news.embedding.sha256 == news.details.embedding_sha256
    assert len(zoo.open(spoiled, "mnist", split="all")) == 20


@pytest.mark.long
def test_many_readers_while_the_zoo_is_published_again_and_again(tmp_path):
    sizes = {}
    for name, count in (("a", 20), ("b", 30)):
        fabricate_shard(tmp_path / name, TINY_MNIST, count=count)
        publish(tmp_path / name, tmp_path / "zoo")
        sizes[count * 4] = sum(
            float(w.flat().double().sum()) for w, _ in zoo.open(tmp_path / "zoo", "mnist", "all").batches()
        )

    def read(_):
        reader = zoo.open(tmp_path / "zoo", "mnist", split="all")
        assert set(reader.metadata["run_id"]) <= set(reader.runs["run_id"])
        return len(reader), sum(float(w.flat().double().sum()) for w, _ in reader.batches())

    with ThreadPoolExecutor(2) as pool:
        results = pool.map(read, range(60))
        for turn in range(15):
            publish(tmp_path / "ab"[turn % 2], tmp_path / "zoo")
        for count, total in results:
            assert total == pytest.approx(sizes[count])


def test_an_edition_that_comes_back_is_not_taken_for_the_same(tmp_path):
    """Replaced twice while files are opened: the manifest is the old one again, what was opened may not be."""
    for name, count in (("a", 20), ("b", 20)):
        fabricate_shard(tmp_path / name, TINY_MNIST, shard=ord(name), count=count)
    publish(tmp_path / "a", tmp_path / "zoo")
    turns = iter("ba")

    def read(edition):
        for name in turns:
            publish(tmp_path / name, tmp_path / "zoo")
        reads.append(edition)
        return len(reads)

    reads = []
    assert read_one_edition(tmp_path / "zoo", read) == 2
    assert reads[0] == reads[1]
    turns = cycle("ab")
    with pytest.raises(ValueError, match="changed while reading, 5 times"):
        read_one_edition(tmp_path / "zoo", lambda _: publish(tmp_path / next(turns), tmp_path / "zoo"))


def test_configs_and_splits_that_do_not_exist_are_one_clear_error(zoo_folder):
    with pytest.raises(ValueError, match="has no config 'chess': it has agnews, agnews-seeds, mnist"):
        zoo.open(zoo_folder, "chess")
    for split in ("training", "train+train", ""):
        with pytest.raises(ValueError, match="unknown split"):
            zoo.open(zoo_folder, "mnist", split=split)


@pytest.mark.parametrize("damage", ["truncated", "empty", "foreign", "missing"])
def test_a_damaged_file_is_named_when_it_is_opened(spoiled, damage):
    path = next((spoiled / "mnist").glob("train-00001-*"))
    whole = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes({"truncated": whole[:-100], "empty": b"", "foreign": b"x" * len(whole)}[damage])
    with pytest.raises(ValueError, match=path.name):
        zoo.open(spoiled, "mnist")


def test_rows_rebuild_their_transformer(reader):
    model = zoo.build_model(reader.spec, reader.weights(0))
    assert torch.equal(
        zoo.TransformerWeights.from_state_dict(reader.spec, model.state_dict()).flat(), reader.weights(0)
    )


def test_writing_to_what_was_read_changes_no_later_read(reader):
    """Each way of reading, each way of writing that torch has; the file and other readers stay as they are too."""
    before = reader.weights(slice(None)).clone()
    single, some = reader.weights(20), reader.weights(slice(64, 96))
    single.zero_()
    some.mul_(2)
    assert bool((single == 0).all()), "what was written stays with who wrote it"
    assert torch.equal(some, 2 * before[64:96])
    for _ in range(2):
        for weights, rows in reader.batches(32):
            assert torch.equal(weights.flat(), before[rows.index])
            weights.flat().add_(1)
        for weights, rows in reader.batches(32, shuffle=True):
            assert torch.equal(weights.flat(), before[rows.index])
            weights.blocks[0].query.zero_()
    assert torch.equal(reader.weights(slice(None)), before)
    assert torch.equal(zoo.open(reader.folder, reader.config, reader.split).weights(slice(None)), before)


def test_two_passes_at_once_do_not_see_each_others_writes(reader):
    expected = reader.weights(slice(None)).clone()
    for (first, _), (second, rows) in zip(reader.batches(32), reader.batches(32), strict=True):
        assert torch.equal(second.flat(), expected[rows.index])
        first.flat().zero_()
    for weights, rows in reader.batches(16):
        assert torch.equal(weights.flat(), expected[rows.index])


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("test_accuracy > 2", r"fits 'test_accuracy > 2': test_accuracy lies between 0\.\d+ and 0\.\d+"),
        (
            "checkpoint == 'epoch_42' or dropout == 7",
            r"checkpoint is one of best, epoch_100, epoch_50, epoch_75; dropout is one of 0\.0, 0\.2",
        ),
        (Selection.parse("run_id == 'x'"), r"fits \"run_id == 'x'\": run_id has \d+ values, such as [0-9a-f]{16}"),
        (lambda metadata: metadata["epoch"] < 0, r"fits the given where: there are \d+ rows"),
    ],
)
def test_choosing_nothing_is_an_error_that_lists_what_there_is(reader, where, message):
    for read in (reader.rows, lambda where: reader.batches(5, where=where)):
        with pytest.raises(ValueError, match=f"no checkpoint of mnist, split train, .*{message}"):
            read(where)
    with pytest.raises(ValueError, match="no checkpoint of mnist, split train"):
        zoo.CheckpointStream(reader, where=where)
