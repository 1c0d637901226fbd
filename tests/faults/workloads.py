"""The work of the processes of these tests: train a tiny shard, publish, read a zoo. Each takes a second or less."""

import hashlib
import time
from pathlib import Path

import torch

import zoo
from generation import run
from generation.protocol import Preset, Protocol
from generation.sweep import Sweep
from generation.task import named_task
from tests.fabricated import publish
from tests.generation.small_tasks import few_digits, train_small_shard
from zoo.command import _guarded

torch.set_num_threads(1)
SWEEP = Sweep(named_task("mnist"), Preset("tiny", Protocol(epochs=6, warmup_epochs=1, batch_size=16), runs_per_shard=2))
SHARD = 5
TASK = few_digits(train=32, test=20)


def shard_of(out: Path) -> Path:
    return out / "mnist" / f"shard-{SHARD:05d}"


def train(out: Path, clock: str = "steady") -> None:
    """The tiny shard, with a snapshot after each epoch; it ends like a command."""
    jump(clock)

    @_guarded
    def main(arguments: list[str] | None = None) -> None:
        train_small_shard(SWEEP, SHARD, out, TASK)

    main()


def train_first(out: Path) -> None:
    """The first of its runs alone."""
    train_small_shard(SWEEP, SHARD, out, TASK, runs=1)


def train_language(out: Path) -> None:
    """A shard of language models, of the task in this folder, with a snapshot after each epoch."""
    words = ["--task", str(out / "lines.toml"), "--shard", "0", "--device", "cpu", "--snapshot-seconds", "0"]
    run.main([*words, "--out", str(out)])


def publish_runs(runs: Path, out: Path) -> None:
    publish(runs, out)


def read_all(folder: Path) -> None:
    """Prints a hash over every row of a zoo, shuffled three ways."""
    digest = hashlib.sha256()
    reader = zoo.open(folder, "mnist", split="all")
    for seed in range(3):
        for weights, rows in reader.batches(17, shuffle=True, seed=seed):
            digest.update(weights.flat().numpy().tobytes())
            digest.update("".join(rows["run_id"]).encode())
    print(digest.hexdigest())


def jump(clock: str) -> None:
    """Clocks that misbehave: the wall clock leaps years back and forth, the other one stands still or leaps ahead."""
    if clock == "steady":
        return
    wall, steps = time.time, iter(range(10**9))
    time.time = lambda: wall() + (-1) ** next(steps) * 1e9
    time.time_ns = lambda: int(time.time() * 1e9)
    time.monotonic = (lambda: 0.0) if clock == "frozen" else (lambda: next(steps) * 3600.0)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder but the timing, which differs from run to run."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "timing.json")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
