"""Which runs make the zoo: the paper's grid, cut into shards.

Each task has 16,000 configurations, 8,000 for {sgd, sgd_momentum} and 8,000 for {adam, rmsprop}
(table:zoo_hyperparameters_configurations). Runs of one train fraction share their batches, so a shard holds one train
fraction: shard i that of index i mod 4. Inside a train fraction a fixed pseudo-random permutation deals the 4,000
configurations to 8 shards of 500, so that the first shards, four at a time, are an unbiased sample of the grid.

A sample of any size takes the place of these shards: it is drawn from all 16,000 configurations and cut by train
fraction into at most four shards, whose numbers are its own.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import count, product

import numpy as np

from generation.protocol import Protocol, RunConfig
from generation.sample import Sample
from zoo.format.record import SHARED_SEED, config_name, repeats_of
from zoo.transformer.spec import spec_for

TRAIN_FRACTIONS = (1.0, 0.9, 0.8, 0.7)
DROPOUTS = (0.2, 0.15, 0.1, 0.05, 0.0)
WEIGHT_DECAYS = (1e-8, 1e-7, 1e-6, 1e-4, 1e-2)
SHARDS = 32
PERMUTATION_SEED = 2025

SEED = 0  # the one that all runs share, unless they have their own


@dataclass(frozen=True)
class OptimizerGrid:
    """The values that depend on the optimizer; they are crossed with each other and with those that do not."""

    optimizers: tuple[str, ...]
    learning_rates: tuple[float, ...]
    init_stds: tuple[float, ...]


OPTIMIZER_GRIDS = (
    OptimizerGrid(
        optimizers=("sgd", "sgd_momentum"),
        learning_rates=(1e-3, 3e-3, 5e-3, 7e-3, 1e-2, 3e-2, 5e-2, 7e-2),
        init_stds=(0.1, 0.15, 0.2, 0.25, 0.3),
    ),
    OptimizerGrid(
        optimizers=("adam", "rmsprop"),
        learning_rates=(3e-4, 5e-4, 1e-3, 3e-3, 5e-3, 1e-2, 3e-2, 5e-2),
        init_stds=(0.1, 0.2, 0.3, 0.4, 0.5),
    ),
)


@dataclass(frozen=True)
class Preset:
    """How much of the paper's work a sweep does: all of it, fewer epochs, or a small taste."""

    name: str
    protocol: Protocol
    runs_per_shard: int = 500
    train_examples: int | None = None  # None: the whole training set

    def __post_init__(self) -> None:
        assert 1 <= self.runs_per_shard <= 500

    @property
    def summary(self) -> str:
        """For a help text: what a shard of it costs."""
        examples = "" if self.train_examples is None else f" on {self.train_examples:,} examples"
        return f"{self.name}, {self.runs_per_shard} runs of {self.protocol.epochs} epochs{examples}"


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("paper", Protocol()),
        Preset("lite", Protocol.shortened(20)),
        Preset("demo", Protocol.shortened(6), runs_per_shard=8, train_examples=4000),
    )
}


