"""A file kept open: it can be read and mapped again after another file has taken its name."""

import mmap
import os
import weakref
from pathlib import Path

from zoo.storage.bounded import open_regular, read_bounded_handle


class HeldFile:
    """One regular file; where its ``size`` is known, a file of any other is a ValueError."""

    def __init__(self, path: Path, size: int | None = None) -> None:
        self.path = path
        self.handle = open_regular(path)
        weakref.finalize(self, os.close, self.handle)
        if size not in (None, self.size):
            raise ValueError(f"{path} is damaged: {self.size:,} bytes, its manifest says {size:,}")

    @property
    def size(self) -> int:
        return os.fstat(self.handle).st_size

    @property
    def alias(self) -> str:
        """Another name of this very file, for libraries that want a path."""
        return f"/dev/fd/{self.handle}"

    def read(self, limit: int) -> bytes:
        """The whole content, of at most ``limit`` bytes."""
        return read_bounded_handle(self.handle, limit, self.path)

    def map(self) -> mmap.mmap:
        """The file as private copy-on-write memory.

        Writable, because torch takes no read-only memory without a warning; private, so that nothing reaches the file.
        """
        if self.size == 0:
            raise ValueError(f"{self.path} is empty")
        return mmap.mmap(self.handle, 0, access=mmap.ACCESS_COPY)
