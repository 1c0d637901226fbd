"""Trains one shard of the zoo, or a sample: all runs of a shard at once, resumable, and nothing to do when finished.

    python -m generation.run --shard 3                             the paper's grid with a GPU, a small demo without
    python -m generation.run --task agnews --shard 0 --preset demo --out runs --data DIR --device cpu
    python -m generation.run --sample 200 --sample-seed 1          200 configurations of the grid, drawn at random
    python -m generation.run --task digits.toml --shard 0          a task of your own: generation/README.md
    python -m generation.run --list                                the shards
    python -m generation.run --shard 3 --dry-run                   runs, steps, time and size, without training

A run that is killed resumes from its last snapshot when the same command is given again, and ends with the same bytes.
"""

from dataclasses import dataclass
from typing import Annotated

from generation.options import TrainingOptions
from zoo.command import Command, Option


@dataclass(frozen=True, kw_only=True)
class _Options(TrainingOptions):
    shard: Annotated[int | None, Option("which shard to train, from 0 on; the paper's tasks have 32", "N")] = None
    list: Annotated[bool, Option("list the shards and how much of them is finished")] = False
    dry_run: Annotated[bool, Option("print what it would take to train them, by timing a few steps, and end")] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shard is not None and self.sample is not None:
            raise ValueError("--sample takes the place of --shard: give one of them")
        if self.list and (self.shard is not None or self.dry_run):
            raise ValueError("--list shows all shards: leave out --shard and --dry-run")
        if self.shard is None and self.sample is None and not self.list and not self.dry_run:
            raise ValueError("name a shard with --shard 0, 1, …, draw a --sample, or --list them")


_command = Command(__name__, "generation.run", __doc__, _Options)

from rich.table import Table

from generation.estimate import describe_work
from generation.job import Job
from generation.shard import train_shard
from zoo.command import how_many
from zoo.device import choose_device
from zoo.terminal import PlainConsole


def _list_shards(job: Job) -> None:
    sweep = job.sweep
    epochs = sweep.preset.protocol.epochs
    table = Table(title=f"{sweep.config_name}, preset {sweep.preset.name}: {epochs} epochs per run")
    for heading in ("shard", "train fraction", "runs", "state"):
        table.add_column(heading, justify="right" if heading != "state" else "left")
    for shard in sweep.shards:
        configs, record = job.configs(shard), job.finished(shard)
        if record is None:
            state = "begun" if job.folder(shard).is_dir() else ""
        elif difference := job.difference(shard, record):
            state = f"holds a finished shard {difference}"
        else:
            held = "finished" if record.runs == len(configs) else f"{record.runs} of {how_many(len(configs), 'run')}"
            state = f"{held}, preset {record.preset}"
        table.add_row(str(shard), str(configs[0].train_fraction), str(len(configs)), state)
    PlainConsole().print(table)


@_command
def main(options: _Options) -> None:
    job = Job.of(options, str(choose_device(options.device)))
    shards = job.sweep.shards if options.shard is None else (options.shard,)
    if options.list:
        _list_shards(job)
    elif options.dry_run:
        PlainConsole().print(describe_work(job, shards), soft_wrap=True)
    else:
        for shard in shards:
            train_shard(job, shard)
