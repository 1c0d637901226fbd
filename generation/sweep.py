"""The runs of a zoo: a task's grid, or a draw from it, under a preset's protocol and a seed policy.

A draw of any size takes the place of the grid's shards, for a small zoo without bias: it is drawn from the whole grid
and cut by train fraction into shards, which have numbers of their own.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pandas as pd

from generation.options import SampleSeed
from generation.protocol import Preset, RunConfig
from generation.task import MAX_FRACTIONS, TrainingTask, permutation, whole
from zoo.checked import Count, check_fields
from zoo.format.hyperparameters import SHARED_SEED
from zoo.format.recipe import seeds_by_policy
from zoo.format.record import config_name
from zoo.reading.selection import Selection

_DRAW_SEED = 2026  # keeps draws apart from the permutation that deals the grid to its shards
_NUMBERS_PER_DRAW = 1_000_000
_CHOSEN_BASE, _CHOSEN = 1_100_000_000, 100_000_000  # shard numbers of draws from a part of the grid


@dataclass(frozen=True)
class Draw:
    """``count`` configurations of a grid, each set of that size equally likely.

    A smaller draw of the same seed is the beginning of a larger one. Draws of different seeds are independent, so they
    may share configurations. With ``where``, an expression in its canonical form, the grid is that part of it.
    """

    count: Count
    seed: SampleSeed = 0
    where: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)

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
        return [runs[row] for row in permutation(len(runs), _DRAW_SEED, self.seed)[: self.count]]

    def number(self, fraction: int) -> int:
        """The number of the shard with the draw's runs of one train fraction, given by its index.

        (seed + 1)·10⁶ + 10·count + fraction: no two draws share a number, and none is that of a shard of the grid.
        Of a part of the grid it is 1.1·10⁹ + 10·h + fraction, where h is a hash of where, count and seed below 10⁸.
        """
        assert MAX_FRACTIONS * self.count + fraction < _NUMBERS_PER_DRAW
        assert 0 <= fraction < MAX_FRACTIONS
        if self.where is not None:
            digest = hashlib.sha256(f"{self.count} {self.seed} {self.where}".encode()).digest()
            return _CHOSEN_BASE + MAX_FRACTIONS * (int.from_bytes(digest[:8], "big") % _CHOSEN) + fraction
        return (self.seed + 1) * _NUMBERS_PER_DRAW + MAX_FRACTIONS * self.count + fraction


@cache
def drawn_shards(task: TrainingTask, draw: Draw) -> dict[int, tuple[RunConfig, ...]]:
    """The configurations of a draw by shard: those of one train fraction, in the order they were drawn."""
    drawn = draw.drawn(whole(task))
    shards = {
        draw.number(index): tuple(run for run in drawn if run.train_fraction == fraction)
        for index, fraction in enumerate(task.fractions)
    }
    return {number: runs for number, runs in shards.items() if runs}


@dataclass(frozen=True)
class Sweep:
    """A task's grid, or a draw from it, under a preset and a seed policy: one config of the published zoo."""

    task: TrainingTask
    preset: Preset
    seeds: str = SHARED_SEED
    draw: Draw | None = None

    @property
    def config_name(self) -> str:
        """Name of the config of the zoo that these runs belong to."""
        return config_name(self.task.file.name, self.seeds)

    @property
    def shards(self) -> Sequence[int]:
        """The numbers of all shards."""
        return range(self.task.shards) if self.draw is None else tuple(drawn_shards(self.task, self.draw))

    def title(self, number: int) -> str:
        """The name of a shard in messages."""
        if self.draw is None:
            return f"shard {number} of {len(self.shards)}"
        index, count = self.shards.index(number) + 1, len(self.shards)
        where = f" where {self.draw.where}" if self.draw.where else ""
        return f"shard {number}, part {index} of {count} of sample {self.draw.seed}{where}"

    def shard(self, number: int) -> tuple[RunConfig, ...]:
        """The runs of one shard, repeats of a configuration next to each other.

        A preset with small shards has fewer configurations in those of the grid, not in those of a draw.
        """
        if self.draw is None:
            runs = self.task.dealt(number)[: self.preset.runs_per_shard]
        else:
            runs = drawn_shards(self.task, self.draw)[number]
        return tuple(
            replace(run, protocol=self.preset.protocol, seed=seed)
            for run in runs
            for seed in seeds_by_policy(self.seeds, run.hyperparameters(), run.task)
        )
