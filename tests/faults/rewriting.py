"""Changes rows of a shard or a zoo and makes its manifest fit the changed file: a fault that no hash can show."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from zoo.format.manifest import FileEntry, Manifest
from zoo.format.table_file import write_table
from zoo.storage.arrow_stream import read_batches

Rows = list[dict[str, Any]]


def rewrite(folder: Path, name: str, change: Callable[[Rows], object]) -> None:
    """Changes the rows of the table ``name`` below ``folder``, whose manifest then describes the changed file."""
    path = folder / name
    schema = pa.ipc.open_stream(path.read_bytes()).schema
    rows = pa.Table.from_batches(read_batches(pa.py_buffer(path.read_bytes()), schema, str(path)), schema).to_pylist()
    change(rows)
    write_table(path, schema, [pa.Table.from_pylist(rows, schema)])
    record(folder, name, FileEntry.of(path, len(rows)))


def record(folder: Path, name: str, entry: FileEntry) -> None:
    """The folder's manifest again, with another entry of this file."""
    manifest = Manifest.read(folder)
    Manifest({**manifest.files, name: entry}, manifest.details).write(folder)


def set_value(row: int, **values: object) -> Callable[[Rows], None]:
    """The change that gives one row these values."""
    return lambda rows: rows[row].update(values)
