"""Trains one shard of the zoo, or a sample: all runs of a shard at once, resumable, and nothing to do when finished.

    python -m generation.run --shard 3                             the paper's grid with a GPU, a small demo without
    python -m generation.run --task agnews --shard 0 --preset demo --out runs --data DIR --device cpu
    python -m generation.run --sample 200 --sample-seed 1          200 configurations of the grid, drawn at random
    python -m generation.run --task digits.toml --shard 0          a task of your own: generation/README.md
    python -m generation.run --list                                the shards

A run that is killed resumes from its last snapshot when the same command is given again, and ends with the same bytes.
"""

import argparse

from rich.table import Table

from generation.job import Job, add_options, choose_preset
from generation.shard import train_shard
from generation.task import named_task
from zoo.command import command, command_parser
from zoo.device import choose_device
from zoo.terminal import PlainConsole


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("generation.run", __doc__)
    parser.add_argument("--shard", type=int, help="which shard to train, from 0 on; the paper's tasks have 32")
    parser.add_argument("--list", action="store_true", help="list the shards and which of them are finished")
    add_options(parser)
    options = parser.parse_args(arguments)
    if options.shard is not None and options.sample is not None:
        parser.error("--sample takes the place of --shard: give one of them")
    if options.shard is not None and options.list:
        parser.error("--list shows all shards: leave out --shard")
    if options.shard is None and options.sample is None and not options.list:
        parser.error("name a shard with --shard 0, 1, …, draw a --sample, or --list them")
    return options


@command
def main(arguments: list[str] | None = None) -> None:
    options = _parse(arguments)
    task = named_task(options.task)
    job = Job.of(options, task, choose_preset(task, options.preset, choose_device(options.device)), options.device)
    if options.list:
        _list_shards(job)
    else:
        for shard in job.sweep.shards if options.sample is not None else (options.shard,):
            train_shard(job, shard)


def _list_shards(job: Job) -> None:
    sweep = job.sweep
    epochs = sweep.preset.protocol.epochs
    table = Table(title=f"{sweep.config_name}, preset {sweep.preset.name}: {epochs} epochs per run")
    for heading in ("shard", "train fraction", "runs", "state"):
        table.add_column(heading, justify="right" if heading != "state" else "left")
    for shard in sweep.shards:
        configs, record = job.configs(shard), job.finished(shard)
        begun = "begun" if job.folder(shard).is_dir() else ""
        state = f"finished, preset {record.preset}" if record else begun
        table.add_row(str(shard), str(configs[0].train_fraction), str(len(configs)), state)
    PlainConsole().print(table)


if __name__ == "__main__":
    main()
