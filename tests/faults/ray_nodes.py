"""Ray on one machine as if it were two, and a launch in which one worker is killed in the middle of its shard."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MARK = "ZOO_TEST_MARK"
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
ROOT = Path(__file__).parent.parent.parent


def environment() -> dict[str, str]:
    """The environment of a process that has not started Ray: without tokens of earlier launches of this one."""
    without = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return without | {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}


@contextmanager
def two_nodes() -> Iterator[str]:
    """The address of a cluster of two nodes with one CPU each, which a process of its own holds."""
    command = [sys.executable, "-m", "tests.faults.ray_nodes"]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, "the cluster did not start"
        yield address
        # leaving the ``with`` closes the holder's input, which is the signal to end


def hold_two_nodes() -> None:
    """Starts the cluster, prints its address, and ends it when the input ends."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        print(cluster.address, flush=True)
        sys.stdin.read()
    finally:
        cluster.shutdown()


def launcher(out: Path | str, *arguments: str) -> subprocess.Popen:
    """``python -m generation.launch`` under way, with a snapshot after every epoch."""
    command = [sys.executable, "-m", "generation.launch", "--preset", "demo", "--snapshot-seconds", "0"]
    return subprocess.Popen(
        [*command, "--out", str(out), *arguments],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def kill_worker(process: subprocess.Popen, out: Path, shard: int, seconds: float) -> None:
    """SIGKILL to the process that trains this shard, once there is a snapshot to lose."""
    assert process.stderr is not None
    for line in process.stderr:
        if match := re.match(rf"shard {shard}: running, on .* pid (\d+)", line):
            break
    else:
        raise AssertionError("the launcher ended without a word of the shard")
    deadline = time.monotonic() + seconds
    while not list((out / "mnist" / f"shard-{shard:05d}").glob("state-*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(int(match[1]), signal.SIGKILL)


def marked_processes(mark: str) -> list[int]:
    """The processes that were started with this variable in their environment, which children inherit."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and f"{MARK}={mark}\0".encode() in (folder / "environ").read_bytes() + b"\0":
                found.append(int(folder.name))
    return found


def listening_addresses(processes: list[int]) -> set[str]:
    """The addresses, as ``/proc/net`` writes them, at which some processes wait for connections."""
    sockets = set()
    for pid in processes:
        with contextlib.suppress(OSError):
            sockets |= {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()}
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return {line[1].partition(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets}


def shard_contents(out: Path) -> dict[str, bytes]:
    """The shards' files but their timing, which differs from run to run."""
    paths = (path for path in (out / "mnist").rglob("*") if path.is_file())
    return {
        path.relative_to(out).as_posix(): path.read_bytes()
        for path in paths
        if path.name != "timing.json" and path.suffix != ".lock"
    }


if __name__ == "__main__":
    hold_two_nodes()
