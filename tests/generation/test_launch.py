"""Many shards at once: a Ray of one's own, two nodes and a killed worker, and what is missing is said."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_tasks import write_digits

from generation.job import Job
from generation.launch import main, parse_shards
from generation.run import run_job
from generation.sweep import PRESETS, Sweep
from zoo.lock import exclusive

ray = pytest.importorskip("ray")

ROOT = Path(__file__).parent.parent.parent
SHARDS = range(4)
ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_digits(tmp_path_factory.mktemp("data"), train=200, test=50)


@pytest.fixture(scope="module")
def plain_loop(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The four shards, one after the other, without Ray."""
    job = Job(Sweep("mnist", PRESETS["demo"]), tmp_path_factory.mktemp("loop"), runs=2, data=data, device="cpu")
    for shard in SHARDS:
        run_job(job, shard)
    return job.out


def contents(out: Path) -> dict[str, bytes]:
    paths = (path for path in (out / "mnist").rglob("*") if path.is_file())
    return {
        path.relative_to(out).as_posix(): path.read_bytes()
        for path in paths
        if path.name != "timing.json" and path.suffix != ".lock"
    }


def launcher(data: Path, out: Path | str, *arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "generation.launch", "--preset", "demo", "--runs", "2", "--data", str(data)]
    return subprocess.Popen(
        [*command, "--out", str(out), "--snapshot-seconds", "0", *arguments],
        cwd=ROOT,
        env=os.environ | ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a cluster of two nodes with one CPU each, on this machine."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    yield cluster.address
    cluster.shutdown()


def worker_of(process: subprocess.Popen, shard: int) -> int:
    """The process that trains this shard, once the launcher says so."""
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.match(rf"shard {shard}: running, on .* pid (\d+)", line):
            return int(found[1])
    raise AssertionError("the launcher ended without a word of the shard")


def test_two_nodes_and_a_killed_worker_end_with_the_bytes_of_the_plain_loop(
    two_nodes: str, data: Path, plain_loop: Path, tmp_path: Path
) -> None:
    process = launcher(data, tmp_path, "--shards", "0-3", "--address", two_nodes)
    worker = worker_of(process, shard=1)
    deadline = time.monotonic() + 60
    while not list((tmp_path / "mnist" / "shard-00001").glob("state-*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(worker, signal.SIGKILL)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "shard 1: waiting" in errors
    assert "its worker died" in errors
    assert out.endswith("4 finished, 0 of them before, 0 missing\n")
    assert contents(tmp_path) == contents(plain_loop)


def test_a_shard_that_is_missing_is_named_and_finished_ones_are_skipped(
    data: Path, plain_loop: Path, tmp_path: Path
) -> None:
    """Shard 0 is there, shard 1 is in the hands of another process to the end; a Ray of this machine's own."""
    url = f"file://{tmp_path}/store"
    job = Job(Sweep("mnist", PRESETS["demo"]), tmp_path / "s", url, runs=2, data=data, device="cpu")
    run_job(job, 0)
    arguments = ("--shards", "0-2", "--retries", "0", "--scratch", str(tmp_path / "scratch"))
    with exclusive(next_lock(tmp_path / "scratch", url, shard=1), busy="never"):
        process = launcher(data, url, *arguments)
        out, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "error: shard 1 is missing: another process is at work on this shard" in errors
    assert "shard 0: running" not in errors
    assert out.endswith("2 finished, 1 of them before, 1 missing\n")
    whole, stored = contents(plain_loop), contents(tmp_path / "store")
    assert stored == {name: data for name, data in whole.items() if "shard-00000" in name or "shard-00002" in name}


def next_lock(scratch: Path, url: str, shard: int) -> Path:
    from generation.remote import scratch_folder

    return scratch_folder(url, scratch) / "mnist" / f".shard-{shard:05d}.lock"


def test_shards_are_named_as_ranges() -> None:
    assert parse_shards("0-3,8,2") == [0, 1, 2, 3, 8]
    for wrong in ("", "3-", "-3", "a", "0-32", "99999999999", "5-2"):
        with pytest.raises(ValueError, match=f"--shards '{wrong}'"):
            parse_shards(wrong)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shards", "40"], "numbered 0 to 31"),
        (["--device", "abacus"], "Ray hands out the devices"),
        (["--address", "127.0.0.1:1"], "no Ray cluster at 127.0.0.1:1"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_without_ray_one_line_names_the_extra() -> None:
    code = "import sys; sys.modules['ray'] = None; from generation.launch import main; main([])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr.startswith("error: launching many shards needs Ray: `pip install 'small-transformer-zoo[ray]'`")
    assert len(done.stderr.splitlines()) == 1
