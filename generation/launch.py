"""Trains many shards at once through Ray: one GPU each, or a CPU each where there is no GPU.

    python -m generation.launch --task mnist --shards 0-31             on this machine, with its own Ray
    python -m generation.launch --task mnist --address auto --out DIR  on the cluster this machine belongs to
    python -m generation.launch --task mnist --sample 2000             configurations of the grid, drawn at random
    python -m generation.launch --task mnist --address auto --out s3://bucket/runs

Finished shards are skipped; one whose worker died is given to another and resumes from its last snapshot. On a cluster
DIR is a folder that all machines share. Exit code 1 if any shard is missing in the end; give the command again.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from rich.live import Live

from generation.cluster.launcher import Launcher, Resources
from generation.cluster.ray_tasks import cluster, import_ray
from generation.cluster.status_table import FINISHED, MISSING, StatusTable
from generation.grid import sampled
from generation.job import Job, add_options, check_preset, choose_preset, chosen_sample
from generation.task import named_task
from zoo.command import command, command_parser, not_negative, one_line, positive
from zoo.terminal import PlainConsole, printable

UNFINISHED = 1
RETRIES = 3
DEVICES = ("auto", "cpu", "cuda")
Say = Callable[[str], None]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("generation.launch", __doc__)
    parser.add_argument("--shards", help="such as 5, 0-31, or 0-3,8,10-12 (default: all)")
    parser.add_argument("--address", help="a running Ray cluster: auto, or HOST:PORT (default: this machine alone)")
    parser.add_argument("--cpus", type=positive, default=1, help="CPU cores, and threads, per shard")
    parser.add_argument(
        "--retries",
        type=not_negative,
        default=RETRIES,
        help="new workers for a shard whose worker died",
    )
    add_options(parser)
    options = parser.parse_args(arguments)
    if options.shards is not None and options.sample is not None:
        parser.error("--sample takes the place of --shards: give one of them")
    return options


def parse_shards(text: str, count: int) -> list[int]:
    """``0-3,8`` as numbers, ascending, each once."""
    shards: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not (first.strip().isdecimal() and (last or first).strip().isdecimal()) or part.endswith("-"):
            raise ValueError(f"--shards {text!r} is not a list of shards: write 0-31, or 0-3,8,10-12")
        low, high = int(first), int(last or first)
        if high < low:
            raise ValueError(f"--shards {text!r}: a range goes up, as in {high}-{low}")
        if high >= count:
            raise ValueError(f"--shards {text!r}: this sweep has {count} shards, numbered 0 to {count - 1}")
        shards |= set(range(low, high + 1))
    return sorted(shards)


@command
def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    # what is wrong with any of these should be known before a cluster starts
    task = named_task(options.task)
    chosen = None if options.shards is None else parse_shards(options.shards, task.grid.shards)
    check_preset(task, options.preset)
    if (sample := chosen_sample(options)) is not None:
        sampled(task.grid, sample)
    if options.device not in DEVICES:
        raise ValueError(f"--device {options.device!r}: Ray hands out the devices, name cpu or cuda")
    ray = import_ray(options.address)
    with cluster(ray, options.address):
        device = choose_cluster_device(ray, options.device)
        resources = Resources(device, options.cpus, options.retries)
        resources.check(ray)
        job = Job.of(options, task, choose_preset(task, options.preset, torch.device(device)), device).anywhere()
        shards = chosen or list(job.sweep.shards)
        table = StatusTable(shards, f"{job.sweep.config_name}, preset {job.sweep.preset.name}, into {job.place}")
        before = [shard for shard in shards if job.is_finished(shard)]
        for shard in before:
            table.change(shard, state=FINISHED, remark="finished already")
        with drawing(table) as (log, say):
            Launcher(ray, job, table, resources, log=log, say=say).run()
    if not summarize(job, table, len(before)):
        sys.exit(UNFINISHED)


def choose_cluster_device(ray: Any, name: str) -> str:
    """``auto`` is CUDA where any machine of the cluster has a GPU; this very machine need not have one."""
    gpus = int(ray.cluster_resources().get("GPU", 0))
    if name == "auto":
        return "cuda" if gpus else "cpu"
    if name == "cuda" and not gpus:
        raise ValueError("--device cuda: no machine of this Ray cluster has a GPU")
    return name


@contextmanager
def drawing(table: StatusTable) -> Iterator[tuple[Say, Say]]:
    """The table, live where stderr is a terminal; how to log a change of it, and how to say anything else."""
    console = PlainConsole(stderr=True)

    def say(line: str) -> None:
        console.print(line, soft_wrap=not console.is_terminal)

    if not console.is_terminal:
        yield say, say
        return
    with Live(table, console=console, refresh_per_second=4):
        # what the table shows need not be said as well
        yield lambda line: None, say


def summarize(job: Job, table: StatusTable, before: int) -> bool:
    """Looks where the shards should be, prints what became of them, and returns whether all are there."""
    for shard in table.in_state(FINISHED):
        try:
            if not job.is_finished(shard):
                table.change(shard, state=MISSING, remark=f"not in {job.place}: is that a folder all machines share?")
        except (ValueError, OSError) as error:
            table.change(shard, state=MISSING, remark=one_line(error))
    finished, missing = table.in_state(FINISHED), table.in_state(MISSING)
    for shard in missing:
        print(f"error: shard {shard} is missing: {printable(table.shards[shard].remark)}", file=sys.stderr)
    print(
        f"{len(table.shards)} shards into {job.place}: {len(finished)} finished, {before} of them before, "
        f"{len(missing)} missing"
    )
    return not missing


if __name__ == "__main__":
    main()
