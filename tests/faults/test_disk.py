"""Full and read-only disks, damaged snapshots: one clear line, nothing lost, and the same bytes in the end."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import zoo
from tests.fabricated import TINY_MNIST, fabricate_shard, publish
from tests.faults.mounts import Disk, NoMounts, small_disk
from tests.faults.processes import finish, start
from tests.faults.workloads import contents, shard_of, train
from zoo import describe

pytestmark = pytest.mark.long
NOBODY = 65534


@contextmanager
def disk(folder: Path, kilobytes: int) -> Iterator[Disk]:
    mounted = small_disk(folder, kilobytes)
    try:
        made = mounted.__enter__()
    except NoMounts as error:
        pytest.skip(f"no small disk can be mounted here: {error}")
    try:
        yield made
    finally:
        mounted.__exit__(None, None, None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("whole")
    assert finish(train, out) == 0
    return contents(shard_of(out))


@pytest.mark.parametrize("kilobytes", [200, 1500])
def test_a_full_disk_is_one_line_and_the_shard_resumes_when_there_is_room(
    tmp_path: Path, whole: dict[str, bytes], kilobytes: int
) -> None:
    log = tmp_path / "log"
    with disk(tmp_path / "disk", kilobytes) as small:
        assert finish(train, small.folder, log=log) == 2
        last = log.read_text().splitlines()[-1]
        assert last.startswith(f"error: {shard_of(small.folder)}/")
        assert last.endswith(": No space left on device")
        assert "Traceback" not in log.read_text()
        assert not list(shard_of(small.folder).glob(".*.part")), "half a file takes the room of the next"
        begun = bool(list(shard_of(small.folder).glob("state-*")))
        small.remount("size=64m")
        assert finish(train, small.folder, log=log) == 0
        assert ("resumed after epoch" in log.read_text()) == begun
        assert contents(shard_of(small.folder)) == whole


def test_a_full_disk_leaves_the_published_zoo_as_it_was(tmp_path: Path) -> None:
    for name, count in (("a", 4), ("b", 200)):
        fabricate_shard(tmp_path / name, TINY_MNIST, count=count)
    with disk(tmp_path / "disk", 600) as small:
        publish(tmp_path / "a", small.folder / "zoo")
        before = contents(small.folder / "zoo")
        with pytest.raises(OSError, match="No space left on device"):
            publish(tmp_path / "b", small.folder / "zoo")
        assert contents(small.folder / "zoo") == before
        assert [path.name for path in small.folder.iterdir()] == ["zoo"]


def test_a_read_only_disk_is_one_line_and_what_was_there_stays(tmp_path: Path, whole: dict[str, bytes]) -> None:
    log = tmp_path / "log"
    with disk(tmp_path / "disk", 64 << 10) as small:
        interrupt_after_snapshots(small.folder)
        before = contents(small.folder)
        small.remount("ro")
        assert finish(train, small.folder, log=log) == 2
        (line,) = log.read_text().splitlines()
        assert line.endswith(": Read-only file system")
        assert contents(small.folder) == before
        small.remount("rw")
        assert finish(train, small.folder, log=log) == 0
        assert "resumed after epoch" in log.read_text()
        assert contents(shard_of(small.folder)) == whole


@pytest.mark.parametrize("option", ["--png", "--plots"])
def test_a_picture_for_which_there_is_no_room_is_named_and_the_old_one_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=8)
    publish(tmp_path / "runs", tmp_path / "zoo")
    with disk(tmp_path / "disk", 24) as small:
        picture = small.folder / "accuracy.png"
        picture.write_bytes(b"the old one")
        (small.folder / "other").write_bytes(bytes(8 << 10))
        with pytest.raises(SystemExit) as ended:
            describe.main([str(tmp_path / "zoo"), option, str(picture if option == "--png" else small.folder)])
        assert ended.value.code == 2
        assert capsys.readouterr().err == f"error: {picture}: No space left on device\n"
        assert picture.read_bytes() == b"the old one"
        assert sorted(path.name for path in small.folder.iterdir()) == ["accuracy.png", "other"]


def test_a_zoo_on_a_read_only_disk_is_read_like_any_other(tmp_path: Path) -> None:
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=8)
    with disk(tmp_path / "disk", 64 << 10) as small:
        publish(tmp_path / "runs", small.folder / "zoo")
        small.remount("ro")
        reader = zoo.open(small.folder / "zoo", "mnist", split="all")
        assert len(list(reader.batches(5))) == -(-len(reader) // 5)
        del reader


def interrupt_after_snapshots(out: Path) -> list[Path]:
    """A shard killed with two snapshots on disk, oldest first."""
    process = start(train, out)
    deadline = time.monotonic() + 60
    while len(list(shard_of(out).glob("state-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.002)
    process.kill()
    process.join()
    return sorted(shard_of(out).glob("state-*"))


@pytest.mark.parametrize("damage", ["truncated", "flipped", "header"])
def test_a_damaged_snapshot_is_named_and_the_one_before_is_used(
    tmp_path: Path, whole: dict[str, bytes], damage: str
) -> None:
    log, (before, newest) = tmp_path / "log", interrupt_after_snapshots(tmp_path / "out")[-2:]
    data = bytearray(newest.read_bytes())
    if damage == "flipped":
        data[len(data) * 2 // 3] ^= 16
    elif damage == "header":
        data[0:8] = (1 << 60).to_bytes(8, "little")
    newest.write_bytes(data[: len(data) // 2 if damage == "truncated" else len(data)])
    assert finish(train, tmp_path / "out", log=log) == 0
    text = log.read_text()
    assert f"note: {newest} is not used: " in text
    assert f"resumed after epoch {int(before.stem[-5:])} of 6" in text
    assert contents(shard_of(tmp_path / "out")) == whole


def test_with_every_snapshot_damaged_it_starts_over_with_a_warning(tmp_path: Path, whole: dict[str, bytes]) -> None:
    log, snapshots = tmp_path / "log", interrupt_after_snapshots(tmp_path / "out")
    for path in snapshots:
        path.write_bytes(path.read_bytes()[:-1])
    assert finish(train, tmp_path / "out", log=log) == 0
    text = log.read_text()
    assert text.count("is not used: ") == len(snapshots)
    assert "resumed" not in text
    assert contents(shard_of(tmp_path / "out")) == whole


def test_a_finished_shard_that_was_cut_short_is_an_error_not_a_finished_one(tmp_path: Path) -> None:
    assert finish(train, tmp_path) == 0
    victim, log = shard_of(tmp_path) / "checkpoints.arrow", tmp_path / "log"
    whole = victim.read_bytes()
    victim.write_bytes(whole[:-100])
    assert finish(train, tmp_path, log=log) == 2
    (line,) = log.read_text().splitlines()
    assert line.startswith(f"error: {victim} is damaged")
    shutil.rmtree(shard_of(tmp_path))
    assert finish(train, tmp_path) == 0
    assert victim.read_bytes() == whole


def test_a_write_protected_leftover_is_cleaned_up():
    # not in pytest's own folder, which only root can enter
    with tempfile.TemporaryDirectory() as made:
        root, runs = Path(made), Path(made) / "runs"
        fabricate_shard(runs, TINY_MNIST, count=8)
        publish(runs, root / "zoo")
        shutil.copytree(root / "zoo", root / ".zoo.part-1")
        for path in (root / ".zoo.part-1" / "mnist", root / ".zoo.part-1"):
            path.chmod(0o555)
        assert finish(publish_as_somebody, root) == 0
        assert sorted(path.name for path in root.iterdir()) == ["runs", "zoo"]


def publish_as_somebody(folder: Path) -> None:
    """In a process that is not root's: file modes do not stop root."""
    if os.getuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    publish(folder / "runs", folder / "zoo")
