"""Arrow files of checkpoints as one memory-mapped sequence of rows: metadata as a table, weights as arrays on the map.

A record batch of an Arrow stream holds the weights of its 64 rows in one piece; between two such pieces lie the next
batch's header and other columns. So rows inside one record batch are one array on the map, rows across batches are not.
"""

import mmap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Float32, Integer

from zoo.schema import checkpoint_schema
from zoo.spec import TransformerSpec
from zoo.table_file import schema_difference

WEIGHTS = "weights"


class MappedCheckpoints:
    """The rows of several files, numbered through.

    Only the headers are read when a file is mapped; metadata and weights are read from the disk when they are touched.
    The maps are private: writing to an array changes neither the file nor what another process sees.
    """

    def __init__(self, paths: Sequence[Path], spec: TransformerSpec) -> None:
        self.spec = spec
        self.paths = tuple(paths)
        self.blocks: list[np.ndarray] = []
        tables = [checkpoint_schema(spec).empty_table().drop_columns([WEIGHTS])]
        rows_per_file = []
        for path in self.paths:
            batches = map_batches(path, spec)
            self.blocks += [weights for weights, _ in batches]
            tables += [pa.Table.from_batches([metadata]) for _, metadata in batches]
            rows_per_file.append(sum(len(weights) for weights, _ in batches))
        self.table = pa.concat_tables(tables)
        self.file_starts = np.cumsum([0, *rows_per_file])
        self.block_starts = np.cumsum([0, *(len(block) for block in self.blocks)])

    def __len__(self) -> int:
        return int(self.block_starts[-1])

    def locate(self, row: int) -> tuple[Path, int]:
        """The file a row is in, and its number there."""
        file = int(np.searchsorted(self.file_starts, row, side="right")) - 1
        return self.paths[file], row - int(self.file_starts[file])

    def contiguous(self, start: int, stop: int) -> Float32[np.ndarray, "n d"] | None:
        """Rows ``start`` to ``stop`` as an array on the map, or None where they lie in more than one record batch."""
        block = int(np.searchsorted(self.block_starts, start, side="right")) - 1
        if not start < stop <= self.block_starts[block + 1]:
            return None
        first = int(self.block_starts[block])
        return self.blocks[block][start - first : stop - first]

    def gather(self, rows: Integer[np.ndarray, "n"]) -> Float32[np.ndarray, "n d"]:
        """A copy of any rows in any order: one copy a row, as fast as memory."""
        out = np.empty((len(rows), self.spec.num_parameters), dtype=np.float32)
        blocks = np.searchsorted(self.block_starts, rows, side="right") - 1
        within = rows - self.block_starts[blocks]
        for target, block, row in zip(out, blocks.tolist(), within.tolist(), strict=True):
            target[:] = self.blocks[block][row]
        return out


def map_batches(path: Path, spec: TransformerSpec) -> list[tuple[np.ndarray, pa.RecordBatch]]:
    """For each record batch its weights as an array on the map, and its other columns."""
    mapped = map_file(path)
    buffer = pa.py_buffer(mapped)
    expected = checkpoint_schema(spec)
    batches = []
    try:
        with pa.ipc.open_stream(buffer) as reader:
            if not reader.schema.equals(expected):
                raise ValueError(
                    f"{path} does not hold {spec.task} checkpoints: {schema_difference(reader.schema, expected)}"
                )
            for batch in reader:
                values = batch.column(WEIGHTS)
                batches.append((weights_on_map(path, values, mapped, buffer), batch.drop_columns([WEIGHTS])))
    # Arrow reports a damaged stream as ArrowInvalid or as OSError, according to where the damage is
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    return batches


def map_file(path: Path) -> mmap.mmap:
    """The file as private copy-on-write memory.

    Writable, because torch takes no read-only memory without a warning; private, so that nothing reaches the file.
    """
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            raise ValueError(f"{path} is empty")
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def weights_on_map(path: Path, column: pa.FixedSizeListArray, mapped: mmap.mmap, buffer: pa.Buffer) -> np.ndarray:
    """The array [rows, d] at the place of the map where this column's values lie."""
    values = column.values
    if column.null_count or values.null_count:
        raise ValueError(f"{path} is damaged: a checkpoint without weights")
    offset = values.buffers()[1].address - buffer.address
    if not 0 <= offset <= len(mapped) - 4 * len(values):
        raise ValueError(f"{path} is compressed: the zoo's files are plain Arrow streams")
    array = np.frombuffer(mapped, dtype="<f4", count=len(values), offset=offset)
    return array.reshape(len(column), -1)
