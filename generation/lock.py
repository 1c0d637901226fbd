"""Keeps two processes off one shard."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Holds the lock file ``path``; fails at once where another process holds it.

    The lock belongs to the open file, so the operating system lets go of it however the process ends.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"another process is at work on this shard (it holds {path})") from error
        yield
    finally:
        os.close(handle)
