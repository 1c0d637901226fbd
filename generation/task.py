"""The sections of a task file about training: its grid, its seeds and its protocol."""

from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from generation.grid import FRACTIONS, Grid, GridTable, whole
from generation.protocol import Epochs, Protocol
from zoo.checked import Count, NotNegative, checked, shown
from zoo.format.hyperparameters import CONFIGURATION, TYPES, Hyperparameters
from zoo.format.record import MAX_REPEATS, MIN_REPEATS, SHARED_SEED
from zoo.tasks.task_file import TaskFile, find_task

_MAX_CONFIGURATIONS = 99_999
_DEFAULTS = {
    each.name: field() if each.default is MISSING else field(default=(each.default,))
    for each in fields(Hyperparameters)
}
_Shards: TypeAlias = Annotated[int, Meta(ge=1, le=_MAX_CONFIGURATIONS)] | None
_Seeds: TypeAlias = Literal["shared", "distinct"] | Annotated[int, Meta(ge=MIN_REPEATS, le=MAX_REPEATS)] | None
_GridSection = make_dataclass(
    "_GridSection",
    [
        *((name, Annotated[tuple[TYPES[name], ...], Meta(min_length=1)], _DEFAULTS[name]) for name in CONFIGURATION),
        ("shards", _Shards, None),
        ("seeds", _Seeds, None),
    ],
    frozen=True,
    kw_only=True,
)
"""A ``[[grid]]``: an array of values for each hyperparameter; ``shards`` and ``seeds`` belong to all of them."""


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
        short = Protocol.shortened(self.epochs)
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
    """A task file as the generator reads it."""

    file: TaskFile
    grid: Grid
    seeds: str
    protocol: Protocol

    @property
    def name(self) -> str:
        return self.file.name


def named_task(name: str | Path) -> TrainingTask:
    """``mnist``, ``agnews``, or the path of a task file."""
    return training_task(find_task(name))


@cache
def training_task(file: TaskFile) -> TrainingTask:
    sections = [checked(raw, _GridSection, f"{file.where}: [grid] ") for raw in file.content.grid]
    values = tuple(GridTable(_distinct(section, file.where)) for section in sections)
    for later in sections[1:]:
        for key in ("shards", "seeds"):
            if getattr(later, key) is not None:
                raise _grid_fault(file, f"{key} belongs in the first [[grid]], since it is about all of them")
    if (count := sum(map(len, values))) > _MAX_CONFIGURATIONS:
        raise _grid_fault(file, f"is too large: {count:,} configurations, at most {_MAX_CONFIGURATIONS:,}")
    fractions = len({fraction for table in values for fraction in table.train_fraction})
    if fractions > FRACTIONS:
        raise _grid_fault(file, f"train_fraction may have {FRACTIONS} values at most, got {fractions}")
    shards = sections[0].shards or fractions
    if shards % fractions:
        raise _grid_fault(
            file,
            f"shards must be a multiple of {fractions}, the number of train fractions, since the runs of a shard share "
            f"one; got {shards}",
        )
    grid = Grid(file.name, None if file.is_paper else file.sha256, values, shards)
    least = min(len(grid.of_fraction(fraction)) for fraction in grid.fractions)
    if shards // fractions > least:
        raise _grid_fault(
            file,
            f"shards must leave a run for each: {least * fractions:,} at most for {len(whole(grid)):,} configurations",
        )
    seeds = SHARED_SEED if sections[0].seeds is None else str(sections[0].seeds)
    section = checked(file.content.protocol, _ProtocolSection, f"{file.where}: [protocol] ")
    try:
        return TrainingTask(file, grid, seeds, section.protocol(paper=file.is_paper))
    except ValueError as error:
        raise ValueError(f"{file.where}: [protocol] {error}") from error


def _grid_fault(file: TaskFile, problem: str) -> ValueError:
    return ValueError(f"{file.where}: [grid] {problem}")


def _distinct(section: Any, where: str) -> tuple[tuple[Any, ...], ...]:
    """The values of each hyperparameter, none of them twice."""
    for name in CONFIGURATION:
        values = getattr(section, name)
        for index, value in enumerate(values):
            if value in values[:index]:
                raise ValueError(f"{where}: [grid] {name} names {shown(value)} twice")
    return tuple(getattr(section, name) for name in CONFIGURATION)
