"""Ray: starting or joining a cluster, and training one shard as a Ray task. Imported only by the launcher.

Ray's own processes exchange pickles: anyone who can connect to one can run code there. So the Ray we start can be
reached from this machine alone, and only with its token; the owner of a cluster has to close it. No file that this
project reads is ever unpickled.
"""

import ipaddress
import os
import secrets
import socket
import subprocess
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from subprocess import DEVNULL, PIPE
from typing import Any

import torch

from generation.job import Job
from generation.shard import train_shard
from zoo.command import one_line
from zoo.storage.atomic import Busy

_OBJECT_STORE_BYTES = 100 << 20  # shards go through the file system: nothing is kept in Ray's object store
_CONNECT_SECONDS = 10
_BUSY_SECONDS = 10.0
_AGENT_SECONDS = 5
_TOKEN = secrets.token_hex(32)  # of every Ray that this process starts: Ray reads it once in a process
_OPEN_CLUSTER = "this Ray cluster requires no token: anyone at its ports can run code there (RAY_AUTH_MODE=token)"
_OWN_RAY = {
    # Ray's name for it: where it is off, as on a Mac, a node has no address but 127.0.0.1
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": _TOKEN,
}
"""Settings of a Ray that we start, which its processes read from the environment that they inherit."""


def import_ray(address: str | None) -> Any:
    """Ray, without its usage reports.

    Without an address, Ray listens on the loopback interface alone and requires a token, a new one for each process.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is None:
        os.environ |= _OWN_RAY
    import ray

    return ray


@contextmanager
def cluster(ray: Any, address: str | None) -> Iterator[None]:
    """A connection to the cluster at ``address``; without one, a Ray on this machine that ends with the ``with``."""
    # "local" by name: without it Ray would join any cluster that happens to run here
    alone = {"address": "local", "include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
    options: dict[str, Any] = {"address": address} if address else alone
    try:
        # Ray itself tries for minutes, and then ends the process
        if address and (parts := address.removeprefix("ray://").rpartition(":"))[2].isdecimal():
            socket.create_connection((parts[0], int(parts[2])), timeout=_CONNECT_SECONDS).close()
        ray.init(**options, log_to_driver=False, logging_level="ERROR")
    # Ray raises RuntimeError for a cluster of another version of itself or of Python
    except (OSError, RuntimeError, ValueError, OverflowError) as error:
        raise ValueError(f"no Ray cluster at {address or 'this machine'}: {one_line(error)}") from error
    try:
        if address and os.environ.get("RAY_AUTH_MODE") != "token":
            warnings.warn(_OPEN_CLUSTER, stacklevel=3)
        if not address and not ipaddress.ip_address(here := ray.util.get_node_ip_address()).is_loopback:
            raise ValueError(f"Ray listens on {here}, not on this machine alone: import it nowhere before the launcher")
        with nullcontext() if address else _agents_ending_with_us():
            yield
    finally:
        ray.shutdown()


@contextmanager
def _agents_ending_with_us() -> Iterator[None]:
    """Ends the agents of our own Ray soon after this process, even if that is killed.

    Ray's other processes end by themselves, but its agents try for a minute to report the death of their parent to a
    server that is dead too. A shell reads a pipe whose other end is held by this process alone, and ends them where it
    closes without a line.
    """
    psutil = import_module("psutil")  # Ray brings it
    agents: list[str] = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended meanwhile
            if "agent" in " ".join(process.cmdline()).lower():
                agents.append(str(process.pid))
    script = f"read line || {{ sleep {_AGENT_SECONDS}; kill -9 {' '.join(agents)}; }}"
    # a session of its own: a control-C in the terminal is for the launcher
    shell = subprocess.Popen(["sh", "-c", script], stdin=PIPE, stderr=DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        shell.communicate(b"ended\n")


def train(job: Job, shard: int, cpus: int, reports: Any) -> None:
    """Trains a shard. ``reports`` is the actor of a Ray queue, for what the launcher shows and for notes."""
    worker = f"{socket.gethostname()} pid {os.getpid()}"

    def report(epoch: int = 0, epochs: int = 0, status: str = "", worker: str = worker) -> None:
        what = {"shard": shard, "worker": worker, "epoch": epoch, "epochs": epochs, "remark": status}
        reports.put_nowait.remote(what)

    report()
    torch.set_num_threads(cpus)
    with _warnings_as_notes(reports, f"shard {shard}"):
        try:
            train_shard(job, shard, report)
        except Busy as error:
            report(status=one_line(error), worker="")
            time.sleep(_BUSY_SECONDS)  # Ray tries again at once
            raise


def prepare(job: Job, reports: Any) -> None:
    """Makes what all shards share, once, before many workers would do so at the same time."""
    with _warnings_as_notes(reports, "preparing"):
        job.load()


@contextmanager
def _warnings_as_notes(reports: Any, name: str) -> Iterator[None]:
    def pass_on(message: Warning | str, *_: object) -> None:
        reports.put_nowait.remote({"note": f"{name}: {' '.join(str(message).split())}"})

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = pass_on
        yield
