"""A task file's sections about training: its grid of configurations, its seeds and its protocol.

A grid is a union of tables; in each, all values are crossed. Runs of one train fraction share their batches, so a shard
holds one train fraction: of F of them, shard i has that of index i mod F. Inside a train fraction a fixed pseudo-random
permutation deals the configurations to its shards, so that the first shards, F at a time, are an unbiased draw from the
grid. The paper's has 16,000 configurations, 8,000 for {sgd, sgd_momentum} and 8,000 for {adam, rmsprop}
(table:zoo_hyperparameters_configurations), four train fractions, and 32 shards of 500.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from functools import cache
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from msgspec import Meta

from generation.protocol import Epochs, Protocol, RunConfig
from zoo.checked import Count, NotNegative, checked, shown
from zoo.format.hyperparameters import CONFIGURATION, MAX_REPEATS, MIN_REPEATS, SHARED_SEED, TYPES, Hyperparameters
from zoo.format.recipe import SHARED
from zoo.tasks.task_file import TaskFile, find_task

_PERMUTATION_SEED = 2025
MAX_FRACTIONS = 10  # room for the last digit of a shard's number
_MAX_CONFIGURATIONS = 99_999
_DEFAULTS = {
    each.name: field() if each.default is MISSING else field(default=(each.default,))
    for each in fields(Hyperparameters)
}
_Shards: TypeAlias = Annotated[int, Meta(ge=1, le=_MAX_CONFIGURATIONS)] | None
_Seeds: TypeAlias = Literal["shared", "distinct"] | Annotated[int, Meta(ge=MIN_REPEATS, le=MAX_REPEATS)] | None


class _Crossed:
    """Values to cross: an array for each hyperparameter but the seed."""

    train_fraction: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in CONFIGURATION:
            values = getattr(self, name)
            for index, value in enumerate(values):
                if value in values[:index]:
                    raise ValueError(f"{name} names {shown(value)} twice")

    def __len__(self) -> int:
        """The number of configurations."""
        return prod(len(getattr(self, name)) for name in CONFIGURATION)

    def of_fraction(self, fraction: float) -> Iterator[dict[str, Any]]:
        """The configurations of a train fraction."""
        values = [(fraction,) if name == "train_fraction" else getattr(self, name) for name in CONFIGURATION]
        return (dict(zip(CONFIGURATION, crossed, strict=True)) for crossed in product(*values))


_GridSection = make_dataclass(
    "_GridSection",
    [
        *((name, Annotated[tuple[TYPES[name], ...], Meta(min_length=1)], _DEFAULTS[name]) for name in CONFIGURATION),
        ("shards", _Shards, None),
        ("seeds", _Seeds, None),
    ],
    bases=(_Crossed,),
    namespace={"__module__": __name__},  # where a pickle of it, which Ray makes, finds the class
    frozen=True,
    kw_only=True,
)
"""A ``[[grid]]``; ``shards`` and ``seeds`` belong to all of them."""


@dataclass(frozen=True)
class _ProtocolSection:
    """``[protocol]``. What is left out has the paper's value; warm-up and checkpoints its share of the epochs."""

    epochs: Epochs = Protocol.epochs
    warmup_epochs: Epochs | None = None
    batch_size: Count = Protocol.batch_size
    final_learning_rate: NotNegative = Protocol.final_learning_rate
    crop_padding: int = Protocol.crop_padding
    checkpoints: tuple[Epochs, ...] | None = None

    def protocol(self, *, paper: bool) -> Protocol:
        """The paper's checkpoints are named by their share, 50, 75 and 100 %, also where a preset has fewer epochs."""
        short = Protocol().lasting(self.epochs)
        checkpoints = tuple(dict.fromkeys(short.checkpoints.values())) if self.checkpoints is None else self.checkpoints
        return Protocol(
            self.epochs,
            short.warmup_epochs if self.warmup_epochs is None else self.warmup_epochs,
            self.batch_size,
            self.final_learning_rate,
            self.crop_padding,
            None if paper else checkpoints,
        )


