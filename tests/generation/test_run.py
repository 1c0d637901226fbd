"""The command: it survives being killed, does nothing twice, and says in one line what is wrong."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from small_tasks import few_digits, write_digits

import zoo
from generation.population.state import PopulationState
from generation.progress import EpochProgress
from generation.protocol import RunConfig
from generation.storage.snapshot import load_snapshot, save_snapshot
from zoo.command import duration
from zoo.format.manifest import Manifest
from zoo.format.shard import CHECKPOINTS_FILE, RUNS_FILE
from zoo.transformer.spec import MNIST

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
KILLS = 5


def worker(folder: Path) -> subprocess.Popen:
    """A process that trains the tiny shard whose folder this is, OUT/mnist/shard-00005."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "tiny_shard.py"), str(folder.parent.parent)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def finish(folder: Path) -> str:
    process = worker(folder)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return errors


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "timing.json"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed") / "mnist" / "shard-00005"
    finish(folder)
    return folder


def test_resume_after_kills_reproduces_the_same_bytes(undisturbed: Path, tmp_path: Path) -> None:
    """SIGKILL at five random moments between the first snapshot and the end; the soak has a hundred."""
    folder = tmp_path / "mnist" / "shard-00005"
    chooser = random.Random(0)
    kills = resumed = 0
    for _ in range(4 * KILLS):
        process = worker(folder)
        deadline = time.monotonic() + 60
        begun = len(list(folder.glob("state-*"))) if folder.exists() else 0
        newest = max(folder.glob("state-*"), default=None) if begun else None
        # let it get past its start, by at least one snapshot, so that the kills do not all hit the imports
        while process.poll() is None and time.monotonic() < deadline:
            if folder.exists() and max(folder.glob("state-*"), default=None) != newest:
                break
            time.sleep(0.005)
        time.sleep(chooser.uniform(0, 0.15))
        process.send_signal(signal.SIGKILL)
        process.wait()
        if process.returncode == -signal.SIGKILL:
            kills += 1
        _, errors = process.communicate()
        resumed += "resumed after epoch" in (errors or "")
        if (folder / "manifest.json").exists():
            if kills >= KILLS:
                break
            assert contents(folder) == contents(undisturbed)
            shutil.rmtree(folder)
        elif kills >= KILLS:
            break
    assert kills >= KILLS
    assert resumed >= 2
    finish(folder)
    assert contents(folder) == contents(undisturbed)


def test_a_finished_shard_is_left_alone(undisturbed: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in undisturbed.iterdir()}
    finish(undisturbed)
    assert {path.name: path.stat().st_mtime_ns for path in undisturbed.iterdir()} == before


def test_leftovers_of_a_killed_process_are_cleared_away(undisturbed: Path, tmp_path: Path) -> None:
    """A kill between the manifest and the deletion of the snapshots, and one in the middle of a file."""
    folder = Path(shutil.copytree(undisturbed, tmp_path / "mnist" / "shard-00005"))
    (folder / "state-0123abcd-00011.safetensors").write_bytes(b"snapshot")
    (folder / ".runs.arrow.x1y2.part").write_bytes(b"half a file")
    finish(folder)
    assert contents(folder) == contents(undisturbed)


def test_the_shard_holds_what_the_zoo_needs(undisturbed: Path) -> None:
    manifest = Manifest.read(undisturbed)
    for name in manifest.files:
        manifest.check_file(undisturbed, name)
    assert manifest.details["preset"] == "tiny"
    with pa.ipc.open_stream(undisturbed / CHECKPOINTS_FILE) as reader:
        rows = reader.read_all().to_pylist()
    with pa.ipc.open_stream(undisturbed / RUNS_FILE) as reader:
        runs = reader.read_all().to_pylist()
    assert [run["status"] for run in runs] == ["completed"] * 3
    assert all(len(run["test_accuracy"]) == len(run["train_loss"]) == 12 for run in runs)
    assert [row["checkpoint"] for row in rows] == ["epoch_50", "epoch_75", "epoch_100", "best"] * 3
    for row in rows:
        run = next(run for run in runs if run["run_id"] == row["run_id"])
        assert row["test_accuracy"] == run["test_accuracy"][row["epoch"] - 1]
        assert row["learning_rate"] == run["learning_rate"]
    best = rows[3]
    assert best["epoch"] == runs[0]["best_epoch"]
    assert best["test_accuracy"] == max(runs[0]["test_accuracy"])
    timing = json.loads((undisturbed / "timing.json").read_text())
    assert 0 < timing["engine_seconds"] < timing["wall_seconds"]


def test_stored_accuracy_is_measured_again_from_the_file(undisturbed: Path) -> None:
    with pa.ipc.open_stream(undisturbed / CHECKPOINTS_FILE) as reader:
        rows = reader.read_all().to_pylist()
    task = few_digits(train=80, test=30)
    for row in rows[:4]:
        measured = zoo.evaluate(zoo.build_model(zoo.MNIST, row["weights"]), task)
        assert measured.accuracy == pytest.approx(row["test_accuracy"], abs=1e-6)
        assert measured.loss == pytest.approx(row["test_loss"], rel=1e-4)


