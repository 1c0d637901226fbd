"""Shards that end at a URL: whole or not there, uploaded again where an upload broke off."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest

from generation.job import Job
from generation.protocol import Preset, Protocol
from generation.remote import RemoteShards
from generation.run import main
from generation.shard import train_shard
from generation.sweep import Sweep
from generation.task import named_task
from tests.fabricated import TINY_AGNEWS, fabricate_embedding
from tests.generation.small_tasks import write_digits
from tests.refusal import refusal
from zoo.format.manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES
from zoo.tasks.embedding import WordEmbedding

TINY = Sweep(named_task("mnist"), Preset("tiny", Protocol(epochs=4, warmup_epochs=1, batch_size=16), runs_per_shard=1))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_digits(tmp_path_factory.mktemp("data"), train=32, test=10)


@pytest.fixture
def job(data: Path, tmp_path: Path) -> Job:
    return Job(TINY, tmp_path / "scratch", f"file://{tmp_path}/store/runs", data=data, device="cpu")


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``store`` with shard 3, and ``local`` with the same shard in a folder."""
    root = tmp_path_factory.mktemp("trained")
    job = Job(TINY, root / "scratch", f"file://{root}/store/runs", data=data, device="cpu")
    train_shard(replace(job, url=None), 3)
    shutil.copytree(job.out, root / "local")
    train_shard(job, 3)
    return root


@pytest.fixture
def uploaded(trained: Path, job: Job, tmp_path: Path) -> Job:
    """A job whose shard 3 is in the store."""
    shutil.copytree(trained / "store", tmp_path / "store")
    return job


def stored(job: Job) -> dict[str, bytes]:
    fs, root = fsspec.url_to_fs(job.url)
    return {path.removeprefix(root): fs.cat_file(path) for path in fs.find(root) if not path.endswith("timing.json")}


def test_a_shard_arrives_with_the_bytes_it_has_in_a_folder(job: Job, tmp_path: Path) -> None:
    train_shard(job, 3)
    local = Job(TINY, tmp_path / "local", data=job.data, device="cpu")
    train_shard(local, 3)
    folder = tmp_path / "local" / "mnist" / "shard-00003"
    names = ("checkpoints.arrow", "runs.arrow", MANIFEST_FILE)
    assert stored(job) == {f"/mnist/shard-00003/{name}": (folder / name).read_bytes() for name in names}
    assert not (job.out / "mnist" / "shard-00003").exists(), "scratch is cleared"
    assert job.is_finished(3)
    assert not job.is_finished(4)


@pytest.mark.parametrize("broken", ["manifest.json", "checkpoints.arrow", "half a manifest", "too long a manifest"])
def test_half_an_upload_is_not_a_finished_shard_and_is_made_whole(uploaded: Job, broken: str) -> None:
    job, whole = uploaded, stored(uploaded)
    fs, root = fsspec.url_to_fs(job.url)
    manifest = whole[f"/mnist/shard-00003/{MANIFEST_FILE}"]
    if broken == "half a manifest":
        fs.pipe_file(f"{root}/mnist/shard-00003/{MANIFEST_FILE}", manifest[:99])
    elif broken == "too long a manifest":
        without_hash = json.dumps({key: value for key, value in json.loads(manifest).items() if key != "sha256"})
        fs.pipe_file(f"{root}/mnist/shard-00003/{MANIFEST_FILE}", without_hash.ljust(MAX_MANIFEST_BYTES + 2).encode())
    else:
        fs.rm_file(f"{root}/mnist/shard-00003/{broken}")
    assert not job.is_finished(3)
    train_shard(job, 3)
    assert stored(job) == whole


@pytest.mark.long
def test_a_shard_of_fewer_runs_is_continued_from_the_store(job: Job, tmp_path: Path) -> None:
    whole = replace(job, sweep=replace(TINY, preset=replace(TINY.preset, runs_per_shard=3)))
    train_shard(replace(whole, runs=2), 3)
    assert not whole.is_finished(3)
    elsewhere = replace(whole, out=tmp_path / "elsewhere")
    train_shard(elsewhere, 3)
    assert whole.is_finished(3)
    at_once = replace(whole, url=f"file://{tmp_path}/at-once")
    train_shard(at_once, 3)
    assert stored(whole) == stored(at_once)


def test_an_upload_that_fails_keeps_the_shard_and_the_next_try_uploads_it(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: RemoteShards, folder: Path) -> None:
        raise OSError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(RemoteShards, "upload", fail)
        with pytest.raises(OSError, match="away"):
            train_shard(job, 3)
    assert not job.is_finished(3)
    with monkeypatch.context() as patch:
        # nothing is trained again
        patch.setattr(Job, "load", lambda self: pytest.fail("trained again"))
        train_shard(job, 3)
    assert job.is_finished(3)


