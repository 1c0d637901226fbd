"""Trains many shards at once through Ray: one GPU each, or a CPU each where there is no GPU.

    python -m generation.launch --task mnist --shards 0-31             on this machine, with its own Ray
    python -m generation.launch --task mnist --address auto --out DIR  on the cluster this machine belongs to
    python -m generation.launch --task mnist --sample 2000             configurations of the grid, drawn at random
    python -m generation.launch --task mnist --address auto --out s3://bucket/runs

Finished shards are skipped; one whose worker died is given to another and resumes from its last snapshot. On a cluster
DIR is a folder that all machines share. Exit code 1 if any shard is missing in the end; give the command again.
"""

from dataclasses import dataclass, replace
from typing import Annotated

from generation.options import TrainingOptions
from zoo.checked import Count, CountOrZero
from zoo.command import Command, Option


@dataclass(frozen=True, kw_only=True)
class _Options(TrainingOptions):
    shards: Annotated[str | None, Option("such as 5, 0-31, or 0-3,8,10-12 (default: all)")] = None
    address: Annotated[
        str | None, Option("a running Ray cluster: auto, or HOST:PORT (default: this machine alone)")
    ] = None
    cpus: Annotated[Count, Option("CPU cores, and threads, per shard", "N")] = 1
    retries: Annotated[CountOrZero, Option("new workers for a shard whose worker died", "N")] = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shards is not None and self.sample is not None:
            raise ValueError("--sample takes the place of --shards: give one of them")
        if self.device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"--device {self.device!r}: Ray hands out the devices, name cpu or cuda")


_command = Command(__name__, "generation.launch", __doc__, _Options)

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.live import Live
from rich.table import Table
from rich.text import Text

from generation.job import Job, chosen_draw
from generation.ray_tasks import cluster, import_ray, prepare, train
from generation.sweep import drawn_shards
from generation.task import named_task
from zoo.command import how_many, one_line, printable
from zoo.storage.atomic import Busy
from zoo.terminal import PlainConsole

_UNFINISHED = 1
_POLL_SECONDS = 0.5
_WAITING, _RUNNING, _FINISHED, _MISSING = "waiting", "running", "finished", "missing"
_STYLES = {_WAITING: "dim", _RUNNING: "cyan", _FINISHED: "green", _MISSING: "bold red"}
_Print = Callable[[str], None]


def _parse_shards(text: str, count: int) -> list[int]:
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


@_command
def main(options: _Options) -> None:
    # faults in any of these should be found before a cluster starts
    grid = named_task(options.task).grid
    chosen = None if options.shards is None else _parse_shards(options.shards, grid.shards)
    if (draw := chosen_draw(options)) is not None:
        drawn_shards(grid, draw)
    # Ray gives a task that ran out of memory to other workers forever unless it is limited
    os.environ.setdefault("RAY_task_oom_retries", str(options.retries))
    ray = import_ray(options.address)
    with cluster(ray, options.address):
        device = _choose_cluster_device(ray, options.device)
        _check_cpus(ray, options.cpus, device)
        job = Job.of(options, device).anywhere()
        shards = chosen or list(job.sweep.shards)
        table = _StatusTable(shards, f"{job.sweep.config_name}, preset {job.sweep.preset.name}, into {job.destination}")
        before = [shard for shard in shards if job.is_finished(shard)]
        for shard in before:
            table.change(shard, state=_FINISHED, remark="finished already")
        with _drawing(table) as (log, say):
            _train_shards(ray, job, table, options.cpus, options.retries, log, say)
    if not _summarize(job, table, len(before)):
        sys.exit(_UNFINISHED)


def _choose_cluster_device(ray: Any, name: str) -> str:
    """``auto`` is CUDA where any machine of the cluster has a GPU; this very machine need not have one."""
    gpus = int(ray.cluster_resources().get("GPU", 0))
    if name == "auto":
        return "cuda" if gpus else "cpu"
    if name == "cuda" and not gpus:
        raise ValueError("--device cuda: no machine of this Ray cluster has a GPU")
    return name


def _check_cpus(ray: Any, cpus: int, device: str) -> None:
    """Refuses more CPU cores than any one machine has; Ray would wait for such a machine forever."""
    gpu = device == "cuda"
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    most = max((int(machine.get("CPU", 0)) for machine in machines if not gpu or machine.get("GPU")), default=0)
    if cpus > most:
        machine = "machine with a GPU" if gpu else "machine"
        raise ValueError(f"--cpus {cpus}: the cluster's largest {machine} has {most} CPU cores")


@dataclass(frozen=True)
class _ShardStatus:
    """One shard: its state, the worker that trains it, its progress, and a remark."""

    state: str = _WAITING
    worker: str = ""
    epochs: str = ""
    remark: str = ""
    tries: int = 0


