"""Many shards at once: a Ray of our own, two nodes and a killed worker, and missing shards are named."""

import io
import os
import pickle
import re
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from generation.job import Job
from generation.launch import _FINISHED, _MISSING, _RUNNING, _WAITING, _check_cpus, _parse_shards, _Progress, main
from generation.protocol import PRESETS
from generation.ray_tasks import import_ray
from generation.remote import scratch_folder
from generation.shard import train_shard
from generation.sweep import Draw, Sweep
from generation.task import named_task
from tests.faults.ray_nodes import (
    LOOPBACK,
    MARK,
    kill_worker,
    launcher,
    listening_addresses,
    marked_processes,
    shard_contents,
    two_nodes,
)
from tests.generation.small_tasks import write_digits
from tests.refusal import refusal
from zoo.command import progress_bar
from zoo.storage.atomic import exclusive

pytest.importorskip("ray")
SHARDS = range(4)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_digits(tmp_path_factory.mktemp("data"), train=200, test=20)


@pytest.fixture(scope="module")
def plain_loop(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The four shards, one after the other, without Ray."""
    job = Job(
        Sweep(named_task("mnist"), PRESETS["demo"]), tmp_path_factory.mktemp("loop"), runs=1, data=data, device="cpu"
    )
    for shard in SHARDS:
        train_shard(job, shard)
    return job.out


def test_a_job_can_travel_to_another_machine() -> None:
    job = Job(Sweep(named_task("mnist"), PRESETS["demo"], draw=Draw(5)), Path("runs"), device="cpu")
    assert pickle.loads(pickle.dumps(job)) == job  # noqa: S301 as Ray does it


@pytest.mark.long
def test_two_nodes_and_a_killed_worker_end_with_the_bytes_of_the_plain_loop(
    data: Path, plain_loop: Path, tmp_path: Path
) -> None:
    with two_nodes() as address:
        process = launcher(tmp_path, "--shards", "0-3", "--address", address, "--runs", "1", "--data", str(data))
        kill_worker(process, tmp_path, shard=1, seconds=60)
        out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "its worker died" in errors
    assert out.endswith("4 finished, 0 of them before, 0 missing\n")
    assert shard_contents(tmp_path) == shard_contents(plain_loop)


@pytest.mark.long
def test_a_shard_that_is_missing_is_named_and_finished_ones_are_skipped(
    data: Path, plain_loop: Path, tmp_path: Path
) -> None:
    """Shard 0 is there, shard 1 is held by another process to the end; a Ray of this machine's own."""
    url, scratch = f"file://{tmp_path}/store", tmp_path / "scratch"
    job = Job(Sweep(named_task("mnist"), PRESETS["demo"]), tmp_path / "s", url, runs=1, data=data, device="cpu")
    train_shard(job, 0)
    lock = scratch_folder(url, scratch) / "mnist" / ".shard-00001.lock"
    with exclusive(lock, busy="never"):
        arguments = ("--shards", "0-2", "--retries", "0", "--scratch", str(scratch), "--runs", "1")
        process = launcher(url, *arguments, "--data", str(data))
        out, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "error: shard 1 is missing: another process is at work on this shard" in errors
    assert "shard 0: running" not in errors
    assert out.endswith("2 finished, 1 of them before, 1 missing\n")
    expected = {name: data for name, data in shard_contents(plain_loop).items() if "shard-00001" not in name}
    assert shard_contents(tmp_path / "store") == {
        name: data for name, data in expected.items() if "shard-00003" not in name
    }


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_ray_of_our_own_listens_on_loopback_requires_a_token_and_ends_with_its_driver(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = str(tmp_path)
    monkeypatch.setenv(MARK, mark)
    process = launcher(tmp_path, "--shards", "0", "--runs", "1", "--data", str(data))
    assert process.stderr is not None
    try:
        assert "shard 0: running" in process.stderr.readline()
        processes = marked_processes(mark)
        found = listening_addresses(processes)
        assert found
        assert found <= LOOPBACK
        environments = [Path(f"/proc/{pid}/environ").read_text() for pid in set(processes) - {process.pid}]
        # a worker of Ray's that has just given itself a title has written it over the beginning of its environment
        whole = [text for text in environments if mark in text and "\0\0" not in text]
        assert whole
        for environment in whole:
            assert "RAY_AUTH_MODE=token" in environment
            assert re.search("RAY_AUTH_TOKEN=[0-9a-f]{64}", environment)
    finally:
        process.kill()
        process.communicate()
    deadline = time.monotonic() + 15
    while (left := marked_processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def test_a_second_launch_of_a_process_has_the_token_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray reads its token once per process, and its servers read it again at every start."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    tokens = []
    for _ in range(2):
        import_ray(None)
        tokens.append(os.environ["RAY_AUTH_TOKEN"])
    assert tokens[0] == tokens[1]


def test_every_change_of_a_shard_is_a_line_that_names_its_worker(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar() as bar:
        progress = _Progress(SHARDS, bar)
        progress.report(1, "host pid 1", 0, 0, "")
        progress.report(1, "host pid 1", 2, 6, "0.5 model-epochs/s")
        progress.report(1, "host pid 2", 0, 0, "")
        progress.report(1, "", 0, 0, "another process is at work")
        assert progress.in_state(_WAITING) == [0, 1, 2, 3]
        progress.report(1, "host pid 3", 0, 0, "")
        progress.change(2, _MISSING, "[/data] is missing")
    assert progress.in_state(_RUNNING) == [1]
    assert capsys.readouterr().err.splitlines() == [
        "shard 1: running, on host pid 1",
        "shard 1: running, on host pid 2, its worker died, host pid 1",
        "shard 1: waiting, another process is at work",
        "shard 1: running, on host pid 3",
        "shard 2: missing, [/data] is missing",
    ]


def test_on_a_terminal_each_shard_that_trains_has_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", terminal := _Terminal())
    with progress_bar() as bar:
        progress = _Progress(SHARDS, bar)
        progress.report(1, "host pid 1", 0, 0, "")
        progress.report(1, "host pid 1", 2, 6, "0.5 model-epochs/s [best]")
        shown = {task.id: (task.description, task.completed, task.total) for task in bar.tasks if task.visible}
        progress.change(1, _FINISHED)
        assert not any(task.visible for task in bar.tasks)
    assert shown == {progress.tasks[1]: ("shard 1 on host pid 1  0.5 model-epochs/s [best]", 2, 6)}
    assert "shard 1: finished" in terminal.getvalue()


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_shards_are_named_as_ranges() -> None:
    assert _parse_shards("0-3,8,2", 32) == [0, 1, 2, 3, 8]
    for wrong in ("", "3-", "-3", "a", "0-32", "99999999999", "5-2", "40-50,3", "5-3,8"):
        with pytest.raises(ValueError, match=f"--shards '{wrong}'"):
            _parse_shards(wrong, 32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shards", "40"], "numbered 0 to 31"),
        (["--address", "127.0.0.1:1"], "no Ray cluster at 127.0.0.1:1"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refusal(main, arguments, capsys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sample", "16001"], "the grid has 16,000 configurations: a sample of 16,001 cannot be drawn"),
        (["--sample", "5", "--where", "momentum > 0"], "no column 'momentum'"),
        (["--device", "cuda:1"], "--device 'cuda:1': Ray hands out the devices, name cpu or cuda"),
        (["--task", "own.toml", "--preset", "demo"], "--preset is for mnist, agnews, shakespeare"),
    ],
)
def test_bad_input_is_refused_before_ray_starts(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.toml").write_text(named_task("mnist").file.text.replace('name = "mnist"', 'name = "own"'))
    monkeypatch.setattr("generation.launch.import_ray", lambda address: pytest.fail("Ray started"))
    assert message in refusal(main, arguments, capsys)


@pytest.mark.parametrize(("device", "largest"), [("cpu", "machine has 4"), ("cuda", "machine with a GPU has 2")])
def test_more_cores_than_any_machine_has_are_refused(
    device: str, largest: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machines = {"CPU": 4.0}, {"CPU": 2.0, "GPU": 1.0}
    nodes = [*({"Alive": True, "Resources": each} for each in machines), {"Alive": False, "Resources": {"CPU": 64.0}}]
    ray = SimpleNamespace(nodes=lambda: nodes, cluster_resources=lambda: {"CPU": 6.0, "GPU": 1.0})
    monkeypatch.setattr("generation.launch.import_ray", lambda address: ray)
    monkeypatch.setattr("generation.launch.cluster", lambda ray, address: nullcontext())
    line = refusal(main, ["--device", device, "--cpus", "5"], capsys)
    assert line == f"error: --cpus 5: the cluster's largest {largest} CPU cores\n"
    _check_cpus(ray, 2, device)


def test_without_ray_one_line_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    line = refusal(main, [], capsys)
    assert line == "error: generation.launch needs ray: pip install 'small-transformer-zoo[ray]'\n"
