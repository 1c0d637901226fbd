"""Replacing a zoo deletes what is part of the zoo and nothing else."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.fabricated import TINY_MNIST, fabricate_shard, folder_contents, publish
from zoo.join import _join
from zoo.storage import swap
from zoo.storage.atomic import write_atomically
from zoo.verify import _verify


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=8)
    return tmp_path / "runs"


@pytest.fixture
def old(shards: Path, tmp_path: Path) -> Path:
    """An old zoo to replace."""
    publish(shards, tmp_path / "zoo")
    fabricate_shard(shards, TINY_MNIST, shard=1, count=8)
    return tmp_path / "zoo"


def test_a_file_that_cannot_take_its_name_is_named_by_it(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(IsADirectoryError) as error:
        write_atomically(tmp_path / "taken", b"")
    assert str(error.value).endswith(f"Is a directory: '{tmp_path / 'taken'}'")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_zoo_that_is_a_git_clone_keeps_its_history(shards, old, tmp_path):
    subprocess.run(["git", "init", "--quiet", str(old)], check=True)
    before = folder_contents(old)
    for replace in (lambda: publish(shards, old), lambda: _join([old], old)):
        with pytest.raises(ValueError, match=r"\.git is not part of the zoo and would be lost: move it away first"):
            replace()
        assert folder_contents(old) == before


@pytest.mark.parametrize("name", [".hidden", "mnist/.hidden", ".cache/notes", "mnist/new/notes"])
def test_a_hidden_file_counts(shards, old, name):
    (old / name).parent.mkdir(parents=True, exist_ok=True)
    (old / name).write_text("mine")
    with pytest.raises(ValueError, match="is not part of the zoo and would be lost"):
        publish(shards, old)
    assert (old / name).read_text() == "mine"


def test_an_empty_folder_and_a_link_count(shards, old, tmp_path):
    (old / "drafts").mkdir()
    with pytest.raises(ValueError, match="drafts is not part of the zoo"):
        publish(shards, old)
    (old / "drafts").rmdir()
    (old / "mnist").rename(tmp_path / "elsewhere")
    (old / "mnist").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="mnist is not part of the zoo"):
        publish(shards, old)
    assert len(list((tmp_path / "elsewhere").iterdir())) > 3


def test_a_file_put_there_while_publishing_is_found_before_the_exchange(shards, old, tmp_path):
    before = folder_contents(old)
    with pytest.raises(ValueError, match=r"late\.txt is not part of the zoo"):
        publish(shards, old, advance=lambda rows: (old / "late.txt").write_text("mine"))
    assert folder_contents(old) == before | {"late.txt": b"mine"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "zoo"]


def test_a_file_put_into_an_empty_target_while_publishing_is_found(shards, tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(ValueError, match=r"late\.txt is not part of the zoo"):
        publish(shards, tmp_path / "out", advance=lambda rows: (tmp_path / "out" / "late.txt").write_text("mine"))
    assert folder_contents(tmp_path / "out") == {"late.txt": b"mine"}


@pytest.mark.parametrize("atomic", [True, False], ids=["exchange", "two renames"])
def test_a_file_put_there_in_the_last_moment_is_kept_beside_the_new_zoo(shards, old, tmp_path, monkeypatch, atomic):
    before, exchange = folder_contents(old), swap._exchange

    def late(a: Path, b: Path) -> bool:
        (b / "mnist" / "late.txt").write_text("mine")
        return atomic and exchange(a, b)

    monkeypatch.setattr(swap, "_exchange", late)
    with pytest.warns(UserWarning, match=r"the old zoo is kept in .*zoo\.kept-1"):
        publish(shards, old)
    assert _verify(old) == []
    assert folder_contents(old) != before
    assert folder_contents(tmp_path / "zoo.kept-1") == before | {"mnist/late.txt": b"mine"}
    monkeypatch.undo()
    publish(shards, old)
    assert (tmp_path / "zoo.kept-1").exists()


def test_leftovers_of_a_killed_publish_are_inspected_before_they_are_deleted(shards, old, tmp_path):
    """Killed after the exchange, the old zoo has the name of an unfinished one."""
    shutil.copytree(old, tmp_path / ".zoo.part-1")
    shutil.copytree(old, tmp_path / ".zoo.part-2")
    (tmp_path / ".zoo.part-2" / "late.txt").write_text("mine")
    with pytest.warns(UserWarning, match="is kept in"):
        publish(shards, old)
    assert (tmp_path / "zoo.kept-1" / "late.txt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "zoo", "zoo.kept-1"]


@pytest.mark.parametrize("folder", [".", "mnist"])
def test_a_write_protected_zoo_is_refused_at_the_start_and_blocks_nothing(shards, old, tmp_path, folder):
    before = folder_contents(old)
    (old / folder).chmod(0o555)
    written = []
    with pytest.raises(ValueError, match="is write-protected"):
        publish(shards, old, advance=written.append)
    assert not written
    assert folder_contents(old) == before
    (old / folder).chmod(0o755)
    publish(shards, old)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "zoo"]


def test_the_umask_is_respected(shards, tmp_path):
    before = os.umask(0o027)
    try:
        publish(shards, tmp_path / "out")
    finally:
        os.umask(before)
    modes = {path.is_dir(): path.stat().st_mode & 0o777 for path in (tmp_path / "out").rglob("*")}
    assert modes == {True: 0o750, False: 0o640}
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o750
