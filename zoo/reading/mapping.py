"""Arrow files of checkpoints as one memory-mapped sequence of rows: metadata as a table, weights as tensors on the map.

A record batch of an Arrow stream holds the weights of its 64 rows in one piece; between two such pieces lie the next
batch's header and other columns. So rows inside one record batch are one tensor on the map, others are not.

A tensor on the map may be written to: the map is private, so nothing reaches the file, and torch counts the writes to a
tensor and all its views. A record batch that was written to is mapped again before it is read again. So a reader always
returns what the file holds, and what was written stays with whoever wrote it. (A write that torch does not see, such as
through ``tensor.numpy()``, is not noticed.)
"""

import mmap
from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float, Float32, Integer
from torch import Tensor

from zoo.format.faults import name_faults, refuse
from zoo.format.schema import WEIGHTS, checkpoint_schema
from zoo.format.table_file import BufferSource, read_batches
from zoo.storage.untrusted import HeldFile
from zoo.transformer.spec import TransformerSpec

Piece = tuple[int, slice]
"""Consecutive rows in one record batch: the batch's number, and the rows in it."""


class Block:
    """The weights of one record batch: where they lie in their file, and the same memory as array and as tensor."""

    def __init__(self, file: HeldFile, mapped: mmap.mmap, offset: int, shape: tuple[int, int]) -> None:
        self.file, self.offset, self.shape = file, offset, shape
        self._map(mapped)

    def _map(self, mapped: mmap.mmap) -> None:
        flat = np.frombuffer(mapped, dtype="<f4", count=prod(self.shape), offset=self.offset)
        self.array = flat.reshape(self.shape)
        self.tensor = torch.from_numpy(self.array)

    def unwritten(self) -> "Block":
        """This block as the file has it: mapped again where its tensor was written to."""
        if self.tensor._version:
            self._map(self.file.map())
        return self


class MappedCheckpoints:
    """The rows of several files, numbered through.

    Headers and metadata are read, and checked, when a file is mapped; weights come from the disk when they are touched.
    """

    def __init__(self, paths: Sequence[Path], spec: TransformerSpec) -> None:
        self.spec = spec
        self.paths = tuple(paths)
        self.blocks: list[Block] = []
        tables = [checkpoint_schema(spec).empty_table().drop_columns([WEIGHTS])]
        rows_per_file = []
        for path in self.paths:
            batches = map_batches(HeldFile(path), spec)
            self.blocks += [block for block, _ in batches]
            tables += [pa.Table.from_batches([metadata]) for _, metadata in batches]
            rows_per_file.append(sum(len(block.tensor) for block, _ in batches))
        self.table = pa.concat_tables(tables)
        self.file_starts = np.cumsum([0, *rows_per_file])
        self.block_starts = np.cumsum([0, *(len(block.tensor) for block in self.blocks)])
        refuse(name_faults(self.table), self.locate)

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

    def view(self, piece: Piece) -> Float[Tensor, "n d"]:
        """A piece of the map as a tensor."""
        block, rows = piece
        return self.blocks[block].unwritten().tensor[rows]

    def gather(self, rows: Integer[np.ndarray, " n"]) -> Float32[np.ndarray, "n d"]:
        """A copy of any rows in any order: one copy per row, as fast as memory."""
        d = self.spec.num_parameters
        if not len(rows):
            return np.empty((0, d), dtype=np.float32)
        blocks = np.searchsorted(self.block_starts, rows, side="right") - 1
        within = rows - self.block_starts[blocks]
        places = zip(blocks.tolist(), within.tolist(), strict=True)
        return np.concatenate([self.blocks[block].unwritten().array[row] for block, row in places]).reshape(-1, d)


def map_batches(file: HeldFile, spec: TransformerSpec) -> list[tuple[Block, pa.RecordBatch]]:
    """For each record batch its weights on the map, and its other columns."""
    mapped = file.map()
    buffer = pa.py_buffer(mapped)
    return [
        (block_on_map(file, batch.column(WEIGHTS), mapped, buffer), batch.drop_columns([WEIGHTS]))
        for batch in read_batches(BufferSource(buffer), checkpoint_schema(spec), str(file.path))
    ]


def block_on_map(file: HeldFile, column: pa.FixedSizeListArray, mapped: mmap.mmap, buffer: pa.Buffer) -> Block:
    """The weights [rows, d] at the place of the map where this column's values lie."""
    values = column.values
    if column.null_count or values.null_count:
        raise ValueError(f"{file.path} is damaged: a checkpoint without weights")
    offset = values.buffers()[1].address - buffer.address
    if not 0 <= offset <= len(mapped) - 4 * len(values):
        raise ValueError(f"{file.path} is damaged: weights that are not in the file")
    return Block(file, mapped, offset, (len(column), column.type.list_size))
