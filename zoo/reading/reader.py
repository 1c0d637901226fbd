"""``zoo.open``: checkpoints straight from memory-mapped files, without a copy where the file's layout allows it."""

import operator
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Integer
from torch import Tensor

from zoo.format.manifest import read_one_edition
from zoo.format.published import RUNS_FILE, ConfigDetails, PublishedZoo, parse_splits
from zoo.format.schema import PUBLISHED_RUN_SCHEMA, WEIGHTS
from zoo.format.table_file import read_table
from zoo.reading.locate import DEFAULT_NAME, find_folder
from zoo.reading.mapping import MappedCheckpoints
from zoo.reading.selection import Selection, Where, select, values_there_are
from zoo.storage.untrusted import HeldFile
from zoo.tasks.embedding import VECTORS_FILE, VOCABULARY_FILE, WordEmbedding
from zoo.transformer.spec import TransformerSpec
from zoo.transformer.weights import TransformerWeights

Rows = int | np.integer | slice | Sequence[int] | np.ndarray | Tensor | pd.Index


class Batch(NamedTuple):
    """Some checkpoints: their weights and the metadata of the same rows."""

    weights: TransformerWeights
    metadata: pd.DataFrame


AHEAD = 128
"""Batches prepared in one go, except for copies of weights: that takes 40 µs per batch, and 100 when megabytes of
weights go through the caches in between."""


def open_zoo(name: str | Path = DEFAULT_NAME, config: str = "mnist", split: str = "train") -> "ZooReader":
    """Opens one config of a zoo for reading.

    ``name`` is a folder, OWNER/NAME on the hub, or the default name (see ``zoo.reading.locate``); ``split`` is train,
    validation, test, several joined by ``+``, or all.
    """
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
        self._embedding: tuple[HeldFile, HeldFile] | None = None
        if self.details.embedding_sha256 is not None:
            vectors, words = (zoo.hold(f"{self.details.task}/{name}") for name in (VECTORS_FILE, VOCABULARY_FILE))
            self._embedding = vectors, words

    def __reduce__(self) -> tuple:
        return ZooReader, (self.folder, self.config, self.split, self.edition)

    def __repr__(self) -> str:
        return f"<{self.config} {self.split}: {len(self):,} checkpoints in {self.folder}>"

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def spec(self) -> TransformerSpec:
        return self.details.spec

    @cached_property
    def metadata(self) -> pd.DataFrame:
        """Every column but the weights, by row number. Reads no weights from the disk."""
        return self._rows.table.to_pandas()

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row per run of this config, diverged ones and all splits included, with its curves."""
        return read_table(self._runs, PUBLISHED_RUN_SCHEMA).to_pandas()

    @cached_property
    def embedding(self) -> WordEmbedding | None:
        """The frozen word embedding the transformers were trained with, where they need one."""
        return None if self._embedding is None else WordEmbedding.read(*self._embedding)

    def rows(self, where: Where = None) -> Integer[np.ndarray, " n"]:
        """The numbers of the rows that ``where`` chooses (see ``zoo.reading.selection``), ascending.

        To choose nothing is an error, here and so in every command: it says what values there are.
        """
        rows = np.flatnonzero(select(self.metadata, where))
        if where is not None and not len(rows):
            values = values_there_are(self.metadata, where)
            split = "all splits" if self.split == "all" else f"split {self.split}"
            raise ValueError(f"no checkpoint of {self.config}, {split}, fits {describe_where(where)}: {values}")
        return rows

    def weights(self, rows: Rows) -> Float[Tensor, "*n d"]:
        """The flat weights of some rows, [n, d]; of a single row number, [d].

        Consecutive rows inside one record batch (rows 0–63, 64–127, … of a file) are a view of the file; any others are
        copied once. They may be written to: neither the file nor a later read changes.
        """
        if (row := one_row(rows)) is not None:
            return self.weights([row])[0]
        numbers = self._numbers(rows)
        piece = self._rows.pieces(numbers, [slice(0, len(numbers))])[0] if len(numbers) else None
        return torch.from_numpy(self._rows.gather(numbers)) if piece is None else self._rows.view(piece)

    def __getitem__(self, rows: Rows) -> dict[str, Any]:
        """A row as ``datasets`` has it, {column: value, …, "weights": tensor [d]}; of several rows, a list per column.

        So ``torch.utils.data.DataLoader(reader, batch_size=16, shuffle=True)`` works; ``batches`` is many times faster.
        """
        if (number := one_row(rows)) is not None:
            if not -len(self) <= number < len(self):
                raise IndexError(f"row {number} does not exist: {self.config} {self.split} has {len(self):,} rows")
            row = self.metadata.iloc[number]
            return {str(name): row[name] for name in row.index} | {WEIGHTS: self.weights(number)}
        numbers = self._numbers(rows)
        columns = self.metadata.iloc[numbers].to_dict(orient="list")
        return {str(name): values for name, values in columns.items()} | {WEIGHTS: self.weights(numbers)}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[row] for row in range(len(self)))

    def batches(
        self,
        batch_size: int = 64,
        shuffle: bool = False,
        seed: int = 0,
        where: Where = None,
        drop_last: bool = False,
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
        for start in range(0, len(cuts), AHEAD):
            some = slice(start, start + AHEAD)
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

    def _numbers(self, rows: Rows) -> np.ndarray:
        """Row numbers as an array, checked; a mask of bools is taken as the rows where it is True."""
        if isinstance(rows, slice):
            return np.arange(len(self))[rows]
        numbers = np.asarray(rows)
        if numbers.size == 0:
            return np.empty(0, dtype=np.int64)
        if numbers.dtype == bool and numbers.shape == (len(self),):
            return np.flatnonzero(numbers)
        if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
            raise ValueError(f"rows are a list of whole numbers or a bool each, got {numbers.dtype} {numbers.shape}")
        numbers = np.where(numbers < 0, numbers + len(self), numbers)
        if not ((numbers >= 0) & (numbers < len(self))).all():
            raise ValueError(
                f"a row is outside 0 to {len(self) - 1}: {self.config} {self.split} has {len(self):,} rows"
            )
        return numbers


def one_row(rows: Rows) -> int | None:
    """The number of a single row, of whatever kind: an int, one of numpy's such as ``rows`` returns, or a tensor's."""
    if isinstance(rows, np.ndarray | Tensor):
        return operator.index(rows) if rows.ndim == 0 else None
    return operator.index(rows) if isinstance(rows, int | np.integer) else None


def describe_where(where: Where) -> str:
    """An expression as it was written; of a function or a mask there is nothing to show."""
    if isinstance(where, Selection):
        where = where.expression
    return repr(where) if isinstance(where, str) else "the given where"


def shuffled(rows: Integer[np.ndarray, " n"], seed: int | Sequence[int]) -> Integer[np.ndarray, " n"]:
    """One exact permutation of the rows; the same on every machine for the same seed."""
    return np.random.default_rng(seed).permutation(rows)


def cut_batches(count: int, batch_size: int, drop_last: bool) -> list[slice]:
    """The batches of ``count`` rows as slices."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    stop = count // batch_size * batch_size if drop_last else count
    return [slice(start, min(start + batch_size, count)) for start in range(0, stop, batch_size)]
