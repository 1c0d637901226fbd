"""Files that are either the old one or the new one, whole, whatever happens in between; and locks."""

import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_UNFINISHED = ".part"
_TEMPORARY = re.compile(rf"\.(?P<name>.+)\.\w+\{_UNFINISHED}")


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to; it takes the name ``path`` only when the ``with`` ends without an exception.

    The bytes go to a temporary name in the same folder, are flushed to the disk, and only then renamed over ``path``.
    The temporary file is locked for as long as its writer lives, so that leftovers of killed ones can be recognized.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_UNFINISHED}")
    handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)  # less the umask
    try:
        with os.fdopen(handle, "wb") as file:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_SH)
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)  # before the lock goes
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        # a full disk is noticed in the middle of a write, where the system's error names no file; where it names the
        # temporary file, the message should name the real one
        unnamed = (None, temporary, str(temporary))
        if isinstance(error, OSError) and error.errno is not None and error.filename in unnamed:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    flush_folder(path.parent)


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file whole, or not at all."""
    with atomic_file(path) as file:
        file.write(data)


def remove_unfinished(folder: Path, names: str = ".+") -> None:
    """Deletes half-written files of killed processes whose names match the regular expression ``names``.

    Files that a living process writes are left alone.
    """
    for path in folder.glob(f".*{_UNFINISHED}"):
        parts = _TEMPORARY.fullmatch(path.name)
        if parts and re.fullmatch(names, parts["name"]) and path.is_file() and not path.is_symlink():
            with suppress(OSError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)


def flush_folder(folder: Path) -> None:
    """Makes renames inside a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