def test_a_damaged_snapshot_is_passed_over_for_the_one_before(undisturbed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mnist" / "shard-00005"
    process = worker(folder)
    while len(list(folder.glob("state-*"))) < 2 and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    newest = max(folder.glob("state-*"))
    damaged = bytearray(newest.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    newest.write_bytes(damaged)
    errors = finish(folder)
    assert "its checksum does not fit: the file is damaged" in errors
    assert "resumed after epoch" in errors
    assert contents(folder) == contents(undisturbed)


def test_snapshots_of_another_training_are_neither_used_nor_lost(tmp_path: Path) -> None:
    config = RunConfig("mnist", "sgd", 1e-3, 0.0, 0.1, 0.0, 1.0)
    state = PopulationState.initial(MNIST, [config], torch.device("cpu"))
    for epoch in (90, 91):
        state.epoch = epoch
        save_snapshot(tmp_path, state, "a" * 64, seconds=1.0)
    for epoch in (1, 2, 3):
        state.epoch = epoch
        save_snapshot(tmp_path, state, "b" * 64, seconds=1.0)
    snapshot = load_snapshot(tmp_path, "b" * 64, state)
    assert snapshot is not None
    assert snapshot[0].epoch == 3
    other = load_snapshot(tmp_path, "a" * 64, state)
    assert other is not None
    assert other[0].epoch == 91
    assert len(list(tmp_path.glob("state-*"))) == 4


def test_two_processes_do_not_share_a_shard(tmp_path: Path) -> None:
    folder = tmp_path / "mnist" / "shard-00005"
    first = worker(folder)
    while not folder.exists() and first.poll() is None:
        time.sleep(0.01)
    first.send_signal(signal.SIGSTOP)  # asleep, it still holds the lock
    second = worker(folder)
    _, errors = second.communicate(timeout=60)
    assert second.returncode != 0
    assert "another process is at work on this shard" in errors
    first.kill()
    first.communicate()


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "generation.run", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        env=os.environ | {"HF_HUB_OFFLINE": "1", **environment},
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shard", "999"], "error: shard 999 does not exist: this sweep has 32 shards, numbered 0 to 31"),
        (["--shard", "3", "--data", "nowhere"], "error: nowhere/MNIST/raw/train-images-idx3-ubyte[.gz] is missing"),
        (["--shard", "3", "--device", "abacus"], "error: unknown device 'abacus'"),
        (["--task", "agnews", "--shard", "3"], "error: AG News is not in"),
        (["--shard", "3", "--runs", "0"], "error: argument --runs: must be at least 1, got 0"),
        (["--shard", "3", "--models-per-pass", "-1"], "error: argument --models-per-pass: must be at least 1, got -1"),
        (["--shard", "3", "--device", "cuda:99"], "error: there is no device 'cuda:99'"),
        (["--shard", "3", "--preset", "lite"], "error: MNIST is not in"),
        ([], "name a shard with --shard"),
    ],
)
def test_bad_input_gets_one_line_and_a_non_zero_exit(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = command(*arguments, "--out", str(tmp_path), SMALL_TRANSFORMER_ZOO_DATA=str(tmp_path / "none"))
    assert done.returncode == 2
    *_, last = done.stderr.splitlines()
    assert message in last
    assert "Traceback" not in done.stderr


def test_a_finished_shard_of_another_size_is_not_overwritten(undisturbed: Path, tmp_path: Path) -> None:
    shutil.copytree(undisturbed, tmp_path / "mnist" / "shard-00005")
    done = command("--shard", "5", "--preset", "demo", "--out", str(tmp_path))
    assert done.returncode == 2
    assert "holds a finished shard of preset tiny with 3 runs, not demo with 8" in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="the demo is the default only where there is no GPU")
def test_without_gpu_and_preset_it_says_that_it_runs_the_demo() -> None:
    done = command("--list")
    assert done.returncode == 0
    assert "preset demo, because there is no GPU" in done.stderr
    assert "6 epochs per run" in done.stdout


def test_a_snapshot_of_an_impossible_epoch_is_refused(tmp_path: Path) -> None:
    state = PopulationState.initial(MNIST, [RunConfig("mnist", "sgd", 1e-3, 0.0, 0.1, 0.0, 1.0)], torch.device("cpu"))
    state.epoch = 101
    save_snapshot(tmp_path, state, "a" * 64, seconds=1.0)
    with pytest.warns(UserWarning, match=r"epoch 101 after 1\.0 s does not belong to this training"):
        assert load_snapshot(tmp_path, "a" * 64, state) is None


def test_a_long_training_is_announced_before_it_starts(tmp_path: Path) -> None:
    """The paper's preset on a CPU: days, and it says so; the process is stopped when it has."""
    write_digits(tmp_path / "data", train=512, test=100)
    arguments = ["--shard", "0", "--preset", "paper", "--data", str(tmp_path / "data"), "--device", "cpu"]
    process = subprocess.Popen(
        [sys.executable, "-m", "generation.run", *arguments, "--out", str(tmp_path / "runs")],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stderr is not None
    lines = [process.stderr.readline() for _ in range(3)]
    process.kill()
    process.communicate()
    assert "note: mnist is trained on other data than MNIST, " in lines[1]
    assert re.search(r"that will take about [\d.]+ (min|h|days) on this CPU; --preset demo takes minutes", lines[2])


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (45.0, "45 s"), (720.0, "12 min"), (3.5 * 3600, "3.5 h"), (9.0 * 86400, "9 days")],
)
def test_durations_are_said_as_a_person_would(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_a_resumed_trainings_rate_counts_its_own_epochs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 110.0, 120.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    progress = EpochProgress(runs=50, epochs=100, first_epoch=80)
    accuracy = torch.tensor([0.5, float("nan"), 0.7])
    assert progress.describe(81, accuracy, 1) == (
        "5 model-epochs/s  accuracy best 0.700 median 0.500  1 diverged  3 min left"
    )
    assert progress.describe(100, accuracy, 0) == "50 model-epochs/s  accuracy best 0.700 median 0.500"
