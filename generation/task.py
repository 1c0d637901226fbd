"""What a task file says about training: its grid, its seeds and its protocol."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from generation.grid import Grid, GridTable, whole
from generation.protocol import MAX_CROP_PADDING, Protocol
from generation.sample import FRACTIONS
from zoo.format.record import MAX_REPEATS, MIN_REPEATS, SEED_POLICIES, SHARED_SEED
from zoo.format.schema import OPTIMIZERS
from zoo.storage.untrusted import is_finite
from zoo.tasks.task_file import TaskFile, find_task
from zoo.tasks.toml_table import REQUIRED, TomlTable, shown

MAX_CONFIGURATIONS = 99_999
MAX_EPOCHS, MAX_BATCH, MAX_CHECKPOINTS = 10_000, 1 << 16, 16


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
    tables = file.content.tables("grid")
    shards, seeds = read_shards(tables[0]), read_seeds(tables[0])
    values = tuple(read_grid(table) for table in tables)
    tables[0].finish()
    for table in tables[1:]:
        for key in ("shards", "seeds"):
            if key in table.values:
                raise table.fault(key, "belongs in the first [[grid]], since it is about all of them")
        table.finish()
    if (count := sum(table.configurations() for table in values)) > MAX_CONFIGURATIONS:
        raise tables[0].fault("is too large:", f"{count:,} configurations, at most {MAX_CONFIGURATIONS:,}")
    fractions = len({fraction for table in values for fraction in table.train_fraction})
    if fractions > FRACTIONS:
        raise tables[0].fault("train_fraction", f"may have {FRACTIONS} values at most, got {fractions}")
    if shards is None:
        shards = fractions
    if shards % fractions:
        raise tables[0].fault(
            "shards",
            f"must be a multiple of {fractions}, the number of train fractions, since the runs of a shard share one; "
            f"got {shards}",
        )
    grid = Grid(file.name, None if file.is_paper else file.sha256, values, shards)
    least = min(len(grid.of_fraction(fraction)) for fraction in grid.fractions)
    if shards // fractions > least:
        raise tables[0].fault(
            "shards",
            f"must leave a run for each: {least * fractions:,} at most for {len(whole(grid)):,} configurations",
        )
    return TrainingTask(file, grid, seeds, read_protocol(file.content.table("protocol", {}), paper=file.is_paper))


def read_shards(table: TomlTable) -> int | None:
    return table.integer("shards", None, most=MAX_CONFIGURATIONS)


def read_seeds(table: TomlTable) -> str:
    """A policy by name, or how often each configuration is trained, as text."""
    value = table.values.get("seeds", SHARED_SEED)
    if isinstance(value, int) and not isinstance(value, bool) and MIN_REPEATS <= value <= MAX_REPEATS:
        table.known.append("seeds")
        return str(value)
    allowed = f"{' or '.join(map(repr, SEED_POLICIES))} or a whole number from {MIN_REPEATS} to {MAX_REPEATS:,}"
    if value not in SEED_POLICIES:
        raise table.fault("seeds", f"must be {allowed}, got {shown(value)}")
    return table.text("seeds", SHARED_SEED, choices=SEED_POLICIES)


def read_grid(table: TomlTable) -> GridTable:
    """The six hyperparameters; those that switch something off do so where they are left out."""

    def numbers(key: str, default: Any, allowed: str, accept: Any) -> tuple[float, ...]:
        values = table.list_of(key, default, allowed=allowed, accept=lambda value: is_finite(value) and accept(value))
        return tuple(float(value) for value in values)

    return GridTable(
        optimizer=table.list_of("optimizer", allowed=", ".join(OPTIMIZERS), accept=lambda value: value in OPTIMIZERS),
        learning_rate=numbers("learning_rate", REQUIRED, "positive numbers", lambda value: value > 0),
        weight_decay=numbers("weight_decay", (0.0,), "numbers of at least 0", lambda value: value >= 0),
        init_std=numbers("init_std", REQUIRED, "positive numbers", lambda value: value > 0),
        dropout=numbers("dropout", (0.0,), "numbers from 0 to 0.99", lambda value: 0 <= value <= 0.99),
        train_fraction=numbers("train_fraction", (1.0,), "numbers above 0, at most 1", lambda value: 0 < value <= 1),
    )


def read_protocol(table: TomlTable, *, paper: bool) -> Protocol:
    """What is left out has the paper's value; warm-up and checkpoints the paper's share of the epochs.

    The paper's checkpoints are named by their share, 50, 75 and 100 %, also where a preset has fewer epochs.
    """
    default = Protocol()
    epochs = table.integer("epochs", default.epochs, most=MAX_EPOCHS)
    short = Protocol.shortened(epochs)
    checkpoints = table.list_of(
        "checkpoints",
        tuple(dict.fromkeys(short.checkpoints.values())),
        allowed=f"epochs from 1 to {epochs:,}",
        accept=lambda value: type(value) is int and 1 <= value <= epochs,
    )
    if list(checkpoints) != sorted(checkpoints) or len(checkpoints) > MAX_CHECKPOINTS:
        raise table.fault(
            "checkpoints", f"must ascend, and be {MAX_CHECKPOINTS} at most, got {shown(list(checkpoints))}"
        )
    protocol = Protocol(
        epochs=epochs,
        warmup_epochs=table.integer("warmup_epochs", short.warmup_epochs, most=epochs),
        batch_size=table.integer("batch_size", default.batch_size, most=MAX_BATCH),
        final_learning_rate=table.number(
            "final_learning_rate",
            default.final_learning_rate,
            allowed="a number of at least 0",
            accept=lambda value: value >= 0,
        ),
        crop_padding=table.integer("crop_padding", default.crop_padding, least=0, most=MAX_CROP_PADDING),
        checkpoint_epochs=None if paper else checkpoints,
    )
    table.finish()
    return protocol
