"""Finished shards at a URL that fsspec can write to: an object store, or a disk behind a protocol.

A shard is trained in a scratch folder on the worker's own disk and uploaded when it is whole: the manifest last, so
that a shard without a sound one is not finished and is uploaded again. Snapshots stay in the scratch folder. A worker
that returns on the same machine resumes from them; one on another machine starts the shard over.
"""

import hashlib
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from generation.word_vectors import ORIGIN_FILE
from zoo.format.manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES, Manifest
from zoo.format.published import RUNS_FILE
from zoo.format.shard import CHECKPOINTS_FILE, TIMING_FILE, Shard, ShardRecord
from zoo.reading.locate import cache_folder
from zoo.storage.atomic import write_atomically
from zoo.tasks.embedding import VECTORS_FILE, VOCABULARY_FILE

_EMBEDDING_FILES = (ORIGIN_FILE, VOCABULARY_FILE, VECTORS_FILE)
"""In the order they are uploaded: the vectors come last, and stand for the whole."""
_PROTOCOLS = (
    *("file", "local", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "tos", "hf"),
    *("hdfs", "webhdfs", "sftp", "ssh", "ftp", "smb", "webdav", "dbfs", "gdrive", "dropbox", "box", "lakefs"),
)
"""Protocols whose files outlive this process and can be written to. ``memory://`` would drop the only copy."""


def scratch_folder(url: str, scratch: Path | None) -> Path:
    """A local folder for this URL alone."""
    return (scratch or cache_folder() / "scratch") / hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:12]


@dataclass(frozen=True)
class RemoteShards:
    """The shards of one config below a URL."""

    url: str
    config_name: str

    @cached_property
    def _root(self) -> tuple[Any, str]:
        import fsspec

        if self.url.partition("://")[0] not in _PROTOCOLS:
            known = ", ".join(_PROTOCOLS)
            raise ValueError(f"--out {self.url} is not a URL that fsspec can write to permanently: use one of {known}")
        with self._errors_named("cannot be opened"):
            return fsspec.url_to_fs(self.url)

    @contextmanager
    def _errors_named(self, failure: str) -> Iterator[None]:
        """Around every call of the store: its own errors, such as botocore's, become an OSError that names the URL.

        That a file is not there stays a FileNotFoundError.
        """
        try:
            yield
        except Exception as error:
            kind = FileNotFoundError if isinstance(error, FileNotFoundError) else OSError
            raise kind(f"--out {self.url} {failure}: {type(error).__name__}: {error}") from error

    def _path(self, name: str) -> str:
        return f"{self._root[1].rstrip('/')}/{name}"

    def _shard_path(self, folder: Path, name: str = "") -> str:
        return self._path(f"{self.config_name}/{folder.name}/{name}")

    def try_writing(self) -> None:
        """Writes a small file and deletes it, so that a store that refuses it is found before hours of training."""
        fs, _ = self._root
        content = secrets.token_hex(8).encode()
        folder = self._path(self.config_name)
        path = f"{folder}/.writable-{content.decode()}"
        with self._errors_named("cannot be written to"):
            fs.makedirs(folder, exist_ok=True)
            fs.pipe_file(path, content)
            arrived = fs.cat_file(path)
            fs.rm_file(path)
        if arrived != content:
            raise OSError(f"--out {self.url} cannot be written to: what was written came back changed")

    def finished_record(self, folder: Path) -> ShardRecord | None:
        """The record of a finished shard; None where it is not whole: no sound manifest, or a short file."""
        fs, _ = self._root
        path = self._shard_path(folder, MANIFEST_FILE)
        try:
            with self._errors_named("cannot be read"):
                text = fs.cat_file(path, end=MAX_MANIFEST_BYTES + 1)
            manifest = Manifest.parse(text, path)
            record = ShardRecord.of_manifest(manifest, path)
            with self._errors_named("cannot be read"):
                sizes = {name: fs.info(self._shard_path(folder, name))["size"] for name in manifest.files}
        except (FileNotFoundError, ValueError):
            return None
        whole = all(sizes[name] == entry.bytes for name, entry in manifest.files.items())
        return record if whole else None

    def download(self, folder: Path) -> None:
        """Brings a finished shard into ``folder``, to add runs to it; the manifest comes last."""
        fs, _ = self._root
        for name in (CHECKPOINTS_FILE, RUNS_FILE, TIMING_FILE, MANIFEST_FILE):
            with self._errors_named("cannot be read"):
                content = fs.cat_file(self._shard_path(folder, name))
            write_atomically(folder / name, content)

    def upload(self, folder: Path) -> None:
        """Uploads the shard in ``folder``, checks that it arrived whole, and deletes it here."""
        fs, _ = self._root
        shard = Shard.read(folder)
        shard.check_files()
        with self._errors_named("cannot be written to"):
            fs.makedirs(self._shard_path(folder).rstrip("/"), exist_ok=True)
            for name in (*shard.manifest.files, TIMING_FILE, MANIFEST_FILE):
                fs.put_file(str(folder / name), self._shard_path(folder, name))
            fs.invalidate_cache()
        if self.finished_record(folder) != shard.record:
            raise OSError(f"{self._shard_path(folder)} did not arrive whole; it is kept in {folder}: run again")
        shutil.rmtree(folder)

    def fetch_embedding(self, folder: Path) -> None:
        """Downloads the task's frozen embedding where one was made for an earlier shard; its origin may be unknown."""
        fs, _ = self._root
        paths = {name: self._path(f"{folder.name}/{name}") for name in _EMBEDDING_FILES}
        with self._errors_named("cannot be read"):
            if not fs.exists(paths[VECTORS_FILE]):
                return
            if not fs.exists(paths[ORIGIN_FILE]):
                del paths[ORIGIN_FILE]
            contents = {name: fs.cat_file(path) for name, path in paths.items()}
        for name, content in contents.items():
            write_atomically(folder / name, content)

    def push_embedding(self, folder: Path) -> None:
        """Uploads the frozen embedding unless there is one."""
        fs, _ = self._root
        with self._errors_named("cannot be written to"):
            if fs.exists(self._path(f"{folder.name}/{VECTORS_FILE}")):
                return
            fs.makedirs(self._path(folder.name), exist_ok=True)
            for name in _EMBEDDING_FILES:
                if (folder / name).is_file():
                    fs.put_file(str(folder / name), self._path(f"{folder.name}/{name}"))