@dataclass(frozen=True)
class Sweep:
    """A task's grid, or a sample of it, under a preset and a seed policy: one configuration of the published zoo."""

    task: str
    preset: Preset
    seeds: str = SHARED_SEED
    sample: Sample | None = None

    @property
    def config_name(self) -> str:
        """Name of the zoo's configuration that these runs belong to."""
        return config_name(self.task, self.seeds)

    @property
    def shards(self) -> tuple[int, ...]:
        """The numbers of all shards."""
        return tuple(range(SHARDS)) if self.sample is None else tuple(sampled_grid(self.task, self.sample))

    def title(self, number: int) -> str:
        """What a shard is called in messages."""
        if self.sample is None:
            return f"shard {number} of {SHARDS}"
        place, count = self.shards.index(number) + 1, len(self.shards)
        return f"shard {number}, part {place} of {count} of sample {self.sample.seed}"

    def shard(self, number: int) -> tuple[RunConfig, ...]:
        """The runs of one shard, repeats of a configuration next to each other.

        A preset with small shards has fewer configurations in those of the grid, not in those of a sample.
        """
        if self.sample is None:
            runs = self._dealt(number)[: self.preset.runs_per_shard]
        else:
            runs = sampled_grid(self.task, self.sample)[number]
        return tuple(finished for run in runs for finished in self._finish(run))

    def _dealt(self, index: int) -> tuple[RunConfig, ...]:
        """The configurations that the fixed permutation deals to a shard of the grid."""
        if not 0 <= index < SHARDS:
            raise ValueError(
                f"shard {index} does not exist: this sweep has {SHARDS} shards, numbered 0 to {SHARDS - 1}"
            )
        fraction, part = index % len(TRAIN_FRACTIONS), index // len(TRAIN_FRACTIONS)
        full = permuted_grid(self.task, fraction)
        size = len(full) * len(TRAIN_FRACTIONS) // SHARDS
        return full[part * size : (part + 1) * size]

    def _finish(self, run: RunConfig) -> list[RunConfig]:
        """The runs of a configuration under this sweep's protocol and seed policy."""
        if (repeats := repeats_of(self.seeds)) is not None:
            seeds = repeat_seeds(run, repeats)
        else:
            seeds = [run.seed if self.seeds == SHARED_SEED else own_seed(run)]
        return [replace(run, protocol=self.preset.protocol, seed=seed) for seed in seeds]


def own_seed(run: RunConfig, **repeat: int) -> int:
    """A 32-bit seed for this configuration alone, or for one repeat of it: a hash of the hyperparameters (and of
    ``repeat=k``), the same under every protocol."""
    content = {name: value for name, value in asdict(run).items() if name not in ("seed", "protocol")} | repeat
    digest = hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).digest()
    return int.from_bytes(digest[:4], "big")


def repeat_seeds(run: RunConfig, repeats: int) -> list[int]:
    """The first different values of ``own_seed(run, repeat=k)``, k = 0, 1, …, so that more repeats change none."""
    seeds: dict[int, None] = {}
    for number in count():
        if len(seeds) == repeats:
            break
        seeds[own_seed(run, repeat=number)] = None
    return list(seeds)


def grid(task: str, train_fraction: float) -> list[RunConfig]:
    """All 4,000 configurations of a train fraction, in the order of the table."""
    spec_for(task)
    return [
        RunConfig(task, optimizer, learning_rate, weight_decay, init_std, dropout, train_fraction, SEED)
        for optimizers in OPTIMIZER_GRIDS
        for optimizer, learning_rate, weight_decay, init_std, dropout in product(
            optimizers.optimizers, optimizers.learning_rates, WEIGHT_DECAYS, optimizers.init_stds, DROPOUTS
        )
    ]


@cache
def permuted_grid(task: str, fraction_index: int) -> tuple[RunConfig, ...]:
    """A train fraction's grid in its fixed random order, the same for both tasks."""
    runs = grid(task, TRAIN_FRACTIONS[fraction_index])
    bits = np.random.Philox(np.random.SeedSequence((PERMUTATION_SEED, fraction_index)))
    return tuple(runs[i] for i in np.random.Generator(bits).permutation(len(runs)))


@cache
def whole_grid(task: str) -> tuple[RunConfig, ...]:
    """All 16,000 configurations, one train fraction after the other."""
    return tuple(run for fraction in TRAIN_FRACTIONS for run in grid(task, fraction))


@cache
def sampled_grid(task: str, sample: Sample) -> dict[int, tuple[RunConfig, ...]]:
    """The configurations of a sample by shard: those of one train fraction, in the order they were drawn."""
    whole = whole_grid(task)
    drawn = [whole[place] for place in sample.places(len(whole))]
    shards = {
        sample.number(index): tuple(run for run in drawn if run.train_fraction == fraction)
        for index, fraction in enumerate(TRAIN_FRACTIONS)
    }
    return {number: runs for number, runs in shards.items() if runs}
