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

from zoo.format.schema import WEIGHTS, checkpoint_schema
from zoo.storage.arrow_stream import read_batches
from zoo.transformer.spec import TransformerSpec

Piece = tuple[int, slice]
"""Consecutive rows in one record batch: the batch's number, and the rows in it."""


class MappedCheckpoints:
    """The rows of several files, numbered through.

    Headers and metadata are read, and checked, when a file is mapped; weights come from the disk when they are touched.
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

    def pieces(self, rows: Integer[np.ndarray, " n"], cuts: Sequence[slice]) -> list[Piece | None]:
        """For each cut the place of ``rows[cut]`` on the map, or None where they are not in one piece there."""
        starts, ends = (np.array([getattr(cut, end) for cut in cuts]) for end in ("start", "stop"))
        jumps = np.concatenate([[0], np.cumsum(np.diff(rows) != 1)])
        first, last = rows[starts], rows[ends - 1]
        blocks = np.searchsorted(self.block_starts, first, side="right") - 1
        fits = (jumps[starts] == jumps[ends - 1]) & (last < self.block_starts[blocks + 1])
        offsets = first - self.block_starts[blocks]
        places = zip(fits.tolist(), blocks.tolist(), offsets.tolist(), (ends - starts).tolist(), strict=True)
        return [(block, slice(offset, offset + size)) if fit else None for fit, block, offset, size in places]

    def view(self, piece: Piece) -> Float32[np.ndarray, "n d"]:
        """A piece of the map as an array."""
        block, rows = piece
        return self.blocks[block][rows]

    def gather(self, rows: Integer[np.ndarray, " n"]) -> Float32[np.ndarray, "n d"]:
        """A copy of any rows in any order: one copy per row, as fast as memory."""
        d = self.spec.num_parameters
        if not len(rows):
            return np.empty((0, d), dtype=np.float32)
        blocks = np.searchsorted(self.block_starts, rows, side="right") - 1
        within = rows - self.block_starts[blocks]
        places = zip(blocks.tolist(), within.tolist(), strict=True)
        return np.concatenate([self.blocks[block][row] for block, row in places]).reshape(-1, d)


def map_batches(path: Path, spec: TransformerSpec) -> list[tuple[np.ndarray, pa.RecordBatch]]:
    """For each record batch its weights as an array on the map, and its other columns."""
    mapped = map_file(path)
    buffer = pa.py_buffer(mapped)
    return [
        (weights_on_map(path, batch.column(WEIGHTS), mapped, buffer), batch.drop_columns([WEIGHTS]))
        for batch in read_batches(buffer, checkpoint_schema(spec), str(path))
    ]


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
        raise ValueError(f"{path} is damaged: weights that are not in the file")
    array = np.frombuffer(mapped, dtype="<f4", count=len(values), offset=offset)
    return array.reshape(len(column), -1)
