"""``zoo.open``: checkpoints straight from memory-mapped files, without a copy where the file's layout allows it.

A record batch of an Arrow stream holds the weights of its 64 rows in one piece; between two such pieces lie the next
batch's header and other columns. So rows inside one record batch are one tensor on the map, others are not.

A tensor on the map may be written to: the map is private, so nothing reaches the file, and torch counts the writes to a
tensor and all its views. A record batch that was written to is mapped again before it is read again. So a reader always
returns what the file holds, and a write is seen only where it was made. (A write that torch does not see, such as
through ``tensor.numpy()``, is not noticed.)
"""

import mmap
from collections.abc import Iterator, Sequence
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from jaxtyping import Float, Float32, Integer, Shaped
from torch import Tensor

from zoo.command import DEFAULT_NAME
from zoo.format.manifest import read_one_edition
from zoo.format.published import RUNS_FILE, ConfigDetails, PublishedZoo, parse_splits
from zoo.format.schema import PUBLISHED_RUN_SCHEMA, WEIGHTS, checkpoint_schema, with_weights
from zoo.format.splits import SPLITS
from zoo.format.table_file import read_batches, read_table
from zoo.reading.locate import choose_configs, find_folder
from zoo.reading.selection import Where, select, why_none
from zoo.storage.untrusted import HeldFile
from zoo.tasks.embedding import EMBEDDING_FILES, WordEmbedding
from zoo.transformer.spec import TransformerSpec
from zoo.transformer.weights import TransformerWeights

_Rows = int | np.integer | slice | Sequence[int] | np.ndarray | Tensor | pd.Index
_Piece = tuple[int, slice]
"""Consecutive rows in one record batch: the batch's number, and the rows in it."""
_AHEAD = 128
"""Batches prepared in one go, except for copies of weights: that takes 40 µs per batch, and 100 when megabytes of
weights go through the caches in between."""


class _BatchWeights:
    """The weights of one record batch: where they lie in their file, and the same memory as array and as tensor."""

    def __init__(self, file: HeldFile, mapped: mmap.mmap, offset: int, shape: tuple[int, int]) -> None:
        self.file, self.offset, self.shape = file, offset, shape
        self._map(mapped)

    def _map(self, mapped: mmap.mmap) -> None:
        flat = np.frombuffer(mapped, dtype="<f4", count=prod(self.shape), offset=self.offset)
        self.array = flat.reshape(self.shape)
        self.tensor = torch.from_numpy(self.array)

    def unwritten(self) -> "_BatchWeights":
        """The weights as in the file: mapped again where the tensor was written to."""
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
        self.batches: list[_BatchWeights] = []
        tables = [checkpoint_schema(spec).empty_table().drop_columns([WEIGHTS])]
        rows_per_file = []
        for path in self.paths:
            batches = _map_batches(HeldFile(path), spec)
            self.batches += [weights for weights, _ in batches]
            tables += [pa.Table.from_batches([metadata]) for _, metadata in batches]
            rows_per_file.append(sum(len(metadata) for _, metadata in batches))
        self.table = pa.concat_tables(tables).combine_chunks()
        self.file_starts = np.cumsum([0, *rows_per_file])
        self.batch_starts = np.cumsum([0, *(len(batch.tensor) for batch in self.batches)])

    def __len__(self) -> int:
        return int(self.batch_starts[-1])

    def locate(self, row: int) -> tuple[Path, int]:
        """The file a row is in, and its number there."""
        file = int(np.searchsorted(self.file_starts, row, side="right")) - 1
        return self.paths[file], row - int(self.file_starts[file])

    def pieces(self, rows: Integer[np.ndarray, " n"], cuts: Sequence[slice]) -> list[_Piece | None]:
        """For each cut where ``rows[cut]`` lie on the map, or None where they are not in one piece there."""
        starts, ends = (np.array([getattr(cut, end) for cut in cuts]) for end in ("start", "stop"))
        jumps = np.concatenate([[0], np.cumsum(np.diff(rows) != 1)])
        first, last = rows[starts], rows[ends - 1]
        batches = np.searchsorted(self.batch_starts, first, side="right") - 1
        fits = (jumps[starts] == jumps[ends - 1]) & (last < self.batch_starts[batches + 1])
        offsets = first - self.batch_starts[batches]
        found = zip(fits.tolist(), batches.tolist(), offsets.tolist(), (ends - starts).tolist(), strict=True)
        return [(batch, slice(offset, offset + size)) if fit else None for fit, batch, offset, size in found]

    def view(self, piece: _Piece) -> Float[Tensor, "n d"]:
        """A piece of the map as a tensor."""
        batch, rows = piece
        return self.batches[batch].unwritten().tensor[rows]

    def gather(self, rows: Integer[np.ndarray, " n"]) -> Float32[np.ndarray, "n d"]:
        """A copy of any rows in any order: one copy per row, as fast as memory."""
        d = self.spec.num_parameters
        if not len(rows):
            return np.empty((0, d), dtype=np.float32)
        batches = np.searchsorted(self.batch_starts, rows, side="right") - 1
        within = rows - self.batch_starts[batches]
        found = zip(batches.tolist(), within.tolist(), strict=True)
        return np.concatenate([self.batches[batch].unwritten().array[row] for batch, row in found]).reshape(-1, d)

    def take(self, rows: Integer[np.ndarray, " n"]) -> pa.Table:
        """A copy of any rows in any order, with all columns."""
        return with_weights(self.table.take(pa.array(rows)), self.gather(rows))


