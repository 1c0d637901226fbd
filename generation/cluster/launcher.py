"""Gives the shards of a job to Ray workers until each is finished or out of retries."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from generation.cluster.heartbeats import Heartbeats
from generation.cluster.ray_tasks import TaskEnd, prepare, train
from generation.cluster.status_table import FINISHED, MISSING, RUNNING, WAITING, StatusTable
from generation.job import Job
from zoo.command import one_line
from zoo.terminal import printable

POLL_SECONDS = 0.5
BUSY_SECONDS = 10.0


@dataclass(frozen=True)
class Resources:
    """What a shard's task asks Ray for, and how often it is given to another worker."""

    device: str
    cpus: int
    retries: int

    def options(self) -> dict[str, Any]:
        # retries are counted here, not by Ray, so that the table can show them
        return {"num_cpus": self.cpus, "num_gpus": 1 if self.device == "cuda" else 0, "max_retries": 0}

    def check(self, ray: Any) -> None:
        """Refuses to ask for more CPU cores than any one machine has; Ray would wait for such a machine forever."""
        gpu = self.device == "cuda"
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        most = max((int(machine.get("CPU", 0)) for machine in machines if not gpu or machine.get("GPU")), default=0)
        if self.cpus > most:
            machine = "machine with a GPU" if gpu else "machine"
            raise ValueError(f"--cpus {self.cpus}: the cluster's largest {machine} has {most} CPU cores")


class Launcher:
    """One launch: a job, the status of its shards, and the workers that train them.

    ``log`` hears every change of a shard that is worth a line, ``say`` what must be seen beside a table too.
    """

    def __init__(
        self,
        ray: Any,
        job: Job,
        table: StatusTable,
        resources: Resources,
        *,
        log: Callable[[str], None],
        say: Callable[[str], None],
    ) -> None:
        self.ray, self.job, self.table, self.resources = ray, job, table, resources
        self.log, self.say = log, say
        self.heartbeats = ray.remote(num_cpus=0, max_restarts=-1)(Heartbeats).remote()

    def run(self) -> None:
        """Brings every waiting shard of the table to its end, or to the end of its retries."""
        due = dict.fromkeys(self.table.in_state(WAITING), 0.0)
        if due and self.job.may_share_embedding:
            self.prepare()
        task = self.ray.remote(**self.resources.options())(train)
        running: dict[Any, int] = {}
        while due or running:
            for shard in [shard for shard, when in due.items() if when <= time.monotonic()]:
                del due[shard]
                self.table.change(shard, tries=self.table.shards[shard].tries + 1)
                running[task.remote(self.job, shard, self.resources.cpus, self.heartbeats)] = shard
            ended = self.wait(list(running))
            self.read_heartbeats(set(running.values()))
            for reference in ended:
                shard = running.pop(reference)
                pause = self.settle(shard, self.end_of(reference))
                if pause is not None:
                    due[shard] = time.monotonic() + pause

    def prepare(self) -> None:
        """Makes the embedding that all shards share."""
        task = self.ray.remote(**self.resources.options())(prepare)
        end = self.end_of(task.remote(self.job, self.heartbeats))
        if end is None or end.fault:
            raise ValueError(f"preparing the data: {end.fault if end else 'the worker died'}; run again")

    def wait(self, references: list[Any]) -> list[Any]:
        """The tasks that have ended, after at most a moment."""
        if not references:
            time.sleep(POLL_SECONDS)
            return []
        return self.ray.wait(references, timeout=POLL_SECONDS)[0]

    def end_of(self, reference: Any) -> TaskEnd | None:
        """How a task ended; None where its worker or the machine died."""
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            # a mistake of ours: it keeps its traceback, and the other shards go on
            print(*(printable(line) for line in str(error).splitlines()), sep="\n", file=sys.stderr)
            return TaskEnd(one_line(error.cause))
        # Ray has a dozen names for one fact: the worker is gone
        except self.ray.exceptions.RayError:
            return None

    def settle(self, shard: int, end: TaskEnd | None) -> float | None:
        """Writes down how a shard's task ended; the seconds to wait before it is tried again, or None."""
        if end is not None and end.fault is None:
            self.change(shard, state=FINISHED, remark="")
            return None
        again = self.table.shards[shard].tries <= self.resources.retries and (end is None or end.busy)
        remark = "its worker died" if end is None else end.fault
        self.change(shard, state=WAITING if again else MISSING, worker="", remark=remark)
        if not again:
            return None
        self.heartbeats.drop.remote(shard)
        return BUSY_SECONDS if end else 0.0

    def read_heartbeats(self, running: set[int]) -> None:
        """Brings what the workers report into the table."""
        try:
            newest, notes = self.ray.get(self.heartbeats.read.remote(), timeout=POLL_SECONDS)
        except self.ray.exceptions.RayError:
            # the actor's machine died or is slow: Ray starts it again elsewhere, and the workers go on reporting
            return
        for note in notes:
            self.say(f"note: {note}")
        for shard in running & newest.keys():
            beat = newest[shard]
            epochs = f"{beat.epoch}/{beat.epochs}" if beat.epochs else ""
            self.change(shard, state=RUNNING, worker=beat.worker, epochs=epochs, remark=beat.status)

    def change(self, shard: int, **values: object) -> None:
        if line := self.table.change(shard, **values):
            self.log(line)
