"""``manifest.json``: what a folder holds, file by file, written last, so that a folder without one is not finished.

It also carries a hash of itself: ``sha256`` is the SHA-256 of the file's own bytes with 64 zeros in that hash's place.
Manifests of the first release have none and are read all the same. An edition of a published zoo is one manifest:
``read_one_edition`` reads all of a zoo from one edition, even when another is published meanwhile.
"""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from zoo.checked import CountOrZero, Sha256, checked, shown
from zoo.format.schema import SCHEMA_VERSION
from zoo.storage.atomic import write_atomically
from zoo.storage.untrusted import parse_json, read_bounded
from zoo.version import VERSION

MANIFEST_FILE = "manifest.json"
MAX_MANIFEST_BYTES = 4 << 20
"""The manifest of the paper's whole grid has 100 kB; Python's objects may take thirty times the text."""
_OWN_HASH, _ZEROS = "sha256", "0" * 64
_ATTEMPTS = 5
_T = TypeVar("_T")


@dataclass(frozen=True)
class FileEntry:
    """One file: its size, its SHA-256, and for tables its rows."""

    bytes: CountOrZero
    sha256: Sha256
    rows: CountOrZero | None = None

    @classmethod
    def of(cls, path: Path, rows: int | None = None) -> "FileEntry":
        """Measures a file that is on disk."""
        with path.open("rb") as file:
            return cls(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest(), rows)


@dataclass(frozen=True)
class Manifest:
    """The files of a folder by relative name, and how they were made; ``sha256`` is set when it was read."""

    files: dict[str, FileEntry]
    details: dict[str, Any]
    schema_version: int = SCHEMA_VERSION
    code_version: str = VERSION
    sha256: Sha256 | None = field(default=None, compare=False)

    def write(self, folder: Path) -> None:
        """Writes the manifest, with a hash of itself; call it after every file it names is written."""
        text = json.dumps(asdict(self) | {_OWN_HASH: _ZEROS}, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        write_atomically(folder / MANIFEST_FILE, _with_last(text, _ZEROS, _sha256_of(text)).encode())

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Reads and validates; whatever is wrong with it is a ValueError that names the file."""
        return cls.parse(_read_manifest(folder), str(folder / MANIFEST_FILE))

    @classmethod
    def parse(cls, text: bytes, path: str) -> "Manifest":
        """The manifest in these bytes; ``path`` is where they come from, for the messages."""
        if len(text) > MAX_MANIFEST_BYTES:
            raise ValueError(f"{path} is damaged: more than {MAX_MANIFEST_BYTES:,} bytes")
        damaged = f"{path} is damaged: "
        raw = checked(parse_json(text, path), dict[str, Any], damaged)
        version = checked(raw.get("schema_version"), int, f"{damaged}schema_version ")
        if version != SCHEMA_VERSION:
            raise ValueError(f"{path} has schema version {version}, this code reads {SCHEMA_VERSION}")
        files = {}
        for name, entry in checked(raw.get("files"), dict[str, Any], f"{damaged}files ").items():
            if not _is_inside(name):
                raise ValueError(f"{path} names a file outside its folder: {shown(name)}")
            files[name] = checked(entry, FileEntry, f"{damaged}{shown(name)}: ")
        manifest = checked({"code_version": None} | raw | {"files": files}, cls, damaged)
        own = manifest.sha256
        if _OWN_HASH in raw and (own is None or _sha256_of(_with_last(text.decode(), own, _ZEROS)) != own):
            raise ValueError(f"{damaged}its own SHA-256 is not that of its content")
        return manifest

    def check_size(self, folder: Path, name: str) -> None:
        """Raises a ValueError that names the file unless it is there and has the recorded size."""
        path, entry = folder / name, self.files[name]
        if not path.is_file():
            raise ValueError(f"{path} is missing, though {MANIFEST_FILE} lists it")
        if (size := path.stat().st_size) != entry.bytes:
            raise ValueError(f"{path} is damaged: {size:,} bytes, {MANIFEST_FILE} says {entry.bytes:,}")

    def check_file(self, folder: Path, name: str) -> None:
        """Raises a ValueError that names the file unless its size and hash are the recorded ones."""
        self.check_size(folder, name)
        if FileEntry.of(folder / name).sha256 != self.files[name].sha256:
            raise ValueError(f"{folder / name} is damaged: its SHA-256 is not the one in {MANIFEST_FILE}")


def _read_manifest(folder: Path) -> bytes:
    """The bytes of a folder's manifest, which are not read where they are too many."""
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: {folder} is not a finished shard or zoo")
    return read_bounded(path, MAX_MANIFEST_BYTES)


def _is_inside(name: str) -> bool:
    """Whether a name, joined to a folder, is a file below that folder and can be written down.

    Symbolic links are followed, because the hub's cache is made of them: a folder's owner decides where its names lead.
    """
    pure = PurePosixPath(name)
    clean = name == pure.as_posix() and name.isprintable() and "\\" not in name
    return clean and not pure.is_absolute() and pure.parts != () and ".." not in pure.parts


def _sha256_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _with_last(text: str, old: str, new: str) -> str:
    """The text with the last ``old`` in it replaced; a manifest's own hash is the last thing in it."""
    before, _, after = text.rpartition(old)
    return f"{before}{new}{after}"


def edition_of(folder: Path) -> str:
    """The hash of the manifest, which holds the hash of everything else: two publications differ in it."""
    return hashlib.sha256(_read_manifest(folder)).hexdigest()


def read_one_edition(folder: Path, read: Callable[[str], _T], changed: Callable[[], None] = lambda: None) -> _T:
    """Returns ``read(edition)`` once the folder is the same one, with the same manifest, before and after the call.

    Publishing puts a new folder in the place of the old one, so all files that ``read`` opened by name then belong to
    one edition. Otherwise the outcome is dropped, ``changed`` is called, and ``read`` is called again.
    """
    for _ in range(_ATTEMPTS):
        # held open, so that no later folder can get the same number from the file system
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            edition = edition_of(folder)
            try:
                result = read(edition)
            except (OSError, ValueError):
                if _is_same(folder, held, edition):
                    raise
            else:
                if _is_same(folder, held, edition):
                    return result
        finally:
            os.close(held)
        changed()
    raise ValueError(f"{folder} changed while reading, {_ATTEMPTS} times: wait for publishing to end")


def _is_same(folder: Path, held: int, edition: str) -> bool:
    """Whether the name still stands for the folder that is held open, and its manifest is still the one read."""
    try:
        return os.path.samestat(os.fstat(held), folder.stat()) and edition_of(folder) == edition
    except (OSError, ValueError):
        return False
