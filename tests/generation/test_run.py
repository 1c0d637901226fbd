"""The command: it survives being killed, does nothing twice, and reports a fault in one line."""

import json
import random
import re
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import torch

import zoo
from generation.estimate import estimate_seconds
from generation.job import Job
from generation.population.engine import PopulationState
from generation.population.torch_engine import TorchEngine
from generation.population.trainer import PopulationTrainer
from generation.protocol import Protocol, RunConfig
from generation.run import main
from generation.shard import _describe_epoch, _load_snapshot, _save_snapshot
from tests.faults.processes import finish as run_to_end
from tests.faults.processes import start
from tests.generation.small_tasks import few_digits, few_lines, write_digits
from tests.generation.test_task_file import SMALL, write, write_images
from tests.generation.tiny_shard import train_tiny_shard
from tests.refusal import refusal
from zoo.command import duration
from zoo.format.manifest import Manifest
from zoo.format.shard import CHECKPOINTS_FILE, RUNS_FILE, Shard
from zoo.tasks.examples import TaskData
from zoo.transformer.spec import MNIST

KILLS = 5


def finish(folder: Path) -> str:
    """Trains the tiny shard whose folder this is, OUT/mnist/shard-00005, and returns what was printed."""
    log = folder.parent.parent / "log"
    assert run_to_end(train_tiny_shard, folder.parent.parent, log=log) == 0, log.read_text()
    return log.read_text()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "timing.json"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed") / "mnist" / "shard-00005"
    train_tiny_shard(folder.parent.parent)
    return folder


@pytest.mark.long
def test_resume_after_kills_reproduces_the_same_bytes(undisturbed: Path, tmp_path: Path) -> None:
    """SIGKILL at five random moments between the first snapshot and the end; the soak has a hundred."""
    folder, log = tmp_path / "mnist" / "shard-00005", tmp_path / "killed.log"
    chooser = random.Random(0)
    kills = 0
    for _ in range(4 * KILLS):
        newest = max(folder.glob("state-*"), default=None)
        process = start(train_tiny_shard, tmp_path, log=log)
        deadline = time.monotonic() + 60
        # let it get past its start, by at least one snapshot, so that the kills do not all hit the imports
        while process.is_alive() and time.monotonic() < deadline:
            if max(folder.glob("state-*"), default=None) != newest:
                break
            time.sleep(0.005)
        time.sleep(chooser.uniform(0, 0.15))
        process.kill()
        process.join()
        kills += process.exitcode == -signal.SIGKILL
        if kills >= KILLS:
            break
        if (folder / "manifest.json").exists():
            assert contents(folder) == contents(undisturbed)
            shutil.rmtree(folder)
    assert kills >= KILLS
    assert log.read_text().count("resumed after epoch") >= 2
    finish(folder)
    assert contents(folder) == contents(undisturbed)


def test_a_finished_shard_is_left_alone(undisturbed: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in undisturbed.iterdir()}
    finish(undisturbed)
    assert {path.name: path.stat().st_mtime_ns for path in undisturbed.iterdir()} == before


def test_leftovers_of_a_killed_process_are_deleted(undisturbed: Path, tmp_path: Path) -> None:
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


