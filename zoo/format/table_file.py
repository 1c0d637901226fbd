"""Arrow stream files: written atomically in record batches of 64 rows, the same bytes for the same rows."""

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from zoo.format.faults import name_faults, refuse
from zoo.format.manifest import FileEntry
from zoo.storage.arrow_stream import BufferSource, read_batches
from zoo.storage.atomic import atomic_file
from zoo.storage.held_file import HeldFile

ROWS_PER_BATCH = 64
MAX_TABLE_BYTES = 256 << 20
"""Of a table that is read whole. The runs of the paper's whole grid, with their curves, have 25 MB."""


def write_table(path: Path, schema: pa.Schema, tables: Iterable[pa.Table]) -> FileEntry:
    """Writes the rows of ``tables``, one after the other, in batches of 64; the last batch alone may be shorter."""
    rows = 0
    with atomic_file(path) as file, pa.ipc.new_stream(file, schema) as writer:
        pending = schema.empty_table()
        for table in tables:
            pending = pa.concat_tables([pending, table.cast(schema)]).combine_chunks()
            whole = len(pending) // ROWS_PER_BATCH * ROWS_PER_BATCH
            for start in range(0, whole, ROWS_PER_BATCH):
                writer.write_table(pending.slice(start, ROWS_PER_BATCH))
            rows += whole
            pending = pending.slice(whole)
        if len(pending):
            writer.write_table(pending)
            rows += len(pending)
    return FileEntry.of(path, rows)


def read_table(path: Path, schema: pa.Schema) -> pa.Table:
    """The rows of a small file, in memory; anything but this schema, or a strange name, is an error that names it."""
    return read_held_table(HeldFile(path), schema)


def read_held_table(file: HeldFile, schema: pa.Schema) -> pa.Table:
    """The same of a file that is open already."""
    data = pa.py_buffer(file.read(MAX_TABLE_BYTES))
    table = pa.Table.from_batches(list(read_batches(BufferSource(data), schema, str(file.path))), schema)
    if "run_id" in schema.names:
        refuse(name_faults(table), lambda row: (file.path, row))
    return table
