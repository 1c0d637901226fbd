"""One Arrow file that a manifest lists, in a folder or on a web server, read batch by batch."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from zoo.format.manifest import FileEntry, edition_of
from zoo.format.table_file import BufferSource, MessageSource, read_batches
from zoo.reading.fetch import ServedSource
from zoo.storage.untrusted import HeldFile


@dataclass(frozen=True)
class ListedFile:
    """A file, what the manifest says of it, and the edition it belongs to; its place is a folder or an address."""

    place: str | Path
    name: str
    entry: FileEntry
    edition: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return f"{self.place}/{self.name}"

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The batches, checked; a file that has not exactly the rows that it should is a ValueError at its end."""
        rows = 0
        with closing(self.source()) as source:
            for batch in read_batches(source, schema, str(self)):
                rows += len(batch)
                yield batch
        if rows != self.entry.rows:
            raise ValueError(f"{self} is damaged: {rows:,} rows, the manifest says {self.entry.rows:,}")

    def source(self) -> MessageSource:
        if isinstance(self.place, str):
            return ServedSource(str(self), self.entry.bytes, self.headers)
        mapped = HeldFile(self.place / self.name, self.entry.bytes).map()
        # what was opened before the manifest is looked at again belongs to that manifest
        if edition_of(self.place) != self.edition:
            raise ValueError(f"{self.place} was published again since it was loaded: load it again")
        return BufferSource(pa.py_buffer(mapped))