@pytest.mark.long
def test_a_damaged_snapshot_is_passed_over_for_the_one_before(undisturbed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mnist" / "shard-00005"
    process = start(train_tiny_shard, tmp_path)
    while len(list(folder.glob("state-*"))) < 2 and process.is_alive():
        time.sleep(0.005)
    process.kill()
    process.join()
    newest = max(folder.glob("state-*"))
    damaged = bytearray(newest.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    newest.write_bytes(damaged)
    errors = finish(folder)
    assert "its checksum does not fit: the file is damaged" in errors
    assert "resumed after epoch" in errors
    assert contents(folder) == contents(undisturbed)


def test_snapshots_of_another_training_are_neither_used_nor_lost(tmp_path: Path) -> None:
    config = RunConfig(task="mnist", optimizer="sgd", learning_rate=1e-3, init_std=0.1)
    state = PopulationState.initial(MNIST, [config], torch.device("cpu"))
    for epoch in (90, 91):
        state.epoch = epoch
        _save_snapshot(tmp_path, state, "a" * 64, seconds=1.0)
    for epoch in (1, 2, 3):
        state.epoch = epoch
        _save_snapshot(tmp_path, state, "b" * 64, seconds=1.0)
    snapshot = _load_snapshot(tmp_path, "b" * 64, state)
    assert snapshot is not None
    assert snapshot[0].epoch == 3
    other = _load_snapshot(tmp_path, "a" * 64, state)
    assert other is not None
    assert other[0].epoch == 91
    assert len(list(tmp_path.glob("state-*"))) == 4


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shard", "999"], "error: shard 999 does not exist: this sweep has 32 shards, numbered 0 to 31"),
        (["--shard", "3", "--data", "nowhere"], "error: nowhere/MNIST/raw/train-images-idx3-ubyte[.gz] is missing"),
        (["--shard", "3", "--device", "abacus"], "error: unknown device 'abacus'"),
        (["--task", "agnews", "--shard", "3"], "error: AG News is not in"),
        (["--shard", "3", "--runs", "0"], "error: argument --runs: must be a whole number of at least 1, got '0'"),
        (
            ["--shard", "3", "--models-per-pass", "-1"],
            "error: argument --models-per-pass: must be a whole number of at least 1, got '-1'",
        ),
        (["--shard", "3", "--device", "cuda:99"], "error: there is no device 'cuda:99'"),
        (["--shard", "3", "--preset", "lite"], "error: MNIST is not in"),
        (
            ["--shard", "3", "--snapshot-seconds", "nan"],
            "error: argument --snapshot-seconds: must be a number of at least 0, got 'nan'",
        ),
        (["--shard", "3", "--list"], "error: --list shows all shards: leave out --shard and --dry-run"),
        ([], "error: name a shard with --shard"),
    ],
)
def test_bad_input_gets_one_line_and_a_non_zero_exit(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SMALL_TRANSFORMER_ZOO_DATA", str(tmp_path / "none"))
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--out", str(tmp_path)])
    assert ended.value.code == 2
    *_, last = capsys.readouterr().err.splitlines()
    assert message in last


@pytest.mark.filterwarnings("ignore:no --data")
def test_word_vectors_are_not_for_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--shard", "0", "--preset", "demo", "--vectors", "glove", "--out", str(tmp_path)]
    assert "error: --vectors is for texts with labels, and mnist has images" in refusal(main, arguments, capsys)


def test_the_list_of_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("no shards")
    assert "notes.txt is not a folder" in refusal(
        main, ["--list", "--preset", "demo", "--out", str(tmp_path / "notes.txt")], capsys
    )


@pytest.mark.parametrize("url", ["", "file://"])
def test_a_shard_that_does_not_exist_leaves_no_trace(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--shard", "40", "--preset", "demo", "--out", f"{url}{tmp_path}", "--scratch", str(tmp_path)]
    assert "shard 40 does not exist" in refusal(main, arguments, capsys)
    assert not list(tmp_path.iterdir())


def test_the_list_counts_the_runs_that_would_be_trained(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--list", "--preset", "demo", "--runs", "2"])
    assert {line.split("│")[3].strip() for line in capsys.readouterr().out.splitlines() if "│" in line} == {"2"}


def test_a_finished_shard_of_another_size_is_not_overwritten(
    undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(undisturbed, tmp_path / "mnist" / "shard-00005"))
    line = refusal(main, ["--shard", "5", "--preset", "demo", "--out", str(tmp_path)], capsys)
    assert "holds a finished shard of preset tiny with 3 runs, not demo with 8" in line
    assert contents(folder) == contents(undisturbed)


@pytest.mark.long
def test_a_shard_of_fewer_runs_is_continued_to_the_bytes_of_one_trained_at_once(
    undisturbed: Path, tmp_path: Path
) -> None:
    """First one run, then two, then all three; the runs that are there are not trained again."""
    folder = tmp_path / "mnist" / "shard-00005"
    seconds = []
    for runs in (1, 2, None):
        train_tiny_shard(tmp_path, runs)
        assert Shard.read(folder).record.runs == len(Shard.read(folder).runs()) == (runs or 3)
        seconds.append(Shard.read(folder).timing.wall_seconds)
    assert seconds == sorted(seconds), "the time of all processes"
    assert contents(folder) == contents(undisturbed)
    assert [path.name for path in sorted(folder.parent.iterdir())] == [".shard-00005.lock", folder.name]
    with pytest.raises(ValueError, match="of preset tiny with 3 runs, not tiny with 2: choose another --out"):
        train_tiny_shard(tmp_path, 2)


@pytest.mark.long
@pytest.mark.parametrize("different", ["data", "run_id"])
def test_a_shard_trained_in_another_way_is_not_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, different: str
) -> None:
    train_tiny_shard(tmp_path, 1)
    before = contents(tmp_path / "mnist" / "shard-00005")
    if different == "data":
        other = replace(few_digits(train=80, test=30), source="other digits")
        monkeypatch.setattr("tests.generation.tiny_shard.few_digits", lambda **_: other)
        different = "data_source"
    else:
        monkeypatch.setattr(Job, "configs", lambda self, shard: self.sweep.shard(shard)[::-1][: self.runs])
    with pytest.raises(ValueError, match=f"holds 1 run that cannot be continued, since {different} would be different"):
        train_tiny_shard(tmp_path)
    assert contents(tmp_path / "mnist" / "shard-00005") == before


def test_the_list_shows_what_shards_hold_and_one_of_fewer_runs_is_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def states(*words: str) -> list[str]:
        main(["--list", "--task", str(path), "--out", str(tmp_path / "runs"), *words])
        lines = [line.split("│") for line in capsys.readouterr().out.splitlines() if "│" in line]
        text = "".join("\n" * bool(line[1].strip()) + line[4] for line in lines)
        return [" ".join(state.split()) for state in text.split("\n")[1:]]

    write_images(tmp_path)
    text = SMALL + "[protocol]\nepochs = 1\nbatch_size = 4"
    path = write(tmp_path, text)
    assert states() == ["", ""]
    train = ["--task", str(path), "--shard", "0", "--device", "cpu", "--out"]
    main([*train, str(tmp_path / "runs"), "--runs", "3"])
    assert states() == ["3 of 4 runs, preset own", ""]
    assert states("--runs", "3") == ["finished, preset own", ""]
    write(tmp_path, text.replace("patch_size = 4", "patch_size = 2"))
    assert states() == ["holds a finished shard of another small, whose task file was different", ""]
    write(tmp_path, text)
    for out in ("runs", "at-once"):
        main([*train, str(tmp_path / out)])
    assert states() == ["finished, preset own", ""]
    assert contents(tmp_path / "runs/small/shard-00000") == contents(tmp_path / "at-once/small/shard-00000")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the demo is the default only where there is no GPU")
def test_without_gpu_and_preset_it_prints_that_it_runs_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--list"])
    printed = capsys.readouterr()
    assert "preset demo, because there is no GPU" in printed.err
    assert "6 epochs per run" in printed.out


def test_a_snapshot_of_an_impossible_epoch_is_refused(tmp_path: Path) -> None:
    state = PopulationState.initial(
        MNIST, [RunConfig(task="mnist", optimizer="sgd", learning_rate=1e-3, init_std=0.1)], torch.device("cpu")
    )
    state.epoch = 101
    _save_snapshot(tmp_path, state, "a" * 64, seconds=1.0)
    with pytest.warns(UserWarning, match=r"epoch 101 after 1\.0 s does not belong to this training"):
        assert _load_snapshot(tmp_path, "a" * 64, state) is None


@pytest.mark.long
def test_a_long_training_is_announced_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The paper's preset on a CPU takes days; it is interrupted where the first epoch would begin."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("generation.shard.estimate_seconds", estimate_seconds)
    monkeypatch.setattr("generation.shard._train_epochs", interrupt)
    write_digits(tmp_path / "data", train=512, test=100)
    arguments = ["--shard", "0", "--preset", "paper", "--data", str(tmp_path / "data"), "--device", "cpu"]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--out", str(tmp_path / "runs")])
    assert ended.value.code == 130
    _, note, announced, last = capsys.readouterr().err.splitlines()
    assert note.startswith("note: mnist is trained on other data than MNIST, ")
    assert re.search(r"that will take about [\d.]+ (min|h|days) on this CPU; --preset demo takes minutes", announced)
    assert last == "interrupted"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (45.0, "45 s"), (720.0, "12 min"), (3.5 * 3600, "3.5 h"), (9.0 * 86400, "9 days")],
)
def test_durations_are_printed_in_readable_units(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def trainer_after(
    task: TaskData, epochs: int, epoch: int, runs: int, label: str, values: list[float]
) -> PopulationTrainer:
    """A population after an epoch in which the first runs have these labels and the others none."""
    protocol = Protocol(epochs, warmup_epochs=1, batch_size=16)
    run = RunConfig(task=task.spec.task, optimizer="sgd", learning_rate=1e-3, init_std=0.1, protocol=protocol)
    trainer = PopulationTrainer(TorchEngine([run] * runs, task))
    trainer.state.epoch = epoch
    getattr(trainer.state, label)[: len(values), epoch - 1] = torch.tensor(values, dtype=torch.float64)
    return trainer


def test_a_resumed_trainings_rate_counts_its_own_epochs_only() -> None:
    accuracy = [0.5, float("nan"), 0.7]
    trainer = trainer_after(few_digits(16, 1), 100, 81, 50, "test_accuracy", accuracy)
    trainer.state.alive[1] = False
    assert _describe_epoch(trainer, 80, seconds=10.0) == (
        "5 model-epochs/s  accuracy best 0.700 median 0.500  1 diverged  3 min left"
    )
    trainer = trainer_after(few_digits(16, 1), 100, 100, 50, "test_accuracy", accuracy)
    assert _describe_epoch(trainer, 80, seconds=20.0) == "50 model-epochs/s  accuracy best 0.700 median 0.500"


def test_the_progress_of_language_models_is_their_loss() -> None:
    losses = [2.5, float("nan"), 2.25, float("inf"), 3.0]
    trainer = trainer_after(few_lines(16, 1), 1, 1, 20, "test_loss", losses)
    trainer.state.alive[[1, 3]] = False
    assert _describe_epoch(trainer, 0, seconds=10.0) == "2 model-epochs/s  loss best 2.250 median 2.500  2 diverged"
