"""Feeds a reader hostile files inside a process with little memory to take and a clock on each file."""

import contextlib
import os
import random
import resource
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from tests.faults.hostile import Change
from tests.faults.readers import BY_NAME, RIGHT, Reader

MEMORY = 1 << 30
"""Memory that a reader may add to the process; the files have a few kilobytes."""
SECONDS = 20
SPARSE_EVERY, SPARSE_BYTES = 23, 6 << 30
"""One in this many files is as large as a disk, and almost all of it is a hole."""


def fuzz(name: str, first: int, count: int) -> None:
    """Reads ``count`` spoiled files, each a function of its number; any way out but the right ones ends the process.

    Prints the number it is at before a file is read, so that a crash in native code can be traced and repeated.
    """
    reader = BY_NAME[name]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        reader.make(folder)
        sound = (folder / reader.file).read_bytes()
        reader.read(folder)
        with limits():
            refused = sum(read_one(reader, folder, sound, number) for number in range(first, first + count))
    print(f"refused {refused}", flush=True)


def read_one(reader: Reader, folder: Path, sound: bytes, number: int) -> bool:
    """Whether the file of this number was refused."""
    source = random.Random(f"{reader.name} {number}")
    changes = [Change.drawn(source) for _ in range(source.choice((1, 1, 1, 2, 4, 8)))]
    (folder / reader.file).write_bytes(reader.spoils[number % len(reader.spoils)](sound, changes))
    if number % SPARSE_EVERY == 0:
        os.truncate(folder / reader.file, SPARSE_BYTES)
    print(f"at {number}", flush=True)
    signal.alarm(SECONDS)
    try:
        reader.read(folder)
    except RIGHT:
        return True
    finally:
        signal.alarm(0)
    return False


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """A little more memory than now, and an alarm that ends the process."""
    signal.signal(signal.SIGALRM, too_slow)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def too_slow(*_: object) -> NoReturn:
    raise AssertionError(f"a file of a few kilobytes took more than {SECONDS} s")


def read_hostile(name: str, data: bytes) -> None:
    """Writes ``data`` in place of the reader's file, reads it with little memory, and prints the error."""
    reader = BY_NAME[name]
    with tempfile.TemporaryDirectory() as folder:
        reader.make(Path(folder))
        (Path(folder) / reader.file).write_bytes(data)
        with limits():
            try:
                reader.read(Path(folder))
            except RIGHT as error:
                print(" ".join(str(error).split()))


def read_with_an_eye_on_pickles(name: str) -> None:
    """Reads sound files; ends with an error where anything below, in whatever package, unpickles or compiles code."""
    reader = BY_NAME[name]
    with tempfile.TemporaryDirectory() as folder:
        reader.make(Path(folder))
        reader.read(Path(folder))  # imports, which do compile and execute, are over after this
        seen: list[str] = []
        watching = True

        def watch(event: str, arguments: tuple) -> None:
            if watching and event in ("pickle.find_class", "marshal.loads", "exec", "os.system", "subprocess.Popen"):
                seen.append(f"{event} {arguments}"[:200])

        sys.addaudithook(watch)
        reader.read(Path(folder))
        watching = False
    assert not seen, seen
