"""Many readers at once, and servers that fail: every row, or an error; never fewer rows."""

import shutil
import socket
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib import request

import numpy as np
import pyarrow as pa
import pytest

import zoo
from tests.fabricated import TINY_MNIST, fabricate_shard, publish
from tests.faults.processes import start
from tests.faults.unreliable_server import serving
from tests.faults.workloads import read_all
from zoo.format.manifest import MAX_MANIFEST_BYTES, Manifest
from zoo.reading import fetch

pytestmark = pytest.mark.long

READERS = 8
NAME = "mnist/train-00000-of-00004.arrow"


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
    """``datasets`` with a cache of its own, and a reader that does not wait before it tries again."""
    import datasets

    datasets.disable_progress_bars()
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("zoo.reading.fetch._FIRST_PAUSE_SECONDS", 0.001)


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
        with pytest.raises(ConnectionError, match="does not answer in 5 attempts") as raised:
            list(stream)
    assert len(str(raised.value).splitlines()) == 1
    with serving(folder, {fault: 1}) as (address, _), pytest.raises(FileNotFoundError, match="does not answer"):
        zoo.load_dataset(address, "mnist", streaming=True)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fault", ["refuse", "cut", "well"])
def test_no_connection_stays_open(folder: Path, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that was answered with an error, nor that of a stream that is left early."""
    sockets, connect = [], socket.create_connection

    def remembered(*arguments: Any, **named: Any) -> socket.socket:
        sockets.append(connect(*arguments, **named))
        return sockets[-1]

    with serving(folder, {"well": 1}) as (address, server):
        stream = zoo.load_dataset(address, "mnist", split="train", streaming=True)
        monkeypatch.setattr(socket, "create_connection", remembered)
        server.weights = {fault: 1}
        rows = iter(stream)
        if fault == "well":
            next(rows)
            rows.close()
        else:
            with pytest.raises(ConnectionError):
                list(rows)
        assert sockets
        assert [place for place, opened in enumerate(sockets) if opened.fileno() != -1] == []


@pytest.mark.usefixtures("impatient")
def test_a_file_cut_between_two_batches_is_not_read_as_a_shorter_one(folder: Path, tmp_path: Path) -> None:
    """Arrow itself takes such a file for a complete one."""
    copy = Path(shutil.copytree(folder, tmp_path / "zoo"))
    victim = max((copy / "mnist").glob("train-*"))
    whole = victim.read_bytes()
    victim.write_bytes(whole[: schema_end(whole)])
    with pa.ipc.open_stream(victim) as reader:
        assert reader.read_all().num_rows == 0
    with serving(copy, {"well": 1}) as (address, _):
        stream = zoo.load_dataset(address, "mnist", split="train", streaming=True)
        with pytest.raises(
            ConnectionError, match=r"does not answer in 5 attempts: it broke off after [\d,]+ of [\d,]+"
        ):
            list(stream)
        for split in ("train", "train+test", "train[:100%]", "train[:1]", None):
            with pytest.raises(ConnectionError, match="broke off after"):
                zoo.load_dataset(address, "mnist", split=split)
    with pytest.raises(ValueError, match="is damaged"):
        zoo.load_dataset(copy, "mnist", split="train")
    with pytest.raises(ValueError, match="is damaged"):
        zoo.open(copy, "mnist", split="train")


def schema_end(stream: bytes) -> int:
    """The end of the schema, where the first record batch begins."""
    return 8 + int.from_bytes(stream[4:8], "little")


@pytest.mark.usefixtures("impatient")
def test_rows_that_the_manifest_promises_are_never_missing(folder: Path, tmp_path: Path) -> None:
    """Whole files with fewer rows than they should have, served, under every way of writing a split."""
    copy = Path(shutil.copytree(folder, tmp_path / "zoo"))
    names = sorted(path.name for path in (copy / "mnist").glob("train-*"))
    shorter = (copy / "mnist" / names[-1]).read_bytes()
    (copy / "mnist" / names[0]).write_bytes(shorter)
    manifest = Manifest.read(copy)
    entry = replace(manifest.files[f"mnist/{names[0]}"], bytes=len(shorter))
    manifest = replace(manifest, files=manifest.files | {f"mnist/{names[0]}": entry})
    manifest.write(copy)
    with serving(copy, {"well": 1}) as (address, _):
        for place in (address, copy):
            for split in ("train", "train+test", "train[:100%]", "test+train[:1]", "all", None):
                with pytest.raises(ValueError, match=r"damaged: \d+ rows, the manifest says 64"):
                    zoo.load_dataset(place, "mnist", split=split)
            for split in ("train", "train+test"):
                with pytest.raises(ValueError, match=r"damaged: \d+ rows, the manifest says 64"):
                    list(zoo.load_dataset(place, "mnist", split=split, streaming=True))
    del manifest.files[f"mnist/{names[-1]}"]
    manifest.write(copy)
    with pytest.raises(ValueError, match=r"lists .* where .* should be"):
        zoo.load_dataset(copy, "mnist", split="test")


@pytest.mark.usefixtures("impatient")
def test_the_card_does_not_decide_what_is_read(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "zoo"))
    with serving(folder, {"well": 1}) as (elsewhere, server):
        card = (copy / "README.md").read_text()
        victim = "path: mnist/train-*-of-00004.arrow"
        assert victim in card
        (copy / "README.md").write_text(card.replace(victim, f"path: {elsewhere}/mnist/test-00000-of-00001.arrow"))
        wanted = list(zoo.open(folder, "mnist").metadata["run_id"])
        for streaming in (False, True):
            rows = zoo.load_dataset(copy, "mnist", split="train", streaming=streaming)
            assert [row["run_id"] for row in rows] == wanted
        assert not server.counts
    with pytest.raises(ValueError, match="data_files is not for a zoo"):
        zoo.load_dataset(copy, "mnist", data_files="http://elsewhere/file.arrow")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fault", ["drip", "drip head", "flood", "byte", "continues", "trailers"])
def test_a_server_that_never_ends_is_abandoned(folder: Path, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then resets every timeout of a socket; the whole file has a deadline and a lowest rate."""
    monkeypatch.setattr("zoo.reading.fetch._GRACE_SECONDS", 0.3)
    start = time.monotonic()
    with serving(folder, {fault: 1}) as (address, server):
        with pytest.raises((FileNotFoundError, ValueError), match=r"does not answer|more than [\d,]+ bytes"):
            zoo.load_dataset(address, "mnist", streaming=True)
        server.weights = {"well": 1}
        stream = zoo.load_dataset(address, "mnist", split="train", streaming=True)
        server.weights = {fault: 1}
        with pytest.raises((ConnectionError, ValueError), match=r"does not answer|is damaged"):
            list(stream)
    assert time.monotonic() - start < 60, "the server would go on for hours"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fault", ["continues", "trailers"])
@pytest.mark.parametrize(("seconds", "allowance"), [(0.3, 1 << 40), (1e6, 1 << 16)], ids=["by time", "by bytes"])
def test_what_is_not_the_file_buys_no_time_and_is_bounded_in_bytes(
    folder: Path, fault: str, seconds: float, allowance: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zoo.reading.fetch._GRACE_SECONDS", seconds)
    monkeypatch.setattr("zoo.reading.fetch._HEAD_ALLOWANCE", allowance)
    with serving(folder, {fault: 1}) as (address, _):
        wanted = "per second are due" if seconds < 1 else "bytes sent for a file of at most 4,194,304"
        with pytest.raises(ConnectionError, match=wanted):
            fetch.fetch_small(f"{address}/manifest.json", MAX_MANIFEST_BYTES)
        source = fetch.ServedSource(f"{address}/{NAME}", size := (folder / NAME).stat().st_size)
        wanted = "per second are due" if seconds < 1 else f"bytes sent for a file of at most {size:,}"
        with pytest.raises(ConnectionError, match=wanted):
            source.slice(0, size)


def test_a_reader_that_takes_its_time_is_not_a_slow_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoo.reading.fetch._GRACE_SECONDS", 0.2)
    with serving(folder, {"well": 1}) as (address, _):
        whole = (folder / NAME).read_bytes()
        with closing(fetch.ServedSource(f"{address}/{NAME}", len(whole))) as source:
            first = source.slice(0, 8).to_pybytes()
            time.sleep(0.5)
            assert first + source.slice(8, len(whole) - 8).to_pybytes() == whole


def test_a_redirection_leads_to_web_servers_only_and_takes_no_token_along() -> None:
    asked = request.Request("https://here/a", headers={"authorization": "Bearer secret", "user-agent": "zoo"})
    for address, kept in (("https://here/b", True), ("https://there/b", False), ("http://here:1/b", False)):
        new = fetch._Redirections().redirect_request(asked, None, 302, "", {}, address)
        assert new is not None
        assert new.has_header("Authorization") == kept
        assert new.has_header("User-agent")
    for address in ("file:///etc/passwd", "ftp://127.0.0.1/file"):
        with pytest.raises(OSError, match="unknown url type"):
            fetch._open_address(address, fetch._Patience(address, 0), {})


@pytest.mark.usefixtures("impatient")
def test_streaming_from_the_hub_reads_what_the_manifest_of_one_commit_lists(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(folder, {"well": 1}) as (address, _):
        monkeypatch.setattr(
            "zoo.reading.loading.hub_address", lambda name, revision, token: (address, {"user-agent": "zoo"})
        )
        rows = list(zoo.load_dataset("owner/zoo", "mnist", split="test", streaming=True))
    assert [row["run_id"] for row in rows] == list(zoo.open(folder, "mnist", split="test").metadata["run_id"])
