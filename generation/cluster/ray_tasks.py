"""Ray: starting or joining a cluster, and training one shard as a Ray task. Imported only by the launcher.

Ray's own processes talk to each other in pickles: whoever can talk to one can run code there. So the Ray we start is
reached from this machine alone, and by those who know its token alone; a cluster is its owner's to close. No file that
this project reads is ever unpickled.
"""

import ipaddress
import os
import secrets
import socket
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from generation.cluster.guardian import guarded_children
from generation.cluster.heartbeats import Heartbeat
from generation.job import Job
from generation.shard import train_shard
from zoo.command import one_line
from zoo.storage.atomic import Busy

OBJECT_STORE_BYTES = 100 << 20  # shards go through the file system: nothing is kept in Ray's object store
CONNECT_SECONDS = 10
TOKEN = secrets.token_hex(32)  # of every Ray that this process starts: Ray reads it once in a process
OPEN_CLUSTER = "this Ray cluster asks for no token: whoever reaches its ports can run code there (RAY_AUTH_MODE=token)"


@dataclass(frozen=True)
class TaskEnd:
    """How a task ended: well, or with the one line that says why not."""

    fault: str | None = None
    busy: bool = False


def import_ray(address: str | None) -> Any:
    """Ray, which reports its use to nobody, or the line that says how to get it.

    Without an address, Ray is told to listen on the loopback interface alone and to ask for a token, a new one for
    each process. It reads both from the environment, which its processes inherit.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is None:
        # Ray's name for it: where it is off, as on a Mac, a node has no address but 127.0.0.1
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    try:
        import ray
    except ImportError as error:
        raise ValueError(
            "launching many shards needs Ray: `pip install 'small-transformer-zoo[ray]'`, "
            "or run them one by one with `python -m generation.run --shard`"
        ) from error
    return ray


@contextmanager
def cluster(ray: Any, address: str | None) -> Iterator[None]:
    """A connection to the cluster at ``address``; without one, a Ray on this machine that ends with the block."""
    # "local" by name: without it Ray would join any cluster that happens to run here
    alone = {"address": "local", "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    options: dict[str, Any] = {"address": address} if address else alone
    try:
        # Ray itself tries for minutes, and then ends the process
        if address and (place := address.removeprefix("ray://").rpartition(":"))[2].isdecimal():
            socket.create_connection((place[0], int(place[2])), timeout=CONNECT_SECONDS).close()
        ray.init(**options, log_to_driver=False, logging_level="ERROR")
    # Ray raises RuntimeError for a cluster of another version of itself or of Python
    except (OSError, RuntimeError, ValueError, OverflowError) as error:
        raise ValueError(f"no Ray cluster at {address or 'this machine'}: {one_line(error)}") from error
    try:
        if address:
            if os.environ.get("RAY_AUTH_MODE") != "token":
                warnings.warn(OPEN_CLUSTER, stacklevel=3)
            yield
            return
        if not ipaddress.ip_address(here := ray.util.get_node_ip_address()).is_loopback:
            raise ValueError(f"Ray listens on {here}, not on this machine alone: import it nowhere before the launcher")
        with guarded_children():
            yield
    finally:
        ray.shutdown()


def train(job: Job, shard: int, cpus: int, heartbeats: Any) -> TaskEnd:
    """A shard's task. What a user can get wrong comes back as a line; only a worker's death is an exception."""
    worker = f"{socket.gethostname()} pid {os.getpid()}"
    heartbeats.beat.remote(shard, Heartbeat(worker))
    torch.set_num_threads(cpus)

    def report(epoch: int, epochs: int, status: str) -> None:
        heartbeats.beat.remote(shard, Heartbeat(worker, epoch, epochs, status))

    return guarded(lambda: train_shard(job, shard, report), heartbeats, f"shard {shard}")


def prepare(job: Job, heartbeats: Any) -> TaskEnd:
    """Makes what all shards share, once, before many workers would do so at the same time."""
    return guarded(job.load, heartbeats, "preparing")


def guarded(work: Callable[[], object], heartbeats: Any, name: str) -> TaskEnd:
    """Runs ``work``; warnings become notes to the launcher, errors a line."""

    def pass_on(message: Warning | str, *_: object) -> None:
        heartbeats.note.remote(f"{name}: {' '.join(str(message).split())}")

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = pass_on
        try:
            work()
        except Busy as error:
            return TaskEnd(one_line(error), busy=True)
        except (ValueError, OSError) as error:
            return TaskEnd(one_line(error))
    return TaskEnd()