def _map_batches(file: HeldFile, spec: TransformerSpec) -> list[tuple[_BatchWeights, pa.RecordBatch]]:
    """For each record batch its weights on the map, and its other columns."""
    mapped = file.map()
    buffer = pa.py_buffer(mapped)
    found = []
    for batch in read_batches(buffer, checkpoint_schema(spec), str(file.path)):
        column = batch.column(WEIGHTS)
        values = column.values
        if column.null_count or values.null_count:
            raise ValueError(f"{file.path} is damaged: a checkpoint without weights")
        offset = values.buffers()[1].address - buffer.address
        if not 0 <= offset <= len(mapped) - 4 * len(values):
            raise ValueError(f"{file.path} is damaged: weights that are not in the file")
        weights = _BatchWeights(file, mapped, offset, (len(column), column.type.list_size))
        found.append((weights, batch.drop_columns([WEIGHTS])))
    return found


class Batch(NamedTuple):
    """Some checkpoints: their weights and the metadata of the same rows."""

    weights: TransformerWeights
    metadata: pd.DataFrame


def open_zoo(name: str | Path = DEFAULT_NAME, config: str | None = None, split: str = "train") -> "ZooReader":
    """Opens one config of a zoo for reading.

    ``name`` is a folder, OWNER/NAME on the hub, or the default name (see ``zoo.reading.locate``). Without a ``config``
    it is the only one, or mnist. ``split`` is train, validation, test, several joined by ``+``, or all.
    """
    if config is None:
        (config,) = choose_configs(name)
    return ZooReader(find_folder(name, config), config, split)


