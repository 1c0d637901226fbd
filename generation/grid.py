"""Which configurations a task has, and how they are dealt to shards.

A grid is a union of tables; in each, all values are crossed. Runs of one train fraction share their batches, so a shard
holds one train fraction: of F of them, shard i has that of index i mod F. Inside a train fraction a fixed pseudo-random
permutation deals the configurations to its shards, so that the first shards, F at a time, are an unbiased sample of the
grid. The paper's has 16,000 configurations, 8,000 for {sgd, sgd_momentum} and 8,000 for {adam, rmsprop}
(table:zoo_hyperparameters_configurations), four train fractions, and 32 shards of 500.

A sample of any size takes the place of these shards: it is drawn from the whole grid and cut by train fraction into
shards, whose numbers are its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import prod
from typing import Any

import numpy as np

from generation.protocol import RunConfig
from generation.sample import Sample
from zoo.format.hyperparameters import CONFIGURATION

PERMUTATION_SEED = 2025
_TRAIN_FRACTION = CONFIGURATION.index("train_fraction")
SEED = 0  # the one that all runs share, unless they have their own


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
            RunConfig(task=self.task, **configuration, seed=SEED, task_sha256=self.task_sha256)
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
        runs = permuted(self, index)
        return runs[part * len(runs) // parts : (part + 1) * len(runs) // parts]


@cache
def permuted(grid: Grid, fraction_index: int) -> tuple[RunConfig, ...]:
    """A train fraction's configurations in their fixed random order, the same for every task with as many."""
    runs = grid.of_fraction(grid.fractions[fraction_index])
    bits = np.random.Philox(np.random.SeedSequence((PERMUTATION_SEED, fraction_index)))
    return tuple(runs[i] for i in np.random.Generator(bits).permutation(len(runs)))


@cache
def whole(grid: Grid) -> tuple[RunConfig, ...]:
    """All configurations, one train fraction after the other."""
    return tuple(run for fraction in grid.fractions for run in grid.of_fraction(fraction))


@cache
def sampled(grid: Grid, sample: Sample) -> dict[int, tuple[RunConfig, ...]]:
    """The configurations of a sample by shard: those of one train fraction, in the order they were drawn."""
    drawn = sample.drawn(whole(grid))
    shards = {
        sample.number(index): tuple(run for run in drawn if run.train_fraction == fraction)
        for index, fraction in enumerate(grid.fractions)
    }
    return {number: runs for number, runs in shards.items() if runs}
