"""A process that ends by SIGKILL at a chosen moment of its writing: in the middle of a write, at a flush, at a rename.

Random moments rarely fall on the few microseconds that matter; these are aimed at them.
"""

import io
import os
import re
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zoo.storage import swap

PHASES = {
    "continued shard": re.compile(r"/\.shard-\d+\.part-"),
    "snapshot": re.compile(r"/\.?state-[^/]*$"),
    "shard write": re.compile(r"/\.?(checkpoints|runs|timing|manifest)[^/]*$"),
    "publish": re.compile(r"/\.zoo\.part-"),
    "submission": re.compile(r"/\.guess\.part-"),
    "predictor": re.compile(r"/\.?fitted\.(safetensors|toml)[^/]*$"),
}


@dataclass
class KillPoint:
    """Counts the moments of each phase, and kills this process at one of them, before or after it is done."""

    phase: str
    moment: int | None  # None: only count
    after: bool = False
    counts: Counter[str] = field(default_factory=Counter)

    def due(self, path: str) -> bool:
        for phase, pattern in PHASES.items():
            if pattern.search(path):
                self.counts[phase] += 1
                return phase == self.phase and self.counts[phase] == self.moment
        return False

    def around(self, path: str, act: Callable[[], Any]) -> Any:
        due = self.due(path)
        if due and not self.after:
            die()
        result = act()
        if due:
            die()
        return result


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def install(kill_point: KillPoint) -> None:
    """Patches the system calls that write, so that this process dies at the kill point."""
    fsync, replace, fdopen, exchange = os.fsync, os.replace, os.fdopen, swap._exchange

    class Half(io.BufferedWriter):
        """Writes the first half of the fatal bytes."""

        def write(self, data: Any, /) -> int:
            if kill_point.due(path_of(self.fileno())):
                super().write(memoryview(data).cast("B")[: len(memoryview(data).cast("B")) // 2])
                self.flush()
                die()
            return super().write(data)

    def open_half(handle: int, mode: str = "r", *rest: Any, **options: Any) -> Any:
        return Half(io.FileIO(handle, "wb")) if mode == "wb" else fdopen(handle, mode, *rest, **options)

    os.fdopen = open_half
    os.fsync = lambda fd: kill_point.around(path_of(fd), lambda: fsync(fd))
    os.replace = lambda a, b, **rest: kill_point.around(str(a), lambda: replace(a, b, **rest))
    swap._exchange = lambda a, b: kill_point.around(str(a), lambda: exchange(a, b))


def path_of(handle: Any) -> str:
    return os.readlink(f"/proc/self/fd/{handle}")


def run_to_kill_point(
    work: Callable[..., None], arguments: tuple[Any, ...], kill_point: KillPoint, counted: Path | None = None
) -> None:
    """A workload that is killed on its way; where it survives, the moments of each phase are written to ``counted``."""
    install(kill_point)
    work(*arguments)
    if counted is not None:
        counted.write_text("\n".join(f"{phase}\t{count}" for phase, count in kill_point.counts.items()))
