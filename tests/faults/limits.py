"""The cost allowed for a hostile file: two seconds and 300 MB, measured in a process of its own.

outcome = within_limits(verify.main, [str(folder)])         a command: its ``main`` and its words
outcome = within_limits(read_shard, folder)                 or any function that a process can be handed
assert outcome.code == 2 and "error: " in outcome.text
"""

import contextlib
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.faults.processes import FORKS

SECONDS, MEGABYTES = 2.0, 300.0
ATTEMPTS = 3
PATIENCE = 30.0
"""Seconds after which a process that should have ended long ago is killed."""


@dataclass(frozen=True)
class Outcome:
    """How the work ended (0 for success, 1 with a traceback, else a command's exit code), its output, its cost."""

    code: int
    text: str
    seconds: float
    megabytes: float


def within_limits(
    work: Callable[..., object], *arguments: object, seconds: float = SECONDS, megabytes: float = MEGABYTES
) -> Outcome:
    """Does the work in a process of its own, and fails where it takes more; the peak is counted above the start's.

    A slow outcome is measured again, at most three times: the machine may have been busy with something else.
    """
    outcome = measure(work, *arguments)
    for _ in range(ATTEMPTS - 1):
        if seconds <= outcome.seconds < PATIENCE:
            outcome = measure(work, *arguments)
    assert outcome.megabytes < megabytes, f"{outcome.megabytes:,.0f} MB, at most {megabytes:,.0f}: {outcome.text}"
    assert outcome.seconds < seconds, f"{outcome.seconds:.1f} s, at most {seconds:g}: {outcome.text}"
    return outcome


def measure(work: Callable[..., object], *arguments: object) -> Outcome:
    """The work's end, its output, its seconds without imports, and the peak of its memory above what it began with."""
    with tempfile.TemporaryDirectory() as folder:
        log, figures = Path(folder) / "log", Path(folder) / "figures"
        process = FORKS.Process(target=watched, args=(work, arguments, log, figures))
        process.start()
        process.join(PATIENCE)
        if process.exitcode is None:
            process.kill()
            process.join()
            return Outcome(-9, log.read_text(errors="replace"), PATIENCE, 0.0)
        text = log.read_text(errors="replace")
        assert figures.exists(), f"the process ended with {process.exitcode} in the middle of its work: {text}"
        seconds, megabytes = map(float, figures.read_text().split())
        return Outcome(process.exitcode, text, seconds, megabytes)


def watched(work: Callable[..., object], arguments: tuple[object, ...], log: Path, figures: Path) -> None:
    """Runs in the new process: the work, its output to ``log``, and then its cost to ``figures``."""
    code = 0
    with log.open("w") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak, see proc(5)
        before, start = memory("VmRSS"), time.monotonic() - queued()
        try:
            work(*arguments)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
            code = 1
        seconds, peak = time.monotonic() - queued() - start, memory("VmHWM")
    figures.write_text(f"{seconds} {max(0.0, peak - before)}")
    os._exit(code)


def queued() -> float:
    """Seconds that this thread was ready to run while others had the processor: those of a busy machine."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def memory(name: str) -> float:
    """A line of this process's status, in MB."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 1e3
