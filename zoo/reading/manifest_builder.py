"""The bridge to ``datasets``: a builder whose files are those a manifest lists, read with the zoo's own checks.

The library's own reader takes what a folder's card names, wherever that is, unpacks compressed batches, and reads an
Arrow stream that is cut between two record batches as a shorter one. Here the files come from the manifest alone, every
message is checked before Arrow sees it, and the names in its rows after; the number of rows and the SHA-256 of each
file are compared with the manifest. So however a split is written (``train+test``, ``train[:100%]``), rows that are
missing are an error.
"""

import hashlib
from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
from datasets.builder import Key
from datasets.table import table_cast

from zoo.format.manifest import FileEntry, edition_of
from zoo.format.table_file import read_batches
from zoo.reading.fetch import ServedSource
from zoo.storage.untrusted import HeldFile


class _HashedSource:
    """A source of Arrow messages that hashes its bytes, each once and in order, as they are read."""

    def __init__(self, source: pa.Buffer | ServedSource) -> None:
        self.source, self.size = source, source.size
        self.digest, self.hashed = hashlib.sha256(), 0

    def slice(self, offset: int, length: int) -> pa.Buffer:
        data = self.source.slice(offset, length)
        self.digest.update(memoryview(data)[self.hashed - offset :])
        self.hashed = offset + length
        return data


@dataclass(frozen=True)
class ListedFile:
    """An Arrow file that a manifest lists, in a folder or on a web server, with its entry and the zoo's edition."""

    location: str | Path
    name: str
    entry: FileEntry
    edition: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return f"{self.location}/{self.name}"

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The batches, checked; a file whose rows or SHA-256 are not those of the manifest ends in a ValueError.

        That is checked before the last batch is delivered, so a reader that has all rows of a file has the right ones.
        """
        rows, last = 0, None
        with self._opened() as opened:
            source = _HashedSource(opened)
            for batch in read_batches(source, schema, str(self)):
                if last is not None:
                    yield last
                rows, last = rows + len(batch), batch
        if rows != self.entry.rows:
            raise ValueError(f"{self} is damaged: {rows:,} rows, the manifest says {self.entry.rows:,}")
        if source.digest.hexdigest() != self.entry.sha256:
            raise ValueError(f"{self} is damaged: its SHA-256 is not the one in the manifest")
        if last is not None:
            yield last

    def _opened(self) -> AbstractContextManager[pa.Buffer | ServedSource]:
        if isinstance(self.location, str):
            return closing(ServedSource(str(self), self.entry.bytes, self.headers))
        mapped = HeldFile(self.location / self.name, self.entry.bytes).map()
        # a file that was opened before the manifest is read again belongs to that manifest
        if edition_of(self.location) != self.edition:
            raise ValueError(f"{self.location} was published again since it was loaded: load it again")
        return nullcontext(pa.py_buffer(mapped))


@dataclass
class _ManifestConfig(datasets.BuilderConfig):
    """``files`` are those of each split; ``schema`` is what each of them must have."""

    files: dict[str, list[ListedFile]] = field(default_factory=dict)
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    features: datasets.Features | None = None


class ManifestBuilder(datasets.ArrowBasedBuilder):
    """Rows of a published zoo, from a folder or a web server."""

    BUILDER_CONFIG_CLASS = _ManifestConfig

    @property
    def listed(self) -> _ManifestConfig:
        assert isinstance(self.config, _ManifestConfig)
        return self.config

    def _info(self) -> datasets.DatasetInfo:
        features = self.listed.features or datasets.Features.from_arrow_schema(self.listed.schema)
        return datasets.DatasetInfo(features=features)

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        return [
            datasets.SplitGenerator(name=split, gen_kwargs={"files": files})
            for split, files in self.listed.files.items()
        ]

    def _generate_tables(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, files: list[ListedFile]
    ) -> Generator[tuple[Key, pa.Table], Any, None]:
        for number, file in enumerate(files):
            for index, batch in enumerate(file.batches(self.listed.schema)):
                table = pa.Table.from_batches([batch])
                if self.listed.features is not None:
                    table = table_cast(table, self.listed.features.arrow_schema)
                yield Key(number, index), table
