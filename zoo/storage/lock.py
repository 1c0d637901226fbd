"""Locks that keep processes out of each other's way."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Busy(ValueError):
    """Another process holds the lock."""


@contextmanager
def exclusive(path: Path, *, busy: str | None) -> Iterator[None]:
    """Holds ``path``, a folder or else a lock file that is made where there is none.

    Where another process holds it, raises ``Busy`` with the line ``busy``, or waits where that is None. The lock
    belongs to the open file, so the operating system releases it however the process ends.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_CREAT | os.O_RDWR, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if busy is None else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise Busy(busy) from error
        yield
    finally:
        os.close(handle)
