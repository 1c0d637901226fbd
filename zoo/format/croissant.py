"""``croissant.json``: the zoo in the vocabulary of MLCommons Croissant, rendered from ``croissant_template.json``.

    dataset = mlcroissant.Dataset("small-transformer-zoo/croissant.json")
    for run in dataset.records("mnist-runs"): ...

It lists every file with its SHA-256. What only a publisher knows, such as the license, is there if it was stated.
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from zoo.format.manifest import FileEntry
from zoo.format.published import CARD_FILE, CROISSANT_FILE, RUNS_FILE, RUNS_PARQUET, PublishedZoo
from zoo.format.schema import PUBLISHED_RUN_SCHEMA
from zoo.format.table_file import MAX_TABLE_BYTES, read_table
from zoo.storage.atomic import atomic_file
from zoo.storage.untrusted import parse_json, read_bounded

_MAX_BYTES = 16 << 20


def write_runs_as_parquet(folder: Path, config: str) -> FileEntry:
    """Writes the runs of a config a second time, for readers of Parquet."""
    runs = read_table(folder / config / RUNS_FILE, PUBLISHED_RUN_SCHEMA)
    path = folder / config / RUNS_PARQUET
    with atomic_file(path) as file:
        pq.write_table(runs, file, compression="zstd")
    return FileEntry.of(path, len(runs))


def croissant_faults(zoo: PublishedZoo) -> Iterator[str]:
    """What ``croissant.json`` states otherwise than the manifest: files, their sizes or their hashes."""
    path = zoo.folder / CROISSANT_FILE
    if CROISSANT_FILE not in zoo.manifest.files:
        return  # a zoo of the first release
    try:
        content = parse_json(read_bounded(path, _MAX_BYTES), str(path))
        stated = {each["@id"]: (each["sha256"], each["contentSize"]) for each in content["distribution"]}
    except (ValueError, KeyError, TypeError) as error:
        yield f"{path} is damaged: it is not a description of the zoo's files ({type(error).__name__})"
        return
    files = {name: entry for name, entry in zoo.manifest.files.items() if name not in (CARD_FILE, CROISSANT_FILE)}
    for name in sorted(files.keys() | stated.keys()):
        entry = files.get(name)
        if entry is None or stated.get(name) != (entry.sha256, f"{entry.bytes} B"):
            yield f"{path} is damaged: size or SHA-256 of {name} is not the one in the manifest"


def parquet_fault(path: Path, runs: pa.Table) -> str | None:
    """What is wrong with a second table of runs: nothing if it holds the same rows."""
    try:
        file = pq.ParquetFile(path)
        size = sum(file.metadata.row_group(index).total_byte_size for index in range(file.metadata.num_row_groups))
        if file.metadata.num_rows == len(runs) and size <= MAX_TABLE_BYTES and file.read().equals(runs):
            return None
        return f"{path} is damaged: its rows are not those of {RUNS_FILE}"
    except (pa.ArrowException, OSError) as error:
        return f"{path} is damaged: {error}"
