"""Which runs make the zoo: a task's grid, or a sample of it, under a protocol and a seed policy."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

from generation.grid import Sample, sampled
from generation.protocol import Protocol, RunConfig
from generation.task import TrainingTask
from zoo.format.record import SHARED_SEED, config_name, repeats_of


@dataclass(frozen=True)
class Preset:
    """How much of the paper's work a sweep does: all of it, fewer epochs, or a small taste."""

    name: str
    protocol: Protocol
    runs_per_shard: int | None = None  # None: all
    train_examples: int | None = None  # None: the whole training set

    @property
    def summary(self) -> str:
        """For a help text: what a shard of it costs."""
        runs = "all runs" if self.runs_per_shard is None else f"{self.runs_per_shard} runs"
        examples = "" if self.train_examples is None else f" on {self.train_examples:,} examples"
        return f"{self.name}, {runs} of {self.protocol.epochs} epochs{examples}"


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("paper", Protocol(), runs_per_shard=500),
        Preset("lite", Protocol.shortened(20), runs_per_shard=500),
        Preset("demo", Protocol.shortened(6), runs_per_shard=8, train_examples=4000),
    )
}


OWN_PRESET = "own"
"""What the protocol of a task file is called where a preset of the paper's would be named."""


def own_preset(task: TrainingTask) -> Preset:
    return Preset(OWN_PRESET, task.protocol)


@dataclass(frozen=True)
class Sweep:
    """A task's grid, or a sample of it, under a preset and a seed policy: one configuration of the published zoo."""

    task: TrainingTask
    preset: Preset
    seeds: str = SHARED_SEED
    sample: Sample | None = None

    @property
    def config_name(self) -> str:
        """Name of the zoo's configuration that these runs belong to."""
        return config_name(self.task.name, self.seeds)

    @property
    def shards(self) -> Sequence[int]:
        """The numbers of all shards."""
        return range(self.task.grid.shards) if self.sample is None else tuple(sampled(self.task.grid, self.sample))

    def title(self, number: int) -> str:
        """What a shard is called in messages."""
        if self.sample is None:
            return f"shard {number} of {len(self.shards)}"
        place, count = self.shards.index(number) + 1, len(self.shards)
        where = f" where {self.sample.where}" if self.sample.where else ""
        return f"shard {number}, part {place} of {count} of sample {self.sample.seed}{where}"

    def shard(self, number: int) -> tuple[RunConfig, ...]:
        """The runs of one shard, repeats of a configuration next to each other.

        A preset with small shards has fewer configurations in those of the grid, not in those of a sample.
        """
        if self.sample is None:
            runs = self.task.grid.dealt(number)[: self.preset.runs_per_shard]
        else:
            runs = sampled(self.task.grid, self.sample)[number]
        return tuple(finished for run in runs for finished in self._finish(run))

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
    content = {"task": run.task, **run.hyperparameters(), **repeat}
    del content["seed"]
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
