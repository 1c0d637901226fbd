"""Changes rows of a shard or a zoo and makes its manifest fit the changed file: a fault that no hash can show."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from zoo.format.manifest import _OWN_HASH, MANIFEST_FILE, FileEntry, Manifest
from zoo.format.published import DERIVED_FILES
from zoo.format.table_file import write_table

Rows = list[dict[str, Any]]


def rewrite(folder: Path, name: str, change: Callable[[Rows], object]) -> None:
    """Changes the rows of the table ``name`` below ``folder``, whose manifest then describes the changed file."""
    path = folder / name
    table = pa.ipc.open_stream(path.read_bytes()).read_all()
    rows = table.to_pylist()
    change(rows)
    write_table(path, table.schema, [pa.Table.from_pylist(rows, table.schema)])
    record(folder, name, FileEntry.of(path, len(rows)))


def record(folder: Path, name: str, entry: FileEntry) -> None:
    """The folder's manifest again, with another entry of this file.

    What repeats the content of other files, and would contradict the changed one, is taken out.
    """
    manifest = Manifest.read(folder)
    files = {**manifest.files, name: entry}
    for repeated in [file for file in files if Path(file).name in DERIVED_FILES[1:]]:
        del files[repeated]
        (folder / repeated).unlink(missing_ok=True)  # one manifest may be put back after another change
    Manifest(files, manifest.details).write(folder)


def change_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the JSON of a folder's manifest, and leaves out its hash, as manifests of the first release do."""
    path = folder / MANIFEST_FILE
    content = json.loads(path.read_bytes())
    content.pop(_OWN_HASH, None)
    change(content)
    path.write_text(json.dumps(content))


def set_value(row: int, **values: object) -> Callable[[Rows], None]:
    """The change that gives one row these values."""
    return lambda rows: rows[row].update(values)
