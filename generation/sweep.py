"""The runs of a zoo: a task's grid, or a draw from it, under a protocol and a seed policy."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

from generation.grid import Draw, drawn_shards
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
        """The work of a shard, for a help text."""
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


def own_preset(task: TrainingTask) -> Preset:
    """The protocol of a task file in place of a preset of the paper's."""
    return Preset("own", task.protocol)


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
        return config_name(self.task.name, self.seeds)

    @property
    def shards(self) -> Sequence[int]:
        """The numbers of all shards."""
        return range(self.task.grid.shards) if self.draw is None else tuple(drawn_shards(self.task.grid, self.draw))

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
            runs = self.task.grid.dealt(number)[: self.preset.runs_per_shard]
        else:
            runs = drawn_shards(self.task.grid, self.draw)[number]
        return tuple(finished for run in runs for finished in self._finish(run))

    def _finish(self, run: RunConfig) -> list[RunConfig]:
        """The runs of a configuration under this sweep's protocol and seed policy."""
        if (repeats := repeats_of(self.seeds)) is not None:
            seeds = _repeat_seeds(run, repeats)
        else:
            seeds = [run.seed if self.seeds == SHARED_SEED else _own_seed(run)]
        return [replace(run, protocol=self.preset.protocol, seed=seed) for seed in seeds]


def _own_seed(run: RunConfig, **repeat: int) -> int:
    """A 32-bit seed for this configuration alone, or for one repeat of it: a hash of the hyperparameters (and of
    ``repeat=k``), the same under every protocol."""
    content = {"task": run.task, **run.hyperparameters(), **repeat}
    del content["seed"]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).digest()
    return int.from_bytes(digest[:4], "big")


def _repeat_seeds(run: RunConfig, repeats: int) -> list[int]:
    """The first different values of ``own_seed(run, repeat=k)``, k = 0, 1, …, so that more repeats change none."""
    seeds: dict[int, None] = {}
    for number in count():
        if len(seeds) == repeats:
            break
        seeds[_own_seed(run, repeat=number)] = None
    return list(seeds)
