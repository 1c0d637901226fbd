"""Kills a workload at one moment, runs it again to its end, and compares the bytes with an undisturbed run's."""

import random
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.fabricated import TINY_MNIST, fabricate_shard, publish
from tests.faults.kill_points import KillPoint, run_to_kill_point
from tests.faults.processes import finish, start
from tests.faults.workloads import contents, publish_runs, shard_of, train

PHASES = ("training", "snapshot", "shard write", "publish")
KILLED = -signal.SIGKILL


@dataclass(frozen=True)
class Kill:
    """One kill that was survived: the phase, and the state of the disk right after it."""

    phase: str
    left: str


class Killer:
    """Undisturbed runs to compare with, made once below ``root``; then any number of kills."""

    def __init__(self, root: Path, seed: int = 0) -> None:
        self.root, self.random = root, random.Random(seed)
        counted = root / "counted"
        # the first process waits for the server's imports, so the second one is timed
        assert finish(run_to_kill_point, train, (root / "whole",), KillPoint("", None), counted) == 0
        started = time.monotonic()
        assert finish(train, root / "timed") == 0
        self.seconds = time.monotonic() - started
        self.whole = contents(shard_of(root / "whole"))
        self.moments = self.read_counts(counted)
        for shard, name in enumerate("ab"):
            fabricate_shard(root / name, TINY_MNIST, shard=shard, count=60)
            publish(root / name, root / f"whole-{name}", name="zoo")
        self.zoos = {name: contents(root / f"whole-{name}") for name in "ab"}
        publish(root / "b", root / "zoo")
        assert finish(run_to_kill_point, publish_runs, (root / "a", root / "zoo"), KillPoint("", None), counted) == 0
        self.moments |= self.read_counts(counted)

    def read_counts(self, path: Path) -> dict[str, int]:
        return {phase: int(count) for phase, count in (line.split("\t") for line in path.read_text().splitlines())}

    def kill(self, phase: str) -> Kill:
        """One kill in this phase; raises an AssertionError unless everything is right afterward."""
        return self.kill_publishing() if phase == "publish" else self.kill_training(phase)

    def kill_training(self, phase: str) -> Kill:
        out = self.root / "out"
        while True:
            shutil.rmtree(out, ignore_errors=True)
            if phase == "training":
                process = start(train, out)
                time.sleep(self.random.uniform(0.05, self.seconds))
                process.kill()
                process.join()
                exitcode = process.exitcode
            else:
                exitcode = finish(run_to_kill_point, train, (out,), self.kill_point(phase))
            if exitcode == KILLED and (phase != "training" or shard_of(out).exists()):
                break
        left = describe(shard_of(out))
        assert finish(train, out) == 0
        assert contents(shard_of(out)) == self.whole, f"other bytes after a kill in {phase} ({left})"
        return Kill(phase, left)

    def kill_publishing(self) -> Kill:
        target, before = self.root / "zoo", contents(self.root / "zoo")
        other = "a" if before == self.zoos["b"] else "b"
        assert (
            finish(run_to_kill_point, publish_runs, (self.root / other, target), self.kill_point("publish")) == KILLED
        )
        published = contents(target)
        assert published in self.zoos.values(), "a mixture of two zoos"
        left = "the old zoo" if published == before else "the new zoo"
        assert finish(publish_runs, self.root / other, target) == 0
        assert contents(target) == self.zoos[other]
        assert not list(self.root.glob(".zoo*")), "leftovers of a killed writer"
        return Kill("publish", left)

    def kill_point(self, phase: str) -> KillPoint:
        return KillPoint(phase, self.random.randint(1, self.moments[phase]), after=self.random.random() < 0.5)

    def kills(self, count: int) -> Iterator[Kill]:
        """This many kills, the phases in turn."""
        for number in range(count):
            yield self.kill(PHASES[number % len(PHASES)])


def describe(folder: Path) -> str:
    """The leftovers of a killed process, in words."""
    if (folder / "manifest.json").exists():
        return "a finished shard"
    parts = ["half a file"] if list(folder.glob(".*.part")) else []
    parts += [f"{count} snapshots"] if (count := len(list(folder.glob("state-*")))) else []
    parts += ["checkpoints"] if (folder / "checkpoints.arrow").exists() else []
    return ", ".join(parts) or "nothing"
