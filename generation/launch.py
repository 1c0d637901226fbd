"""Trains many shards at once through Ray: one GPU each, or a CPU each where there is no GPU.

    python -m generation.launch --task mnist --shards 0-31             on this machine, with a Ray of its own
    python -m generation.launch --task mnist --address auto --out DIR  on the cluster this machine belongs to
    python -m generation.launch --task mnist --address auto --out s3://bucket/runs

Finished shards are skipped; one whose worker died is given to another and goes on from its last snapshot. On a cluster
DIR is a folder that all machines share. Exit code 1 if any shard is missing in the end; give the command again.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.live import Live

from generation.cluster.heartbeats import Signs
from generation.cluster.ray_tasks import Ended, cluster, import_ray, prepare, train
from generation.cluster.status_table import FINISHED, MISSING, RUNNING, WAITING, Board
from generation.job import Job, add_options, positive
from generation.run import choose_preset, finished_in_place
from generation.sweep import SHARDS
from zoo.command import command, command_parser, one_line

UNFINISHED = 1
POLL_SECONDS = 0.5
BUSY_SECONDS = 10.0
RETRIES = 3


@dataclass(frozen=True)
class Resources:
    """What a shard's task asks Ray for, and how often it is given to another worker."""

    device: str
    cpus: int
    retries: int

    def options(self) -> dict[str, Any]:
        # retries are counted here, not by Ray, so that the table can tell of them
        return {"num_cpus": self.cpus, "num_gpus": 1 if self.device == "cuda" else 0, "max_retries": 0}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("generation.launch", __doc__)
    parser.add_argument("--shards", default=f"0-{SHARDS - 1}", help="which: 0-31 (default), 5, or 0-3,8,10-12")
    parser.add_argument("--address", help="a running Ray cluster: auto, or HOST:PORT; without it, this machine alone")
    parser.add_argument("--cpus", type=positive, default=1, help="CPU cores, and threads, of a shard (1)")
    parser.add_argument("--retries", type=int, default=RETRIES, help="new workers for a shard whose worker died (3)")
    add_options(parser)
    return parser.parse_args(arguments)


def parse_shards(text: str) -> list[int]:
    """``0-3,8`` as numbers, ascending, each once."""
    shards: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not (first.strip().isdecimal() and (last or first).strip().isdecimal()) or part.endswith("-"):
            raise ValueError(f"--shards {text!r} is no list of shards: write 0-31, or 0-3,8,10-12")
        shards |= set(range(int(first), min(int(last or first), SHARDS) + 1))
    if not shards or max(shards) >= SHARDS:
        raise ValueError(f"--shards {text!r}: this sweep has {SHARDS} shards, numbered 0 to {SHARDS - 1}")
    return sorted(shards)


@command
def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    shards = parse_shards(options.shards)
    ray = import_ray()
    with cluster(ray, options.address):
        device = choose_cluster_device(ray, options.device)
        job = Job.of(options, choose_preset(options.preset, torch.device(device)), device).anywhere()
        board = Board(shards, f"{job.sweep.config_name}, preset {job.sweep.preset.name}, into {job.place}")
        before = [shard for shard in shards if finished_in_place(job, shard)]
        with drawing(board) as say:
            for shard in before:
                board.change(shard, state=FINISHED, remark="finished already")
            launch(ray, job, board, Resources(device, options.cpus, options.retries), say)
    if not summarize(job, board, len(before)):
        sys.exit(UNFINISHED)


def choose_cluster_device(ray: Any, name: str) -> str:
    """``auto`` is CUDA where any machine of the cluster has a GPU; this very machine need not have one."""
    gpus = int(ray.cluster_resources().get("GPU", 0))
    if name == "auto":
        return "cuda" if gpus else "cpu"
    if name not in ("cpu", "cuda"):
        raise ValueError(f"--device {name!r}: Ray hands out the devices, name cpu or cuda")
    if name == "cuda" and not gpus:
        raise ValueError("--device cuda: no machine of this Ray cluster has a GPU")
    return name