@dataclass(frozen=True)
class TrainingTask:
    """A task file as the generator reads it. Its grid is the configurations of all ``tables``."""

    file: TaskFile
    tables: tuple[_Crossed, ...]
    shards: int
    seeds: str
    protocol: Protocol

    @property
    def sha256(self) -> str | None:
        """The hash of its file, where that is not in this package."""
        return None if self.file.is_named else self.file.sha256

    @property
    def fractions(self) -> tuple[float, ...]:
        """The train fractions of all tables, in the order they are named."""
        return tuple(dict.fromkeys(fraction for table in self.tables for fraction in table.train_fraction))

    def dealt(self, shard: int) -> tuple[RunConfig, ...]:
        """The configurations that the fixed permutation deals to a shard, the same for every task with as many."""
        if not 0 <= shard < self.shards:
            last = self.shards - 1
            raise ValueError(f"shard {shard} does not exist: this sweep has {self.shards} shards, numbered 0 to {last}")
        fractions = self.fractions
        part, index = divmod(shard, len(fractions))
        parts = self.shards // len(fractions)
        runs = [run for run in whole(self) if run.train_fraction == fractions[index]]
        order = permutation(len(runs), _PERMUTATION_SEED, index)
        return tuple(runs[row] for row in order[part * len(runs) // parts : (part + 1) * len(runs) // parts])


@cache
def whole(task: TrainingTask) -> tuple[RunConfig, ...]:
    """All configurations of a grid, each once: one train fraction after the other, each in the order of the tables."""
    runs = (
        RunConfig(task=task.file.name, **configuration, seed=SHARED, task_sha256=task.sha256)
        for fraction in task.fractions
        for table in task.tables
        if fraction in table.train_fraction
        for configuration in table.of_fraction(fraction)
    )
    return tuple(dict.fromkeys(runs))


def permutation(size: int, *seed: int) -> list[int]:
    """The rows 0 to size − 1 in an order that depends on the seed alone."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed))).permutation(size).tolist()


def named_task(name: str | Path) -> TrainingTask:
    """``mnist``, ``agnews``, ``shakespeare``, or the path of a task file."""
    return _training_task(find_task(name))


@cache
def _training_task(file: TaskFile) -> TrainingTask:
    sections = tuple(checked(raw, _GridSection, f"{file.where}: [grid] ") for raw in file.content.grid)
    for later in sections[1:]:
        for key in ("shards", "seeds"):
            if getattr(later, key) is not None:
                raise _grid_fault(file, f"{key} belongs in the first [[grid]], since it is about all of them")
    if (count := sum(map(len, sections))) > _MAX_CONFIGURATIONS:
        raise _grid_fault(file, f"is too large: {count:,} configurations, at most {_MAX_CONFIGURATIONS:,}")
    fractions = len({fraction for table in sections for fraction in table.train_fraction})
    if fractions > MAX_FRACTIONS:
        raise _grid_fault(file, f"train_fraction may have {MAX_FRACTIONS} values at most, got {fractions}")
    shards = sections[0].shards or fractions
    if shards % fractions:
        raise _grid_fault(
            file,
            f"shards must be a multiple of {fractions}, the number of train fractions, since the runs of a shard share "
            f"one; got {shards}",
        )
    seeds = SHARED_SEED if sections[0].seeds is None else str(sections[0].seeds)
    section = checked(file.content.protocol, _ProtocolSection, f"{file.where}: [protocol] ")
    try:
        task = TrainingTask(file, sections, shards, seeds, section.protocol(paper=file.is_paper))
    except ValueError as error:
        raise ValueError(f"{file.where}: [protocol] {error}") from error
    runs = Counter(run.train_fraction for run in whole(task))
    if shards > (most := fractions * min(runs.values())):
        raise _grid_fault(
            file, f"shards must leave a run for each: {most:,} at most for {runs.total():,} configurations"
        )
    return task


def _grid_fault(file: TaskFile, problem: str) -> ValueError:
    return ValueError(f"{file.where}: [grid] {problem}")
