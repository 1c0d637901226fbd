"""Ends what is left of a Ray of our own after its driver was killed.

Ray's own processes notice the death of their parent, but its agents then try for a minute to report it to a server that
is dead, too. The guardian is a process that reads a pipe whose other end only the driver holds: when that closes
without a word, the processes it was told about are killed, unless they have ended in the meantime.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE_SECONDS = 5.0
"""What Ray's processes get to end by themselves."""
FAREWELL = "all ended\n"
Process = tuple[int, int]
"""A process's number, and when it was started: numbers are used again."""


@contextmanager
def guarded_children() -> Iterator[None]:
    """The processes below this one end soon after it, however it ends. Without ``/proc`` it does nothing."""
    children = descendants(os.getpid())
    if not children:
        yield
        return
    command = [sys.executable, "-m", __name__, *(f"{pid}:{start}" for pid, start in children)]
    # a session of its own: a control-C in the terminal is for the driver
    guardian = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield
    finally:
        guardian.communicate(FAREWELL)


def descendants(pid: int) -> list[Process]:
    """The processes below a process."""
    found = []
    for child in children_of(pid):
        if (start := start_of(child)) is not None:
            found.append((child, start))
        found += descendants(child)
    return found


def children_of(pid: int) -> list[int]:
    try:
        texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    return [int(number) for text in texts for number in text.split()]


def start_of(pid: int) -> int | None:
    """When a process was started, in ticks since the machine was; None where there is none. See proc(5)."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def main() -> None:
    processes = [tuple(map(int, word.split(":"))) for word in sys.argv[1:]]
    if sys.stdin.read() == FAREWELL:
        return
    time.sleep(PATIENCE_SECONDS)
    for pid, start in processes:
        if start_of(pid) == start:
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
