"""SIGKILL at any moment costs nothing but the time since the last snapshot."""

import os
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.kill_points import KillPoint, run_to_kill_point
from tests.faults.killing import KILLED, PHASES, Killer
from tests.faults.processes import finish, start
from tests.faults.workloads import contents, shard_of, train, train_first, train_language
from tests.generation.small_tasks import write_lines

pytestmark = pytest.mark.long

KILLS_PER_PHASE = 2


@pytest.fixture(scope="module")
def killer(tmp_path_factory: pytest.TempPathFactory) -> Killer:
    return Killer(tmp_path_factory.mktemp("kills"))


@pytest.mark.parametrize("phase", PHASES)
def test_a_kill_leaves_what_the_next_run_completes_to_the_same_bytes(killer: Killer, phase: str) -> None:
    outcomes = Counter(killer.kill(phase).left for _ in range(KILLS_PER_PHASE))
    assert outcomes.total() == KILLS_PER_PHASE


@pytest.mark.parametrize("phase", ["snapshot", "shard write", "publish"])
def test_the_aimed_kills_have_moments_to_hit(killer: Killer, phase: str) -> None:
    assert killer.moments[phase] >= 9


def test_a_second_process_on_one_shard_ends_with_one_line(killer: Killer, tmp_path: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    first = start(train, out)
    deadline = time.monotonic() + 60
    while not list(shard_of(out).glob("state-*")) and time.monotonic() < deadline:
        time.sleep(0.002)
    assert first.pid is not None
    os.kill(first.pid, signal.SIGSTOP)  # asleep, it still holds the lock
    assert finish(train, out, log=log) == 2
    (line,) = log.read_text().splitlines()
    assert line.startswith("error: another process is at work on this shard")
    os.kill(first.pid, signal.SIGCONT)
    first.join()
    assert first.exitcode == 0
    assert contents(shard_of(out)) == killer.whole


@pytest.mark.parametrize("phase", ["continued shard", "snapshot"])
def test_a_kill_leaves_a_shard_that_is_continued_or_the_whole_one(killer: Killer, tmp_path: Path, phase: str) -> None:
    """At every fourth moment of writing, the last one among them: there the new shard is in place."""
    begun, counted = tmp_path / "begun", tmp_path / "counted"
    assert finish(train_first, begun) == 0
    first = contents(shard_of(begun))
    shutil.copytree(begun, tmp_path / "whole")
    assert finish(run_to_kill_point, train, (tmp_path / "whole",), KillPoint("", None), counted) == 0
    assert contents(shard_of(tmp_path / "whole")) == killer.whole
    moments = killer.read_counts(counted)[phase]
    assert moments >= 9
    for moment in range(moments, 0, -4):
        out = tmp_path / f"{moment}"
        shutil.copytree(begun, out)
        kill_point = KillPoint(phase, moment, after=(moments - moment) % 8 == 0)
        assert finish(run_to_kill_point, train, (out,), kill_point) == KILLED
        held = contents(shard_of(out))
        assert {name: held[name] for name in first} in (first, killer.whole)
        assert finish(train, out) == 0
        assert contents(shard_of(out)) == killer.whole
        assert {path.name for path in shard_of(out).parent.iterdir()} == {".shard-00005.lock", "shard-00005"}


def test_a_killed_shard_of_language_models_ends_with_the_same_bytes(tmp_path: Path) -> None:
    """Killed at every third moment of writing a snapshot or the shard."""
    whole, counted = tmp_path / "whole", tmp_path / "counted"
    whole.mkdir()
    write_lines(whole)
    assert finish(run_to_kill_point, train_language, (whole,), KillPoint("", None), counted) == 0
    expected = contents(whole / "lines" / "shard-00000")
    counts = dict(line.split("\t") for line in counted.read_text().splitlines())
    for phase in ("snapshot", "shard write"):
        assert int(counts[phase]) >= 6
        for moment in range(int(counts[phase]), 0, -3):
            out = tmp_path / f"{phase} {moment}"
            out.mkdir()
            write_lines(out)
            kill_point = KillPoint(phase, moment, after=moment % 2 == 0)
            assert finish(run_to_kill_point, train_language, (out,), kill_point) == KILLED
            assert finish(train_language, out) == 0
            assert contents(out / "lines" / "shard-00000") == expected, (phase, moment)


@pytest.mark.parametrize("clock", ["frozen", "leaping"])
def test_jumping_clocks_change_no_byte(killer: Killer, tmp_path: Path, clock: str) -> None:
    assert finish(train, tmp_path, clock) == 0
    assert contents(shard_of(tmp_path)) == killer.whole


def test_snapshots_are_ordered_by_epoch_not_by_the_clock_of_the_disk(killer: Killer, tmp_path: Path) -> None:
    process = start(train, tmp_path)
    while len(list(shard_of(tmp_path).glob("state-*"))) < 2 and process.is_alive():
        time.sleep(0.002)
    process.kill()
    process.join()
    for age, path in enumerate(sorted(shard_of(tmp_path).glob("state-*"))):
        os.utime(path, (2e9 - 1e8 * age, 2e9 - 1e8 * age))
    newest = max(path.name for path in shard_of(tmp_path).glob("state-*"))
    log = tmp_path / "log"
    assert finish(train, tmp_path, log=log) == 0
    assert f"resumed after epoch {int(newest[-17:-12])} of 6" in log.read_text()
    assert contents(shard_of(tmp_path)) == killer.whole
