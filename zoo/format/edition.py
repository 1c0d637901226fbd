"""One edition of a published zoo from the first byte to the last, whatever is published meanwhile."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from zoo.format.manifest import read_manifest

T = TypeVar("T")
ATTEMPTS = 5


def edition_of(folder: Path) -> str:
    """What tells two publications apart: the hash of the manifest, which holds the hash of everything else."""
    return hashlib.sha256(read_manifest(folder)).hexdigest()


def read_one_edition(folder: Path, read: Callable[[str], T], changed: Callable[[], None] = lambda: None) -> T:
    """What ``read(edition)`` returns when the folder is the same one, with the same manifest, before and after it.

    Publishing puts a new folder in the place of the old one, so all files that ``read`` opened by name then belong to
    one edition. Otherwise ``changed`` is told, what ``read`` returned or raised does not count, and it is called again.
    """
    for _ in range(ATTEMPTS):
        # held open, so that no later folder can get the same number from the file system
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            edition = edition_of(folder)
            try:
                result = read(edition)
            except (OSError, ValueError):
                if is_same(folder, held, edition):
                    raise
            else:
                if is_same(folder, held, edition):
                    return result
        finally:
            os.close(held)
        changed()
    raise ValueError(f"{folder} changed while reading, {ATTEMPTS} times: wait for publishing to end")


def is_same(folder: Path, held: int, edition: str) -> bool:
    """Whether the name still stands for the folder that is held open, and its manifest is still the one read."""
    try:
        return os.path.samestat(os.fstat(held), folder.stat()) and edition_of(folder) == edition
    except (OSError, ValueError):
        return False