class ZooReader:
    """The checkpoints of one config and split, numbered 0 to len − 1.

    Any number of readers and processes share one copy of the file in memory. A reader keeps the edition it opened, its
    runs and its embedding too, even when another one is published meanwhile. Pickled, it is only its address, and is
    opened again where it arrives.
    """

    def __init__(self, folder: Path, config: str, split: str, edition: str | None = None) -> None:
        self.folder, self.config, self.split = folder, config, split
        self._wanted = edition
        read_one_edition(folder, self._open)

    def _open(self, edition: str) -> None:
        """Opens every file that is ever read from: what is published later changes nothing."""
        self.edition = edition
        if self._wanted not in (None, edition):
            raise ValueError(f"{self.folder} was published again since this reader was opened: open it again")
        zoo = PublishedZoo.read(self.folder)
        self.details: ConfigDetails = zoo.config(self.config)
        self._rows = MappedCheckpoints(zoo.paths(self.config, parse_splits(self.split)), self.spec)
        self._runs = zoo.hold(f"{self.config}/{RUNS_FILE}")
        self._with_weights: list[str] | None = None
        if self.details.thinned:
            everything = MappedCheckpoints(zoo.paths(self.config, SPLITS), self.spec)
            self._with_weights = everything.table.column("run_id").to_pylist()
        frozen = self.details.embedding_sha256 is not None
        self._embedding = [zoo.hold(f"{self.details.task}/{name}") for name in EMBEDDING_FILES if frozen]

    def __reduce__(self) -> tuple:
        return ZooReader, (self.folder, self.config, self.split, self.edition)

    def __repr__(self) -> str:
        return f"<{self.config} {self.split}: {len(self):,} checkpoints in {self.folder}>"

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def spec(self) -> TransformerSpec:
        return self.details.spec

    @property
    def characters(self) -> str | None:
        """Those that the tokens of language models stand for, in order; None for other transformers."""
        return self.details.characters

    @cached_property
    def metadata(self) -> pd.DataFrame:
        """Every column but the weights, by row number. Reads no weights from the disk."""
        return self._rows.table.to_pandas()

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row per run of this config, diverged ones and all splits included, with its curves.

        ``has_weights`` is true for runs of which at least one checkpoint is in this zoo.
        """
        runs = read_table(self._runs, PUBLISHED_RUN_SCHEMA).to_pandas()
        there = runs["status"] == "completed"
        if self._with_weights is not None:
            there &= runs["run_id"].isin(self._with_weights)
        return runs.assign(has_weights=there)

    @cached_property
    def embedding(self) -> WordEmbedding | None:
        """The frozen word embedding the transformers were trained with, where they need one."""
        return WordEmbedding.read(*self._embedding) if self._embedding else None

    def rows(self, where: Where = None) -> Integer[np.ndarray, " n"]:
        """The numbers of the rows that ``where`` chooses (see ``zoo.reading.selection``), ascending.

        To choose nothing is an error that lists the values there are.
        """
        if where is None:
            return np.arange(len(self))
        rows = np.flatnonzero(select(self.metadata, where))
        if not len(rows):
            split = "all splits" if self.split == "all" else f"split {self.split}"
            raise ValueError(f"no checkpoint of {self.config}, {split}, fits {why_none(self.metadata, where)}")
        return rows

    def weights(self, rows: _Rows) -> Float[Tensor, "*n d"]:
        """The flat weights of some rows, [n, d]; of a single row number, [d].

        Consecutive rows inside one record batch (rows 0–63, 64–127, … of a file) are a view of the file; any others are
        copied once. They may be written to: neither the file nor a later read changes.
        """
        numbers = self._numbers(rows)
        if numbers.ndim == 0:
            return self.weights(numbers[None])[0]
        piece = self._rows.pieces(numbers, [slice(0, len(numbers))])[0] if len(numbers) else None
        return torch.from_numpy(self._rows.gather(numbers)) if piece is None else self._rows.view(piece)

    def table(self, rows: _Rows) -> pa.Table:
        """Some rows with all columns."""
        return self._rows.take(np.atleast_1d(self._numbers(rows)))

    def arrays(
        self, where: Where = None, label: str = "test_accuracy"
    ) -> tuple[Float32[np.ndarray, "n d"], Shaped[np.ndarray, " n"]]:
        """Weights and labels of the rows that ``where`` chooses, as scikit-learn takes them: X [rows, weights] and y.

        ``label`` is any column of numbers. X is read-only: it is a view of the file wherever ``weights`` gives one.
        """
        rows = self.rows(where)
        numeric = list(map(str, self.metadata.select_dtypes("number").columns))
        if label not in numeric:
            raise ValueError(f"{label!r} is not a column of numbers: there are {', '.join(numeric)}")
        weights = self.weights(rows).numpy()
        weights.flags.writeable = False
        return weights, self.metadata[label].to_numpy()[rows]

    def __getitem__(self, rows: _Rows) -> dict[str, Any]:
        """A row as in ``datasets``, {column: value, …, "weights": tensor [d]}; for several rows, a list per column.

        So ``torch.utils.data.DataLoader(reader, batch_size=16, shuffle=True)`` works; ``batches`` is many times faster.
        """
        try:
            numbers = self._numbers(rows)
        except ValueError as error:
            raise IndexError(str(error)) from error
        found = self.metadata.iloc[numbers if numbers.ndim else int(numbers)]
        columns = found.to_dict(orient="list") if isinstance(found, pd.DataFrame) else dict(found)
        return {str(name): values for name, values in columns.items()} | {WEIGHTS: self.weights(numbers)}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[row] for row in range(len(self)))

    def batches(
        self, batch_size: int = 64, shuffle: bool = False, seed: int = 0, where: Where = None, drop_last: bool = False
    ) -> Iterator[Batch]:
        """Pairs of ``TransformerWeights`` and the metadata of the same rows, each row once.

        Shuffling is exact: one permutation of all chosen rows, a function of ``seed``. In order and with a batch size
        that divides 64, the weights are views of the file.
        """
        rows = shuffled(self.rows(where), seed) if shuffle else self.rows(where)
        return self.read_batches(rows, cut_batches(len(rows), batch_size, drop_last))

    def read_batches(self, rows: Integer[np.ndarray, " n"], cuts: Sequence[slice]) -> Iterator[Batch]:
        """The batches ``rows[cut]`` for each cut."""
        if not cuts:
            return
        pieces = self._rows.pieces(rows, cuts)
        whole_file = len(rows) == len(self) and bool((np.diff(rows) == 1).all())
        metadata = self._sliceable_metadata if whole_file else self._sliceable_metadata.iloc[rows]
        for start in range(0, len(cuts), _AHEAD):
            some = slice(start, start + _AHEAD)
            frames = [metadata.iloc[cut] for cut in cuts[some]]
            views = [None if piece is None else self._wrap(self._rows.view(piece)) for piece in pieces[some]]
            for cut, piece, view, frame in zip(cuts[some], pieces[some], views, frames, strict=True):
                if piece is None:
                    yield Batch(self._wrap(torch.from_numpy(self._rows.gather(rows[cut]))), frame)
                else:
                    assert view is not None
                    written = view.flat()._version  # since the view was prepared, perhaps by another iterator's user
                    yield Batch(self._wrap(self._rows.view(piece)) if written else view, frame)

    def _wrap(self, flat: Tensor) -> TransformerWeights:
        return TransformerWeights.from_flat(self.spec, flat, check_finite=False)

    @cached_property
    def _sliceable_metadata(self) -> pd.DataFrame:
        """The metadata with text as plain objects: cutting a batch out of it takes half the time, 20 µs."""
        text = self.metadata.select_dtypes(exclude="number").columns
        return self.metadata.astype(dict.fromkeys(text, object)).copy()

    @cached_property
    def _all_numbers(self) -> np.ndarray:
        """0, 1, 2, …, made once: a data loader asks for one row at a time."""
        numbers = np.arange(len(self))
        numbers.flags.writeable = False
        return numbers

    def _numbers(self, rows: _Rows) -> np.ndarray:
        """Row numbers by NumPy's indexing; that of a single row is an array without dimensions."""
        # an empty list has no type
        index = rows if isinstance(rows, slice) else np.asarray(rows, dtype=None if np.size(rows) else np.int64)
        try:
            numbers = np.asarray(self._all_numbers[index])
        except IndexError as error:
            raise ValueError(f"no such row: {self.config} {self.split} has {len(self):,} rows; {error}") from error
        if numbers.ndim > 1:
            raise ValueError(f"rows are a list of whole numbers or a bool each, got {numbers.ndim} dimensions")
        return numbers


def shuffled(rows: Integer[np.ndarray, " n"], seed: int | Sequence[int]) -> Integer[np.ndarray, " n"]:
    """One exact permutation of the rows; the same on every machine for the same seed."""
    return np.random.default_rng(seed).permutation(rows)


def cut_batches(count: int, batch_size: int, drop_last: bool) -> list[slice]:
    """The batches of ``count`` rows as slices."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    stop = count // batch_size * batch_size if drop_last else count
    return [slice(start, min(start + batch_size, count)) for start in range(0, stop, batch_size)]
