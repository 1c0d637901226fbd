"""kill -9 while a zoo is replaced leaves the old one or the new one, whole."""

import itertools
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fabricated import TINY_MNIST, fabricate_shard, folder_contents, publish
from zoo.storage import swap
from zoo.storage.swap import recover, replacing_folder

pytestmark = pytest.mark.long

KILLS = 30
SCRIPT = """
import os, random, signal, sys, time
from pathlib import Path
from tests.fabricated import publish

root, kills = Path(sys.argv[1]), int(sys.argv[2])
generator = random.Random(0)

def publishing(name, out):
    child = os.fork()
    if child == 0:
        publish(root / name, root / out)
        os._exit(0)
    return child

for _ in range(3):
    started = time.monotonic()
    os.waitpid(publishing("b", "timed"), 0)
    duration = time.monotonic() - started
for attempt in range(kills):
    child = publishing("ab"[attempt % 2], "zoo")
    time.sleep(generator.uniform(0, 1.3 * duration))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print(attempt, flush=True)
    sys.stdin.readline()
"""


def test_kill_during_publish_leaves_the_old_or_the_new_zoo(tmp_path):
    for shard, name in enumerate("ab"):
        fabricate_shard(tmp_path / name, TINY_MNIST, shard=shard, count=60)
        publish(tmp_path / name, tmp_path / f"whole-{name}", name="zoo")
    whole = {name: folder_contents(tmp_path / f"whole-{name}") for name in "ab"}
    publish(tmp_path / "b", tmp_path / "zoo")
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), str(KILLS)]
    outcomes = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for _ in child.stdout:
            published = folder_contents(tmp_path / "zoo")
            assert published in whole.values(), "a mixture"
            outcomes.append("a" if published == whole["a"] else "b")
            child.stdin.write("\n")
            child.stdin.flush()
    assert child.returncode == 0
    assert len(outcomes) == KILLS
    # the kills fell before and after the swap, otherwise they would show nothing
    changes = sum(before != after for before, after in itertools.pairwise(outcomes))
    assert 0 < changes < KILLS - 1
    publish(tmp_path / "a", tmp_path / "zoo")
    assert folder_contents(tmp_path / "zoo") == whole["a"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".zoo")], "leftovers of killed writers"


def test_an_exception_leaves_the_old_folder_and_nothing_else(tmp_path):
    fill(tmp_path / "zoo", "old")
    with pytest.raises(FileNotFoundError), replacing_folder(tmp_path / "zoo", its_file) as new:
        shutil.copy(new / "absent", new / "half")
    assert (tmp_path / "zoo" / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["zoo"]


@pytest.mark.parametrize("atomic", [True, False], ids=["exchange", "two renames"])
def test_a_folder_is_replaced_with_and_without_the_system_call(tmp_path, monkeypatch, atomic):
    if not atomic:
        monkeypatch.setattr(swap, "_exchange", lambda a, b: False)
    for text in ("first", "second"):
        with replacing_folder(tmp_path / "zoo", its_file) as new:
            (new / "file").write_text(text)
        assert (tmp_path / "zoo" / "file").read_text() == text
        assert [path.name for path in tmp_path.iterdir()] == ["zoo"]


def test_the_old_folder_comes_back_after_a_kill_between_two_renames(tmp_path):
    fill(tmp_path / "zoo", "old")
    fill(tmp_path / ".zoo.part-1", "new")
    (tmp_path / "zoo").rename(swap._previous(tmp_path / "zoo"))
    recover(tmp_path / "zoo", its_file)
    assert (tmp_path / "zoo" / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["zoo"]


def test_a_second_writer_is_refused(tmp_path):
    with (
        replacing_folder(tmp_path / "zoo", its_file),
        pytest.raises(ValueError, match="under way"),
        replacing_folder(tmp_path / "zoo", its_file),
    ):
        pass


def test_a_second_writer_that_waits_comes_after_the_first(tmp_path):
    def write(text):
        with replacing_folder(tmp_path / "zoo", its_file, wait=True) as new:
            (new / "file").write_text(text)

    with ThreadPoolExecutor() as pool:
        with replacing_folder(tmp_path / "zoo", its_file) as new:
            second = pool.submit(write, "second")
            with pytest.raises(TimeoutError):
                second.result(timeout=0.2)
            (new / "file").write_text("first")
        second.result(timeout=60)
    assert (tmp_path / "zoo" / "file").read_text() == "second"


def its_file(folder):
    return ["file"] if (folder / "file").exists() else None


def fill(folder, text):
    folder.mkdir()
    (folder / "file").write_text(text)