class _StatusTable:
    """The status of each shard, as a table that is drawn again while it changes."""

    def __init__(self, shards: Iterable[int], title: str) -> None:
        self.title = title
        self.shards = dict.fromkeys(shards, _ShardStatus())

    def change(self, shard: int, **values: object) -> str | None:
        """Changes the status of a shard; returns a line where the change is worth one, for logs without a table."""
        old = self.shards[shard]
        new = self.shards[shard] = replace(old, **values)  # pyright: ignore[reportArgumentType]
        if (old.state, old.worker, old.tries) == (new.state, new.worker, new.tries):
            return None
        parts = (new.state, f"on {new.worker}" if new.worker else "", new.epochs, new.remark)
        return f"shard {shard}: {', '.join(part for part in parts if part)}"

    def report(self, shard: int, worker: str, epochs: str, remark: str) -> str | None:
        """The same for what a shard's worker reports. A second worker reports where the first one died."""
        old = self.shards[shard]
        begins = not epochs and bool(worker)
        if begins and old.worker not in ("", worker):
            remark = f"its worker died, {old.worker}"
        values = {"worker": worker, "epochs": epochs, "remark": remark, "tries": old.tries + begins}
        return self.change(shard, state=_RUNNING if worker else _WAITING, **values)

    def in_state(self, state: str) -> list[int]:
        return [shard for shard, status in self.shards.items() if status.state == state]

    def __rich__(self) -> Table:
        counts = (f"{len(shards)} {state}" for state in _STYLES if (shards := self.in_state(state)))
        table = Table(title=Text(printable(self.title)), caption=", ".join(counts))
        for heading in ("shard", "state", "worker", "epoch", "tries", ""):
            table.add_column(heading, justify="right" if heading in ("shard", "epoch", "tries") else "left")
        for shard, status in self.shards.items():
            tries = str(status.tries) if status.tries > 1 else ""
            state = Text(status.state, style=_STYLES[status.state])
            # as text, not as markup: a path may have brackets in it
            worker, remark = Text(printable(status.worker)), Text(printable(status.remark))
            table.add_row(str(shard), state, worker, status.epochs, tries, remark)
        return table


@contextmanager
def _drawing(table: _StatusTable) -> Iterator[tuple[_Print, _Print]]:
    """Draws the table where stderr is a terminal. Two ways to print: a change of the table, and anything else."""
    console = PlainConsole(stderr=True)

    def say(line: str) -> None:
        console.print(line, soft_wrap=not console.is_terminal)

    if not console.is_terminal:
        yield say, say
        return
    with Live(table, console=console, refresh_per_second=4):
        # changes show in the table and need not be printed
        yield lambda line: None, say


def _train_shards(ray: Any, job: Job, table: _StatusTable, cpus: int, retries: int, log: _Print, say: _Print) -> None:
    """Trains every waiting shard of the table; Ray gives one whose worker died, or that is busy, to another worker."""
    from ray.util.queue import Queue

    resources = {"num_cpus": cpus, "num_gpus": 1 if job.device == "cuda" else 0}
    options = {**resources, "max_retries": retries, "retry_exceptions": [Busy]}
    reports = Queue(actor_options={"num_cpus": 0, "max_restarts": -1})
    waiting = table.in_state(_WAITING)
    if waiting and job.may_share_embedding:
        fault = _fault_of(ray, ray.remote(**options)(prepare).remote(job, reports.actor))
        if fault is not None:
            raise ValueError(f"preparing the data: {fault}; run again")
    task = ray.remote(**options)(train)
    running = {task.remote(job, shard, cpus, reports.actor): shard for shard in waiting}
    while running:
        ended, _ = ray.wait(list(running), timeout=_POLL_SECONDS)
        for report in _read_reports(ray, reports):
            if note := report.get("note"):
                say(f"note: {note}")
            elif report["shard"] in running.values() and (line := table.report(**report)):
                log(line)
        for reference in ended:
            fault = _fault_of(ray, reference)
            end = {"state": _MISSING, "worker": "", "remark": fault} if fault else {"state": _FINISHED, "remark": ""}
            if line := table.change(running.pop(reference), **end):
                log(line)


def _read_reports(ray: Any, reports: Any) -> list[dict[str, Any]]:
    """All that the workers reported since the last call."""
    try:
        return reports.get_nowait_batch(reports.size())
    except ray.exceptions.RayError:
        # the queue's machine died: Ray starts it again elsewhere, and the workers go on reporting
        return []


def _fault_of(ray: Any, reference: Any) -> str | None:
    """Waits for the end of a task; the reason in one line why it failed, None where it succeeded."""
    try:
        ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if not isinstance(error.cause, ValueError | OSError):
            # a mistake of ours: it keeps its traceback, and the other shards go on
            print(*(printable(line) for line in str(error).splitlines()), sep="\n", file=sys.stderr)
        return one_line(error.cause)
    # Ray has a dozen names for one fact: the worker is gone
    except ray.exceptions.RayError:
        return "its worker died"
    return None


def _summarize(job: Job, table: _StatusTable, before: int) -> bool:
    """Looks for the finished shards, prints how many there are and which are missing, and returns whether all are."""
    where = job.destination
    for shard in table.in_state(_FINISHED):
        try:
            if not job.is_finished(shard):
                table.change(shard, state=_MISSING, remark=f"not in {where}: is that a folder all machines share?")
        except (ValueError, OSError) as error:
            table.change(shard, state=_MISSING, remark=one_line(error))
    finished, missing = table.in_state(_FINISHED), table.in_state(_MISSING)
    for shard in missing:
        print(f"error: shard {shard} is missing: {printable(table.shards[shard].remark)}", file=sys.stderr)
    print(
        f"{how_many(len(table.shards), 'shard')} into {where}: {len(finished)} finished, {before} of them before, "
        f"{len(missing)} missing"
    )
    return not missing


if __name__ == "__main__":
    main()
