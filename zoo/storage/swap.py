"""Replaces a folder so that at every moment its name stands for the whole old one or the whole new one.

Only files that are listed as ours are deleted from the old folder. A folder with any other file is not replaced, and a
file that is put there in the last moment is kept beside the new folder.
"""

import ctypes
import errno
import itertools
import os
import secrets
import shutil
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from zoo.storage.atomic import exclusive, flush_folder

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)
_FilesOf = Callable[[Path], Sequence[str] | None]
"""The files of a finished folder by relative name, the one that lists the others last; None for an unfinished folder,
which is ours as a whole."""


@contextmanager
def replacing_folder(target: Path, files_of: _FilesOf, *, wait: bool = False) -> Iterator[Path]:
    """An empty folder to fill; it takes the name ``target`` when the ``with`` ends without an exception.

    The new folder is built beside the old one and is exchanged with it in one system call (Linux's
    ``renameat2(RENAME_EXCHANGE)``), whatever signal or power cut comes; the old one is deleted after that. Where the
    system or the file system has no such call (macOS, NFS, some FUSE mounts) it takes two renames: for that moment
    there is no ``target`` for readers to open, and after a kill in that moment the next call here first brings the old
    one back. One writer at a time: another is refused, or waits if ``wait`` is set; the leftovers of a killed one are
    deleted.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    busy = None if wait else f"another publish into {target.parent} is under way: wait for it to end"
    with exclusive(target.parent, busy=busy):
        recover(target, files_of)
        _check_replaceable(target, files_of)
        new = target.with_name(f"{_unfinished(target)}{secrets.token_hex(4)}")
        new.mkdir()
        try:
            yield new
            for folder in (new, *(path for path in new.rglob("*") if path.is_dir())):
                flush_folder(folder)
            _check_replaceable(target, files_of)
            if not target.exists():
                new.rename(target)
            elif not _exchange(new, target):
                target.rename(_previous(target))
                new.rename(target)
                _previous(target).rename(new)
            flush_folder(target.parent)
        finally:
            if new.exists():
                _discard(new, target, files_of)


def _check_replaceable(target: Path, files_of: _FilesOf) -> None:
    """Refuses to replace a folder with anything in it that is not ours, and one that is write-protected."""
    if not target.exists():
        return
    for folder in (target, *_folders_in(target)):
        # root may write anywhere, but a folder without write permission was protected on purpose
        if not folder.stat().st_mode & 0o222 or not os.access(folder, os.W_OK | os.X_OK):
            raise ValueError(f"{folder} is write-protected, so {target} is not replaced: chmod it or move it away")
    for name in unlisted_entries(target, files_of(target) or ()):
        raise ValueError(f"{target / name} is not part of the zoo and would be lost: move it away first")


def _folders_in(folder: Path) -> list[Path]:
    """All folders below a folder, inner ones first; links are not followed."""
    return [Path(root) for root, _, _ in os.walk(folder, topdown=False)][:-1]


def _discard(folder: Path, target: Path, files_of: _FilesOf) -> None:
    """Deletes a folder of ours that once was, or should have become, ``target``; files that are not ours are kept."""
    try:
        files = files_of(folder)
    except ValueError:
        files = ()
    with suppress(OSError):
        for inner in (folder, *_folders_in(folder)):
            inner.chmod(inner.stat().st_mode | 0o700)
        if files is None:
            shutil.rmtree(folder)
        elif not any(True for _ in unlisted_entries(folder, files)):
            for name in files[:-1]:
                (folder / name).unlink(missing_ok=True)
            for inner in _folders_in(folder):
                inner.rmdir()
            # the last file lists the others as ours, so it goes when nothing else is left
            if os.listdir(folder) == list(files[-1:]):
                shutil.rmtree(folder)
    if folder.exists():  # it gets a visible name
        names = (target.with_name(f"{target.name}.kept-{number}") for number in itertools.count(1))
        kept = next(name for name in names if not name.exists())
        with suppress(OSError):
            folder.rename(kept)
            why = "it holds a file that is not part of it, or cannot be deleted"
            warnings.warn(f"the old {target.name} is kept in {kept}: {why}", stacklevel=2)


def _exchange(a: Path, b: Path) -> bool:
    """Exchanges two names at once; False where the system cannot."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
    if renameat2 is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE) == 0:
        return True
    if ctypes.get_errno() in _UNSUPPORTED:
        return False
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(b))


def recover(target: Path, files_of: _FilesOf) -> None:
    """Undoes half a replacement and deletes the leftovers of killed writers; call it where no other writer can be."""
    if _previous(target).exists():
        if target.exists():
            _discard(_previous(target), target, files_of)
        else:
            _previous(target).rename(target)
    for leftover in list(target.parent.iterdir()):
        if leftover.name.startswith(_unfinished(target)):
            _discard(leftover, target, files_of)


def _unfinished(target: Path) -> str:
    """How the names of new folders begin while they are built."""
    return f".{target.name}.part-"


def _previous(target: Path) -> Path:
    """The path of the old folder between two renames."""
    return target.with_name(f".{target.name}.previous")


def unlisted_entries(folder: Path, files: Collection[str]) -> Iterator[str]:
    """Every entry but these files and the folders they lie in, by relative name; hidden ones are entries like others.

    A folder that has none of the files is named as a whole. So is a link to a folder, even where a folder
    with files should be: its content lies elsewhere.
    """
    known, folders = set(files), {parent.as_posix() for name in files for parent in PurePosixPath(name).parents}
    for root, directories, names in os.walk(folder):
        inner = Path(root)
        for name in sorted(directories):
            entry = (inner / name).relative_to(folder).as_posix()
            if entry not in folders or (inner / name).is_symlink():
                directories.remove(name)
                yield entry
        entries = ((inner / name).relative_to(folder).as_posix() for name in sorted(names))
        yield from (entry for entry in entries if entry not in known)
