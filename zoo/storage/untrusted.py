"""Files from anywhere: their size is checked before they are read, so a sparse file, a pipe or a device costs nothing.

Whatever is wrong with a file is a ValueError that names it.
"""

import json
import math
import mmap
import os
import stat
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MOST_DEFLATION = 1032
"""How many times its own size deflated data, in gzip or zip, can unpack to."""
_MAX_JSON_BYTES = 1 << 20
"""Python's objects may take thirty times the text. The files read here have some kilobytes."""


class HeldFile:
    """One regular file, kept open: it can be read and mapped again after another file has taken its name.

    A file that does not have the given ``size`` is a ValueError. So is a folder, a pipe or a device, which is not
    waited for.
    """

    def __init__(self, path: Path, size: int | None = None) -> None:
        self.path = path
        self.handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self.close = weakref.finalize(self, os.close, self.handle)
        if not stat.S_ISREG(os.fstat(self.handle).st_mode):
            self.close()
            raise ValueError(f"{path} is not a file")
        if size not in (None, self.size):
            raise ValueError(f"{path} is damaged: {self.size:,} bytes, its manifest says {size:,}")

    @property
    def size(self) -> int:
        return os.fstat(self.handle).st_size

    @property
    def alias(self) -> str:
        """Another name of this very file, for libraries that want a path."""
        return f"/dev/fd/{self.handle}"

    def refuse_larger(self, limit: int) -> None:
        """Raises a ValueError for a file of more than ``limit`` bytes, before a library reads or maps it."""
        if self.size > limit:
            raise ValueError(f"{self.path} is damaged: {self.size:,} bytes, at most {limit:,} are read")

    def read(self, limit: int) -> bytes:
        """The whole content, of at most ``limit`` bytes; a larger file is a ValueError, and is not read."""
        self.refuse_larger(limit)
        parts, position = [], 0
        while position <= limit and (part := os.pread(self.handle, limit + 1 - position, position)):
            parts.append(part)
            position += len(part)
        if position > limit:
            raise ValueError(f"{self.path} is damaged: more than {limit:,} bytes, at most {limit:,} are read")
        return b"".join(parts)

    def map(self) -> mmap.mmap:
        """The file as private copy-on-write memory.

        Writable, because torch takes no read-only memory without a warning; private, so that nothing reaches the file.
        """
        if self.size == 0:
            raise ValueError(f"{self.path} is empty")
        return mmap.mmap(self.handle, 0, access=mmap.ACCESS_COPY)


def read_bounded(path: Path, limit: int) -> bytes:
    """The content of a file of at most ``limit`` bytes; a larger one is a ValueError, and is not read."""
    return HeldFile(path).read(limit)


@contextmanager
def faults_named(what: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turns errors of these kinds, and ValueErrors, into a ValueError whose message begins with ``what``."""
    try:
        yield
    except (ValueError, *kinds) as error:
        raise ValueError(f"{what}: {error}") from error


def read_json(path: Path) -> Any:
    """The content of a small JSON file; a large one is refused unread."""
    return parse_json(read_bounded(path, _MAX_JSON_BYTES), str(path))


def parse_json(data: bytes, where: str) -> Any:
    """The value in these bytes. Stricter than Python's own: no name twice in an object, no NaN, no infinity."""
    try:
        return json.loads(data.decode(), object_pairs_hook=_unique, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is damaged: {type(error).__name__}: {error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"{name[:80]!r} is there twice")
        values[name] = value
    return values


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:40]} is not a finite number")
    return number
