"""A task's grid of configurations, and how they are dealt to shards or drawn at random.

A grid is a union of tables; in each, all values are crossed. Runs of one train fraction share their batches, so a shard
holds one train fraction: of F of them, shard i has that of index i mod F. Inside a train fraction a fixed pseudo-random
permutation deals the configurations to its shards, so that the first shards, F at a time, are an unbiased sample of the
grid. The paper's has 16,000 configurations, 8,000 for {sgd, sgd_momentum} and 8,000 for {adam, rmsprop}
(table:zoo_hyperparameters_configurations), four train fractions, and 32 shards of 500.

A draw of any size takes the place of these shards, for a small zoo without bias: it is drawn from the whole grid and
cut by train fraction into shards, which have numbers of their own.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pandas as pd

from generation.protocol import RunConfig
from zoo.format.hyperparameters import CONFIGURATION
from zoo.reading.selection import Selection

_PERMUTATION_SEED = 2025
_DRAW_SEED = 2026  # keeps draws apart from the permutation that deals the grid to its shards
_SEED = 0  # the one that all runs share, unless they have their own
_TRAIN_FRACTION = CONFIGURATION.index("train_fraction")
_DRAWS = 1000
_NUMBERS_PER_DRAW = 1_000_000
FRACTIONS = 10  # room for the last digit of a shard's number
_CHOSEN_BASE, _CHOSEN = 1_100_000_000, 100_000_000  # shard numbers of draws from a part of the grid


@dataclass(frozen=True)
class Draw:
    """``count`` configurations of a grid, each set of that size equally likely.

    A smaller draw of the same seed is the beginning of a larger one. Draws of different seeds are independent, so they
    may share configurations. With ``where``, an expression in its canonical form, the grid is that part of it.
    """

    count: int
    seed: int = 0
    where: str | None = None

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"a sample has at least 1 configuration, got {self.count}")
        if not 0 <= self.seed < _DRAWS:
            raise ValueError(f"the seed of a sample must lie in 0 to {_DRAWS - 1}, got {self.seed}")

    def drawn(self, runs: Sequence[RunConfig]) -> list[RunConfig]:
        """The configurations drawn from all those of a grid: the head of a permutation."""
        part = "the grid"
        if self.where is not None:
            part = f"the part of the grid where {self.where}"
            table = pd.DataFrame([run.hyperparameters() for run in runs]).drop(columns="seed")
            chosen = np.flatnonzero(Selection.parse(self.where).mask(table))
            runs = [runs[row] for row in chosen.tolist()]
        if self.count > len(runs):
            raise ValueError(f"{part} has {len(runs):,} configurations: a sample of {self.count:,} cannot be drawn")
        return [runs[row] for row in _permutation(len(runs), _DRAW_SEED, self.seed)[: self.count]]

    def number(self, fraction: int) -> int:
        """The number of the shard with the draw's runs of one train fraction, given by its index.

        (seed + 1)·10⁶ + 10·count + fraction: no two draws share a number, and none is that of a shard of the grid.
        Of a part of the grid it is 1.1·10⁹ + 10·h + fraction, where h is a hash of where, count and seed below 10⁸.
        """
        assert FRACTIONS * self.count + fraction < _NUMBERS_PER_DRAW
        assert 0 <= fraction < FRACTIONS
        if self.where is not None:
            digest = hashlib.sha256(f"{self.count} {self.seed} {self.where}".encode()).digest()
            return _CHOSEN_BASE + FRACTIONS * (int.from_bytes(digest[:8], "big") % _CHOSEN) + fraction
        return (self.seed + 1) * _NUMBERS_PER_DRAW + FRACTIONS * self.count + fraction


@dataclass(frozen=True)
class GridTable:
    """Values to cross, one ``[grid]`` of a task file: those of each hyperparameter but the seed, in their order."""

    values: tuple[tuple[Any, ...], ...]

    def __len__(self) -> int:
        """The number of configurations."""
        return prod(map(len, self.values))

    @property
    def train_fraction(self) -> tuple[float, ...]:
        return self.values[_TRAIN_FRACTION]

    def crossed(self, fraction: float) -> Iterator[dict[str, Any]]:
        """The configurations of a train fraction."""
        values = [*self.values]
        values[_TRAIN_FRACTION] = (fraction,)
        return (dict(zip(CONFIGURATION, crossed, strict=True)) for crossed in product(*values))


@dataclass(frozen=True)
class Grid:
    """The configurations of a task, by name and by the hash of its file where it is not one of the paper's."""

    task: str
    task_sha256: str | None
    tables: tuple[GridTable, ...]
    shards: int

    @property
    def fractions(self) -> tuple[float, ...]:
        """The train fractions of all tables, in the order they are named."""
        return tuple(dict.fromkeys(fraction for table in self.tables for fraction in table.train_fraction))

    def of_fraction(self, fraction: float) -> list[RunConfig]:
        """All configurations of a train fraction, in the order of the tables, each once."""
        runs = (
            RunConfig(task=self.task, **configuration, seed=_SEED, task_sha256=self.task_sha256)
            for table in self.tables
            if fraction in table.train_fraction
            for configuration in table.crossed(fraction)
        )
        return list(dict.fromkeys(runs))

    def dealt(self, shard: int) -> tuple[RunConfig, ...]:
        """The configurations that the fixed permutation deals to a shard."""
        if not 0 <= shard < self.shards:
            last = self.shards - 1
            raise ValueError(f"shard {shard} does not exist: this sweep has {self.shards} shards, numbered 0 to {last}")
        part, index = divmod(shard, len(self.fractions))
        parts = self.shards // len(self.fractions)
        runs = _permuted(self, index)
        return runs[part * len(runs) // parts : (part + 1) * len(runs) // parts]


def _permutation(size: int, *seed: int) -> list[int]:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed))).permutation(size).tolist()


@cache
def _permuted(grid: Grid, fraction_index: int) -> tuple[RunConfig, ...]:
    """A train fraction's configurations in their fixed random order, the same for every task with as many."""
    runs = grid.of_fraction(grid.fractions[fraction_index])
    return tuple(runs[row] for row in _permutation(len(runs), _PERMUTATION_SEED, fraction_index))


@cache
def whole(grid: Grid) -> tuple[RunConfig, ...]:
    """All configurations, one train fraction after the other."""
    return tuple(run for fraction in grid.fractions for run in grid.of_fraction(fraction))


@cache
def drawn_shards(grid: Grid, draw: Draw) -> dict[int, tuple[RunConfig, ...]]:
    """The configurations of a draw by shard: those of one train fraction, in the order they were drawn."""
    drawn = draw.drawn(whole(grid))
    shards = {
        draw.number(index): tuple(run for run in drawn if run.train_fraction == fraction)
        for index, fraction in enumerate(grid.fractions)
    }
    return {number: runs for number, runs in shards.items() if runs}
