"""Processes to be killed or to run side by side, forked from a clean server that has imported everything once."""

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
# Jinja needs the codec, and a process that is not root's cannot import it from a Python in root's folder
FORKS.set_forkserver_preload(["tests.faults.workloads", "tests.faults.fuzzing", "datasets", "encodings.unicode_escape"])
SECONDS = 120.0


def start(work: Callable[..., None], *arguments: object, log: Path | None = None) -> BaseProcess:
    """A new process at work; what it prints goes to ``log``, line by line, so that a kill loses none."""
    process = FORKS.Process(target=logged, args=(work, arguments, log))
    process.start()
    return process


def logged(work: Callable[..., None], arguments: tuple[object, ...], log: Path | None) -> None:
    with (log or Path(os.devnull)).open("a", buffering=1) as file:
        sys.stdout = sys.stderr = file
        try:
            work(*arguments)
        except Exception:
            traceback.print_exc()
            file.flush()
            os._exit(1)
        finally:
            sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__


def finish(work: Callable[..., None], *arguments: object, log: Path | None = None) -> int:
    """Runs it to its end and returns its exit code, which is −9 where it was killed."""
    process = start(work, *arguments, log=log)
    process.join(SECONDS)
    if process.exitcode is None:
        process.kill()
        raise TimeoutError(f"{work.__name__} did not end within {SECONDS:.0f} s")
    return process.exitcode
