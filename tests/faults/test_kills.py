"""SIGKILL at any moment costs nothing but the time since the last snapshot."""

import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.killing import PHASES, Killer
from tests.faults.processes import finish, start
from tests.faults.workloads import contents, shard_of, train

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
