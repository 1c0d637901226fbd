"""A random sample of the grid in place of a shard: for a small zoo without bias."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from generation.protocol import RunConfig
from zoo.reading.selection import Selection

STREAM = 2026  # keeps these draws apart from the permutation that deals the grid to its shards
SEEDS = 1000
PLACES_PER_SEED = 1_000_000
FRACTIONS = 10  # room for the last digit of a shard's number
CHOSEN_BASE, CHOSEN = 1_100_000_000, 100_000_000  # numbers of shards of samples from a part of the grid


@dataclass(frozen=True)
class Sample:
    """``count`` configurations of a grid, each set of that size equally likely.

    A smaller sample of the same seed is the beginning of a larger one. Samples of different seeds are independent, so
    they may share configurations. With ``where``, an expression in its canonical form, the grid is that part of it.
    """

    count: int
    seed: int = 0
    where: str | None = None

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"a sample has at least 1 configuration, got {self.count}")
        if not 0 <= self.seed < SEEDS:
            raise ValueError(f"the seed of a sample must lie in 0 to {SEEDS - 1}, got {self.seed}")

    def drawn(self, runs: Sequence[RunConfig]) -> list[RunConfig]:
        """The configurations drawn from all those of a grid."""
        if self.where is not None:
            table = pd.DataFrame([run.hyperparameters() for run in runs]).drop(columns="seed")
            chosen = np.flatnonzero(Selection.parse(self.where).mask(table))
            runs = [runs[place] for place in chosen.tolist()]
        return [runs[place] for place in self.places(len(runs))]

    def places(self, size: int) -> list[int]:
        """The configurations drawn from a grid of ``size``, by their places in it: the head of a permutation."""
        if self.count > size:
            part = "the grid" if self.where is None else f"the part of the grid where {self.where}"
            raise ValueError(f"{part} has {size:,} configurations: a sample of {self.count:,} cannot be drawn")
        bits = np.random.Philox(np.random.SeedSequence((STREAM, self.seed)))
        return np.random.Generator(bits).permutation(size)[: self.count].tolist()

    def number(self, fraction: int) -> int:
        """The number of the shard with the sample's runs of one train fraction, given by its index.

        (seed + 1)·10⁶ + 10·count + fraction: no two samples share a number, and none is that of a shard of the grid.
        Of a part of the grid it is 1.1·10⁹ + 10·h + fraction, where h is a hash of where, count and seed below 10⁸.
        """
        assert FRACTIONS * self.count + fraction < PLACES_PER_SEED
        assert 0 <= fraction < FRACTIONS
        if self.where is not None:
            digest = hashlib.sha256(f"{self.count} {self.seed} {self.where}".encode()).digest()
            return CHOSEN_BASE + FRACTIONS * (int.from_bytes(digest[:8], "big") % CHOSEN) + fraction
        return (self.seed + 1) * PLACES_PER_SEED + FRACTIONS * self.count + fraction
