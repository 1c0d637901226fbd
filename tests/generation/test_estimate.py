"""``--dry-run``: what a job will take, from steps that are timed, with nothing written."""

import math
import re
import time
from pathlib import Path

import pytest
import torch

from generation.estimate import _shaped_data, estimate_seconds
from generation.job import Job
from generation.population.torch_engine import fitting_models
from generation.population.trainer import PopulationTrainer
from generation.protocol import Preset
from generation.run import main
from generation.sweep import Sweep
from generation.task import named_task
from tests.generation.small_tasks import write_texts
from tests.generation.test_task_file import SMALL, write, write_images
from tests.refusal import refusal

TEXT = SMALL + "[protocol]\nepochs = 3\nbatch_size = 4"
OBSTACLE = "the fused engine cannot train here: it needs a batch size that is a multiple of 16 below 65536, got 4"


def test_a_dry_run_prints_the_work_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_images(tmp_path)
    out = tmp_path / "runs"
    words = ["--task", str(write(tmp_path, TEXT)), "--seeds", "2", "--out", str(out), "--device", "cpu"]
    main([*words, "--dry-run"])
    work, data, engine, seconds, size = capsys.readouterr().out.splitlines()
    # 4 configurations in each of two shards, of train fractions 1.0 and 0.8 with 5 and 4 batches per epoch
    assert work == (
        "small-repeats, preset own: 16 runs to train in 2 shards, 3 epochs each, "
        f"{3 * 8 * (5 + 4):,} training steps in all"
    )
    assert data.endswith("20 training and 20 test examples")
    assert engine == f"engine: torch; {OBSTACLE}"
    assert re.match(rf"time: about \d+ s on this machine \(CPU, {torch.get_num_threads()} threads\)", seconds)
    assert not out.exists()

    main([*words, "--shard", "0"])
    capsys.readouterr()
    written = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) / 1e6
    main([*words, "--dry-run"])
    work, *_, rest = capsys.readouterr().out.splitlines()
    assert "8 runs to train in 1 shard, " in work, "what is there is not trained again"
    for line, shards in ((size, 2), (rest, 1)):
        estimate = re.search(r"about ([\d.]+) MB", line)
        assert estimate
        assert float(estimate[1]) == pytest.approx(shards * written, rel=0.05)
    main([*words, "--shard", "0", "--dry-run"])
    assert capsys.readouterr().out == f"all runs are finished in {out}: nothing to do\n"


def test_a_dry_run_counts_the_vectors_of_learned_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = write_texts(tmp_path, train=96, test=40), tmp_path / "runs"
    words = ["--task", str(path), "--device", "cpu", "--out", str(out), "--dry-run"]
    main(words)
    assert 'has embedding = "learned"; use one or the other' in refusal(main, [*words, "--vectors", "v.txt"], capsys)
    task = named_task(path)
    job = Job(Sweep(task, Preset("own", task.protocol), "shared"), out, device="cpu")
    counted = _shaped_data(job).spec
    assert counted.vocabulary == 18
    assert not out.exists()
    assert counted == job.load().spec


def test_the_time_is_that_of_the_steps_that_were_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PopulationTrainer, "train_epoch", lambda self: time.sleep(0.1))
    monkeypatch.setattr(PopulationTrainer, "measure_checkpoints", lambda self: time.sleep(0.05))
    write_images(tmp_path)
    task = named_task(write(tmp_path, TEXT))
    job = Job(Sweep(task, Preset("own", task.protocol), "8"), tmp_path / "runs", device="cpu")
    at_once = torch.get_num_threads() * fitting_models(torch.device("cpu"), job.load().spec, batch_size=4)
    rounds = math.ceil(32 / at_once) / 2
    seconds, engine = estimate_seconds(job, job.configs(0), job.load(), steps=4)
    assert engine == "torch"
    assert seconds == pytest.approx((3 * 0.1 + 0.05) * rounds * 20 / 16, rel=0.2)


@pytest.mark.long
@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(
    ("words", "work"),
    [
        (["--task", "mnist", "--preset", "paper", "--shard", "0", "--runs", "1"], "1 run to train in 1 shard"),
        (["--task", "agnews", "--preset", "lite", "--sample", "2", "--where", "dropout > 0"], "2 runs to train"),
        (["--task", "mnist", "--preset", "demo", "--shard", "3", "--seeds", "distinct", "--runs", "1"], "126 training"),
    ],
)
@pytest.mark.filterwarnings("ignore:no --data")
def test_the_papers_tasks_need_no_download(
    words: list[str],
    work: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SMALL_TRANSFORMER_ZOO_DATA", str(tmp_path / "none"))
    main([*words, "--device", "cpu", "--out", str(tmp_path / "out"), "--dry-run"])
    assert work in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_a_dry_run_refuses_what_the_training_would_refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_images(tmp_path)
    path = write(tmp_path, SMALL)
    words = ["--task", str(path), "--shard", "0", "--device", "cpu", "--out", str(tmp_path / "runs"), "--dry-run"]
    assert "do not fill one batch of 128" in refusal(main, words, capsys)
    assert "the fused engine cannot train here" in refusal(main, [*words, "--engine", "fused"], capsys)
    assert "--list shows all shards: leave out --shard and --dry-run" in refusal(main, [*words[2:], "--list"], capsys)


@pytest.mark.parametrize("words", [["--dry-run"], []])
def test_a_train_fraction_without_an_example_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    write_images(tmp_path)
    path = write(tmp_path, re.sub(r"train_fraction = .*", "train_fraction = 0.001", TEXT))
    words = ["--task", str(path), "--shard", "0", "--out", str(tmp_path / "runs"), "--device", "cpu", *words]
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "error: 0 training examples do not fill one batch of 4" in capsys.readouterr().err.splitlines()[-1]
