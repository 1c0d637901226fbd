"""Trains many shards at once through Ray: one GPU each, or a CPU each where there is no GPU.

    python -m generation.launch --task mnist --shards 0-31             on this machine, with its own Ray
    python -m generation.launch --task mnist --address auto --out DIR  on the cluster this machine belongs to
    python -m generation.launch --task mnist --sample 2000             configurations of the grid, drawn at random
    python -m generation.launch --task mnist --address auto --out s3://bucket/runs

Finished shards are skipped; one whose worker died is given to another and resumes from its last snapshot. On a cluster
DIR is a folder that all machines share. Exit code 1 if any shard is missing in the end; give the command again.
"""

from dataclasses import dataclass
from typing import Annotated

from generation.options import TrainingOptions
from zoo.checked import Count, CountOrZero
from zoo.command import Command, Option


@dataclass(frozen=True, kw_only=True)
class _Options(TrainingOptions):
    shards: Annotated[str | None, Option("such as 5, 0-31, or 0-3,8,10-12 (default: all)")] = None
    address: Annotated[str | None, Option("a Ray cluster: auto, or HOST:PORT (default: this machine alone)")] = None
    cpus: Annotated[Count, Option("CPU cores, and threads, per shard", "N")] = 1
    retries: Annotated[CountOrZero, Option("new workers for a shard whose worker died", "N")] = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shards is not None and self.sample is not None:
            raise ValueError("--sample takes the place of --shards: give one of them")
        if self.device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"--device {self.device!r}: Ray hands out the devices, name cpu or cuda")


_command = Command(__name__, "generation.launch", __doc__, _Options, lambda _: ("ray",))

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from generation.job import Job, chosen_draw
from generation.ray_tasks import cluster, import_ray, prepare, train
from generation.sweep import drawn_shards
from generation.task import named_task
from zoo.checked import printable
from zoo.command import how_many, one_line, progress_bar
from zoo.storage.atomic import Busy

if TYPE_CHECKING:
    from rich.progress import Progress

_UNFINISHED = 1
_POLL_SECONDS = 0.5
_WAITING, _RUNNING, _FINISHED, _MISSING = "waiting", "running", "finished", "missing"


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


class _Progress:
    """The state of each shard: a line for every change and, on a terminal, a bar for each shard that trains."""

    def __init__(self, shards: Iterable[int], bar: "Progress") -> None:
        self.bar = bar
        self.states = dict.fromkeys(shards, _WAITING)
        self.workers = dict.fromkeys(self.states, "")
        self.remarks = dict.fromkeys(self.states, "")
        self.tasks = {shard: bar.add_task("", total=None, visible=False) for shard in self.states}

    def say(self, line: str) -> None:
        self.bar.console.print(line, soft_wrap=True)

    def change(self, shard: int, state: str, remark: str = "") -> None:
        self.states[shard], self.remarks[shard] = state, remark
        self.bar.update(self.tasks[shard], description=f"shard {shard}", visible=state == _RUNNING)
        self.say(f"shard {shard}: {state}{remark and f', {remark}'}")

    def report(self, shard: int, worker: str, epoch: int, epochs: int, remark: str) -> None:
        """A report of the worker of a shard. A second worker reports where the first one died."""
        before, self.workers[shard] = self.workers[shard], worker
        if epoch:
            text = printable(f"shard {shard} on {worker}  {remark}")
            self.bar.update(self.tasks[shard], description=text, completed=epoch, total=epochs)
        elif worker:
            died = "" if before in ("", worker) else f", its worker died, {before}"
            self.change(shard, _RUNNING, f"on {worker}{died}")
        else:
            self.change(shard, _WAITING, remark)

    def in_state(self, state: str) -> list[int]:
        return [shard for shard, each in self.states.items() if each == state]


def _train_shards(ray: Any, job: Job, progress: _Progress, cpus: int, retries: int) -> None:
    """Trains every waiting shard; Ray gives one whose worker died, or that is busy, to another worker."""
    from ray.util.queue import Queue

    resources = {"num_cpus": cpus, "num_gpus": 1 if job.device == "cuda" else 0}
    options = {**resources, "max_retries": retries, "retry_exceptions": [Busy]}
    reports = Queue(actor_options={"num_cpus": 0, "max_restarts": -1})
    waiting = progress.in_state(_WAITING)
    if waiting and job.may_share_embedding:
        fault = _fault_of(ray, ray.remote(**options)(prepare).remote(job, reports.actor))
        if fault is not None:
            raise ValueError(f"preparing the data: {fault}; run again")
    task = ray.remote(**options)(train)
    running = {task.remote(job, shard, cpus, reports.actor): shard for shard in waiting}
    while running:
        ended, _ = ray.wait(list(running), timeout=_POLL_SECONDS)
        try:
            received = reports.get_nowait_batch(reports.size())
        except ray.exceptions.RayError:
            # the queue's machine died: Ray starts it again elsewhere, and the workers go on reporting
            received = []
        for report in received:
            if note := report.get("note"):
                progress.say(f"note: {note}")
            elif report["shard"] in running.values():
                progress.report(**report)
        for reference in ended:
            fault = _fault_of(ray, reference)
            progress.change(running.pop(reference), _MISSING if fault else _FINISHED, fault or "")


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


def _summarize(job: Job, progress: _Progress, before: int) -> bool:
    """Looks for the finished shards, prints how many there are and which are missing, and returns whether all are."""
    where = job.destination
    missing = {shard: progress.remarks[shard] for shard in progress.in_state(_MISSING)}
    for shard in progress.in_state(_FINISHED):
        try:
            if not job.is_finished(shard):
                missing[shard] = f"not in {where}: is that a folder all machines share?"
        except (ValueError, OSError) as error:
            missing[shard] = one_line(error)
    for shard, reason in sorted(missing.items()):
        print(f"error: shard {shard} is missing: {printable(reason)}", file=sys.stderr)
    shards = len(progress.states)
    print(
        f"{how_many(shards, 'shard')} into {where}: {shards - len(missing)} finished, {before} of them before, "
        f"{len(missing)} missing"
    )
    return not missing


@_command
def main(options: _Options) -> None:
    # faults in any of these should be found before a cluster starts
    task = named_task(options.task)
    chosen = None if options.shards is None else _parse_shards(options.shards, task.shards)
    if (draw := chosen_draw(options)) is not None:
        drawn_shards(task, draw)
    # Ray gives a task that ran out of memory to other workers forever unless it is limited
    os.environ.setdefault("RAY_task_oom_retries", str(options.retries))
    ray = import_ray(options.address)
    with cluster(ray, options.address):
        device = _choose_cluster_device(ray, options.device)
        _check_cpus(ray, options.cpus, device)
        job = Job.of(options, device).anywhere()
        shards = chosen or list(job.sweep.shards)
        with progress_bar() as bar:
            progress = _Progress(shards, bar)
            before = [shard for shard in shards if job.is_finished(shard)]
            for shard in before:
                progress.change(shard, _FINISHED, "before")
            _train_shards(ray, job, progress, options.cpus, options.retries)
    if not _summarize(job, progress, len(before)):
        sys.exit(_UNFINISHED)
