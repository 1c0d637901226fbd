"""Small disks of their own, for tests that fill one up or make it read-only. Needs root and mount(8)."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class NoMounts(Exception):
    """This process may not mount; the message has the reason."""


class Disk:
    """A mounted tmpfs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def remount(self, options: str) -> None:
        run("mount", "-o", f"remount,{options}", str(self.folder))


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[Disk]:
    """A disk of this size, mounted at ``folder``."""
    folder.mkdir()
    run("mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder))
    try:
        yield Disk(folder)
    finally:
        run("umount", str(folder))


def run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoMounts(f"{command[0]}: {getattr(error, 'stderr', None) or error}") from error