def test_the_embedding_is_made_once_and_shared_through_the_store(tmp_path: Path) -> None:
    remote = RemoteShards(f"file://{tmp_path}/store", "agnews")
    made = fabricate_embedding(TINY_AGNEWS)
    here, there = tmp_path / "here" / "agnews", tmp_path / "there" / "agnews"
    remote.fetch_embedding(here)
    assert not here.exists()
    made.save(here)
    (here / "embedding-origin.txt").write_text("trained")
    remote.push_embedding(here)
    remote.fetch_embedding(there)
    assert WordEmbedding.load(there).sha256 == made.sha256


def test_an_embedding_put_there_by_hand_has_no_origin_and_is_shared_all_the_same(tmp_path: Path) -> None:
    remote, here = RemoteShards(f"file://{tmp_path}/store", "agnews"), tmp_path / "here" / "agnews"
    made = fabricate_embedding(TINY_AGNEWS)
    made.save(tmp_path / "store" / "agnews")
    remote.fetch_embedding(here)
    assert WordEmbedding.load(here).sha256 == made.sha256


def test_a_url_that_fsspec_does_not_support_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--shard", "3", "--preset", "demo", "--out", "carrier-pigeon://roof"])
    assert capsys.readouterr().err.startswith(
        "error: --out carrier-pigeon://roof is not a URL that fsspec can write to permanently"
    )


@pytest.mark.parametrize("url", ["memory://runs", "simplecache::memory://runs", "dir::memory://runs", "data://runs"])
def test_a_url_that_ends_with_the_process_is_refused_before_anything_is_trained(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setattr(Job, "prepare", lambda self, shard: pytest.fail("trained"))
    job = Job(TINY, tmp_path / "scratch", url, data=data, device="cpu")
    with pytest.raises(ValueError, match="is not a URL that fsspec can write to permanently"):
        train_shard(job, 3)


def test_a_url_that_cannot_be_written_to_is_found_before_anything_is_trained(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no credentials")  # stores raise errors of their own

    monkeypatch.setattr(Job, "prepare", lambda self, shard: pytest.fail("trained"))
    monkeypatch.setattr("fsspec.implementations.local.LocalFileSystem.pipe_file", refuse)
    with pytest.raises(OSError, match="cannot be written to: RuntimeError: no credentials"):
        train_shard(job, 3)


class NoCredentialsError(Exception):
    """A type of its own, like a store's: botocore's is not an OSError."""


def no_credentials(*_: object, **__: object) -> None:
    raise NoCredentialsError("Unable to locate credentials")


@pytest.mark.parametrize(
    ("method", "call", "failure"),
    [
        ("finished_record", "cat_file", "read"),
        ("finished_record", "info", "read"),
        ("upload", "put_file", "written to"),
        ("download", "cat_file", "read"),
        ("fetch_embedding", "exists", "read"),
        ("push_embedding", "exists", "written to"),
    ],
)
def test_a_stores_own_errors_name_the_url(
    uploaded: Job, trained: Path, monkeypatch: pytest.MonkeyPatch, method: str, call: str, failure: str
) -> None:
    job = uploaded
    shutil.copytree(trained / "local", job.out)
    monkeypatch.setattr(f"fsspec.implementations.local.LocalFileSystem.{call}", no_credentials)
    with pytest.raises(OSError, match=f"{job.url} cannot be {failure}: NoCredentialsError: Unable to locate"):
        getattr(job.remote, method)(job.folder(3))


def test_a_store_that_cannot_be_read_is_one_line_before_anything_is_trained_or_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fsspec.implementations.local.LocalFileSystem.cat_file", no_credentials)
    url = f"file://{tmp_path}/store"
    for arguments in (["--shard", "3"], ["--list"]):
        line = refusal(main, [*arguments, "--preset", "demo", "--out", url], capsys)
        assert line == f"error: --out {url} cannot be read: NoCredentialsError: Unable to locate credentials\n"


def test_control_c_during_a_call_of_the_store_is_not_an_error_of_it(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fsspec.implementations.local.LocalFileSystem.cat_file", interrupt)
    with pytest.raises(KeyboardInterrupt):
        job.is_finished(3)


def test_trying_to_write_leaves_nothing(tmp_path: Path) -> None:
    RemoteShards(f"file://{tmp_path}/store", "mnist").try_writing()
    assert [path.name for path in (tmp_path / "store").rglob("*")] == ["mnist"]
