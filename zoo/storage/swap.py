"""Replaces a folder so that at every moment its name stands for the whole old one or the whole new one."""

import ctypes
import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zoo.storage.atomic import flush_folder
from zoo.storage.lock import exclusive

AT_FDCWD, RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h
UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


@contextmanager
def replacing_folder(target: Path) -> Iterator[Path]:
    """An empty folder to fill; it takes the name ``target`` when the block ends without an exception.

    The new folder is built beside the old one and changes places with it in one system call (Linux's
    ``renameat2(RENAME_EXCHANGE)``), whatever signal or power cut comes; the old one is deleted after that. Where the
    system or the file system has no such call it takes two renames: killed between them, ``target`` is missing, and the
    next call here brings the old one back first. One writer at a time; what a killed one left behind is deleted.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(target.parent, busy=f"another publish into {target.parent} is under way: wait for it to end"):
        recover(target)
        new = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.part-"))
        try:
            yield new
            new.chmod(0o755)
            for folder in (new, *(path for path in new.rglob("*") if path.is_dir())):
                flush_folder(folder)
            if not target.exists():
                new.rename(target)
            elif not exchange(new, target):
                target.rename(previous(target))
                new.rename(target)
                previous(target).rename(new)
            flush_folder(target.parent)
        finally:
            shutil.rmtree(new, ignore_errors=True)


def exchange(a: Path, b: Path) -> bool:
    """Two names change places at once; False where that cannot be done."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
    if renameat2 is None:
        return False
    if renameat2(AT_FDCWD, os.fsencode(a), AT_FDCWD, os.fsencode(b), RENAME_EXCHANGE) == 0:
        return True
    if ctypes.get_errno() in UNSUPPORTED:
        return False
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(b))


def recover(target: Path) -> None:
    """Undoes half a replacement and deletes what killed writers left; call it with the lock held."""
    if previous(target).exists():
        if target.exists():
            shutil.rmtree(previous(target))
        else:
            previous(target).rename(target)
    for leftover in target.parent.iterdir():
        if leftover.name.startswith(f".{target.name}.part-"):
            shutil.rmtree(leftover)


def previous(target: Path) -> Path:
    """Where the old folder is for the moment between two renames."""
    return target.with_name(f".{target.name}.previous")
