"""Files whose size is looked at before they are read: a sparse file, a pipe or a device costs nothing."""

import os
import stat
from pathlib import Path

MOST_DEFLATION = 1032
"""How many times its own size deflated data, in gzip or zip, can unpack to."""


def open_regular(path: Path) -> int:
    """A handle of a file for reading; a folder, a pipe or a device is a ValueError, and is not waited for."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError(f"{path} is not a file")
    return handle


def refuse_larger(path: Path, limit: int) -> None:
    """A ValueError for a file of more than ``limit`` bytes, before a library reads or maps it."""
    handle = open_regular(path)
    try:
        check_size(handle, limit, path)
    finally:
        os.close(handle)


def check_size(handle: int, limit: int, path: Path) -> None:
    if (size := os.fstat(handle).st_size) > limit:
        raise ValueError(f"{path} is damaged: {size:,} bytes, at most {limit:,} are read")


def read_bounded(path: Path, limit: int) -> bytes:
    """The content of a file of at most ``limit`` bytes; a larger one is a ValueError, and is not read."""
    with os.fdopen(open_regular(path), "rb") as file:
        return read_bounded_handle(file.fileno(), limit, path)


def read_bounded_handle(handle: int, limit: int, path: Path) -> bytes:
    """The same of a file that is open already, from its beginning."""
    check_size(handle, limit, path)
    parts, place = [], 0
    while place <= limit and (part := os.pread(handle, limit + 1 - place, place)):
        parts.append(part)
        place += len(part)
    if place > limit:
        raise ValueError(f"{path} is damaged: more than {limit:,} bytes, at most {limit:,} are read")
    return b"".join(parts)