@contextmanager
def drawing(board: Board) -> Iterator[Any]:
    """The table, live where stderr is a terminal; the function to say a line with, above it or in its stead."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield (
            lambda line, log=True: console.print(line, soft_wrap=True, highlight=False, markup=False) if line else None
        )
        return
    with Live(board, console=console, refresh_per_second=4):
        # what the table shows need not be said as well
        yield lambda line, log=True: console.print(line, highlight=False, markup=False) if line and not log else None


def launch(ray: Any, job: Job, board: Board, resources: Resources, say: Any) -> None:
    """Brings every waiting shard of the board to its end, or to the end of its retries."""
    signs = ray.remote(num_cpus=0, max_restarts=-1)(Signs).remote()
    due = dict.fromkeys(board.of(WAITING), 0.0)
    if due and job.sweep.task == "agnews":
        ended = ask(ray, ray.remote(**resources.options())(prepare).remote(job, signs))
        if ended is None or ended.fault:
            raise ValueError(f"preparing the data: {ended.fault if ended else 'the worker died'}; run again")
    task = ray.remote(**resources.options())(train)
    running: dict[Any, int] = {}
    while due or running:
        for shard in [shard for shard, when in due.items() if when <= time.monotonic()]:
            del due[shard]
            board.change(shard, tries=board.lines[shard].tries + 1)
            running[task.remote(job, shard, resources.cpus, signs)] = shard
        if running:
            done, _ = ray.wait(list(running), timeout=POLL_SECONDS)
        else:
            done = []
            time.sleep(POLL_SECONDS)
        hear(ray, signs, board, set(running.values()), say)
        for reference in done:
            shard = running.pop(reference)
            pause = settle(board, shard, ask(ray, reference), resources.retries, say)
            if pause is not None:
                due[shard] = time.monotonic() + pause


def ask(ray: Any, reference: Any) -> Ended | None:
    """How a task ended; None where its worker or the machine died."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        # a mistake of ours: it keeps its traceback, and the other shards go on
        print(error, file=sys.stderr)
        return Ended(one_line(error.cause))
    # Ray has a dozen names for one fact: whoever was at work on this is gone
    except ray.exceptions.RayError:
        return None


def settle(board: Board, shard: int, ended: Ended | None, retries: int, say: Any) -> float | None:
    """Writes down how a shard's task ended; the seconds to wait before it is tried again, or None."""
    if ended is not None and ended.fault is None:
        say(board.change(shard, state=FINISHED, remark=""))
        return None
    again = board.lines[shard].tries <= retries and (ended is None or ended.busy)
    remark = "its worker died" if ended is None else ended.fault
    say(board.change(shard, state=WAITING if again else MISSING, where="", remark=remark))
    if not again:
        return None
    return BUSY_SECONDS if ended else 0.0


def hear(ray: Any, signs: Any, board: Board, running: set[int], say: Any) -> None:
    """Brings the signs of life of the workers onto the board."""
    try:
        newest, notes = ray.get(signs.read.remote(), timeout=POLL_SECONDS)
    except ray.exceptions.RayError:
        # the actor's machine died or is slow: Ray starts it again elsewhere, and the workers go on telling it
        return
    for note in notes:
        say(f"note: {note}", log=False)
    for shard in running & newest.keys():
        sign = newest[shard]
        epochs = f"{sign.epoch}/{sign.epochs}" if sign.epochs else ""
        say(board.change(shard, state=RUNNING, where=sign.where, epochs=epochs, remark=sign.status))


def summarize(job: Job, board: Board, before: int) -> bool:
    """Looks where the shards should be, prints what became of them, and returns whether all are there."""
    for shard in board.of(FINISHED):
        try:
            if not finished_in_place(job, shard):
                board.change(shard, state=MISSING, remark=f"not in {job.place}: is that a folder all machines share?")
        except (ValueError, OSError) as error:
            board.change(shard, state=MISSING, remark=one_line(error))
    finished, missing = board.of(FINISHED), board.of(MISSING)
    for shard in missing:
        print(f"error: shard {shard} is missing: {board.lines[shard].remark}", file=sys.stderr)
    print(
        f"{len(board.lines)} shards into {job.place}: {len(finished)} finished, {before} of them before, "
        f"{len(missing)} missing"
    )
    return not missing


if __name__ == "__main__":
    main()
