"""A random sample of the grid in place of a shard: for a small zoo without bias."""

from dataclasses import dataclass

import numpy as np

STREAM = 2026  # keeps these draws apart from the permutation that deals the grid to its shards
SEEDS = 1000
PLACES_PER_SEED = 1_000_000
FRACTIONS = 10  # room for the last digit of a shard's number


@dataclass(frozen=True)
class Sample:
    """``count`` configurations of a grid, each set of that size equally likely.

    A smaller sample of the same seed is the beginning of a larger one. Samples of different seeds are independent, so
    they may share configurations.
    """

    count: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"a sample has at least 1 configuration, got {self.count}")
        if not 0 <= self.seed < SEEDS:
            raise ValueError(f"the seed of a sample must lie in 0 to {SEEDS - 1}, got {self.seed}")

    def places(self, size: int) -> list[int]:
        """The configurations drawn from a grid of ``size``, by their places in it: the head of a permutation."""
        if self.count > size:
            raise ValueError(f"the grid has {size:,} configurations: a sample of {self.count:,} cannot be drawn")
        bits = np.random.Philox(np.random.SeedSequence((STREAM, self.seed)))
        return np.random.Generator(bits).permutation(size)[: self.count].tolist()

    def number(self, fraction: int) -> int:
        """The number of the shard with the sample's runs of one train fraction, given by its index.

        (seed + 1)·10⁶ + 10·count + fraction: no two samples share a number, and none is that of a shard of the grid.
        """
        assert FRACTIONS * self.count + fraction < PLACES_PER_SEED
        assert 0 <= fraction < FRACTIONS
        return (self.seed + 1) * PLACES_PER_SEED + FRACTIONS * self.count + fraction
