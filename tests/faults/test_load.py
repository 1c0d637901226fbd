"""Many readers at once, and servers that fail: every row, or an error; never fewer rows."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import zoo
from tests.faults.processes import start
from tests.faults.unreliable_server import serving
from tests.faults.workloads import read_all
from zoo.publish import publish
from zoo.testing import TINY_MNIST, fabricate_shard

READERS = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("served")
    fabricate_shard(root / "runs", TINY_MNIST, count=80)
    publish(root / "runs", root / "zoo")
    return root / "zoo"


def test_eight_processes_read_one_folder_at_once(folder: Path, tmp_path: Path) -> None:
    logs = [tmp_path / f"reader-{number}" for number in range(READERS)]
    processes = [start(read_all, folder, log=log) for log in logs]
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * READERS
    digests = {log.read_text() for log in logs}
    assert len(digests) == 1
    assert len(digests.pop()) == 65


@pytest.fixture
def impatient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``datasets`` with a cache of its own, that does not wait seconds before it tries again."""
    import datasets

    datasets.disable_progress_bars()
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    for name in ("READ", "OPEN"):
        monkeypatch.setattr(f"datasets.config.STREAMING_{name}_RETRY_INTERVAL", 0.01)
        monkeypatch.setattr(f"datasets.config.STREAMING_{name}_MAX_RETRIES", 8)
    monkeypatch.setattr("zoo.reading.loading.PAUSE_SECONDS", 0.01)


def check_stream(address: str, folder: Path) -> None:
    reader = zoo.open(folder, "mnist", split="train")
    stream = zoo.load_dataset(address, "mnist", split="train", streaming=True).with_format("numpy")
    rows = list(stream)
    assert [row["run_id"] for row in rows] == list(reader.metadata["run_id"])
    assert np.array_equal(np.stack([row["weights"] for row in rows]), reader.weights(slice(None)).numpy())


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fault", ["drop", "cut", "short"])
def test_a_stream_from_a_failing_server_is_whole(folder: Path, fault: str) -> None:
    with serving(folder, {"well": 0.6, fault: 0.4}) as (address, server):
        check_stream(address, folder)
        assert server.counts[fault] > 0


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fault", ["drop", "cut", "refuse"])
def test_a_server_that_always_fails_is_one_line(folder: Path, fault: str, tmp_path: Path) -> None:
    # the manifest answers, the rows do not
    with serving(folder, {"well": 1}) as (address, server):
        stream = zoo.load_dataset(address, "mnist", split="train", streaming=True)
        server.weights = {fault: 1}
        with pytest.raises(ConnectionError, match="cannot be read") as raised:
            list(stream)
    assert len(str(raised.value).splitlines()) == 1
    with serving(folder, {fault: 1}) as (address, _), pytest.raises(FileNotFoundError, match="does not answer"):
        zoo.load_dataset(address, "mnist", streaming=True)


@pytest.mark.usefixtures("impatient")
def test_a_file_cut_between_two_batches_is_not_read_as_a_shorter_one(folder: Path, tmp_path: Path) -> None:
    """Arrow itself takes such a file for a whole one."""
    copy = Path(shutil.copytree(folder, tmp_path / "zoo"))
    victim = max((copy / "mnist").glob("train-*"))
    whole = victim.read_bytes()
    victim.write_bytes(whole[: first_batch_end(whole)])
    with pa.ipc.open_stream(victim) as reader:
        assert reader.read_all().num_rows == 0
    with serving(copy, {"well": 1}) as (address, _):
        stream = zoo.load_dataset(address, "mnist", split="train", streaming=True)
        with pytest.raises(ConnectionError, match=r"0 of \d+ rows in 3 attempts \(the stream ended\)"):
            list(stream)
        with pytest.raises(ValueError, match="came with"):
            zoo.load_dataset(address, "mnist", split="train")
    with pytest.raises(ValueError, match="is damaged"):
        zoo.load_dataset(copy, "mnist", split="train")
    with pytest.raises(ValueError, match="is damaged"):
        zoo.open(copy, "mnist", split="train")


def first_batch_end(stream: bytes) -> int:
    """Where the schema ends and the first record batch begins."""
    return 8 + int.from_bytes(stream[4:8], "little")
