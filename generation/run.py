"""Trains one shard of the zoo: all its runs at once, resumable, and nothing to do when it is finished.

    python -m generation.run --shard 3                             the paper's grid with a GPU, a small demo without
    python -m generation.run --task agnews --shard 0 --preset demo --out runs --data DIR --device cpu
    python -m generation.run --list                                the shards

A run that is killed goes on from its last snapshot when the same command is given again, and ends with the same bytes.
"""

import argparse
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor

from generation.job import Job, add_options
from generation.population.trainer import PopulationTrainer
from generation.storage.shard_tables import finished_details, shard_folder, write_shard
from generation.storage.snapshot import delete_snapshots, fingerprint, load_snapshot, save_snapshot
from generation.sweep import PRESETS, SHARDS, Sweep
from zoo.command import command, command_parser
from zoo.device import choose_device
from zoo.storage.atomic import remove_unfinished
from zoo.storage.lock import exclusive
from zoo.tasks import TaskData

Report = Callable[[int, int, str], None]
"""Told after each epoch: its number, how many there are, and how it goes."""

console = Console(stderr=True)


def say(line: str) -> None:
    console.print(line, soft_wrap=True, highlight=False, markup=False)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("generation.run", __doc__)
    parser.add_argument("--shard", type=int, help=f"which shard to train, 0 to {SHARDS - 1}")
    parser.add_argument("--list", action="store_true", help="list the shards and which of them are finished")
    add_options(parser)
    options = parser.parse_args(arguments)
    if options.shard is None and not options.list:
        parser.error(f"name a shard with --shard 0 … {SHARDS - 1}, or --list them")
    return options


@command
def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    job = Job.of(options, choose_preset(options.preset, choose_device(options.device)), options.device)
    if options.list:
        list_shards(job)
    else:
        run_job(job, options.shard)


def run_job(job: Job, shard: int, report: Report = lambda epoch, epochs, status: None) -> None:
    """Brings one shard of the job to its end and to the place where it belongs."""
    runs, folder = len(job.configs(shard)), shard_folder(job.out, job.sweep.config_name, shard)
    if job.remote and is_finished(job.remote.details(folder), job.place, job.sweep, runs):
        say(f"shard {shard} is finished already in {job.place}: nothing to do")
        return
    run_shard(job.sweep, shard, runs, job.out, job.load, job.trainer(shard), job.snapshot_seconds, report)
    if job.remote:
        with shard_lock(folder):
            # another process here may have been quicker, and cleared the folder away
            if not finished_in_place(job, shard):
                job.remote.upload(folder)
        say(f"shard {shard} is uploaded to {job.place}")


def finished_in_place(job: Job, shard: int) -> bool:
    """Whether the shard is whole where it belongs; one of another preset or size there is an error."""
    folder = shard_folder(job.out, job.sweep.config_name, shard)
    details = job.remote.details(folder) if job.remote else finished_details(folder)
    return is_finished(details, job.url or str(folder), job.sweep, len(job.configs(shard)))


def run_shard(
    sweep: Sweep,
    shard: int,
    runs: int,
    out: Path,
    load: Callable[[], TaskData],
    make_trainer: Callable[[TaskData], PopulationTrainer],
    snapshot_seconds: float,
    report: Report = lambda epoch, epochs, status: None,
) -> None:
    """Brings the shard to its end, alone: nothing to do where it is finished, on from its last snapshot otherwise."""
    folder, start = shard_folder(out, sweep.config_name, shard), time.monotonic()
    with shard_lock(folder):
        remove_unfinished(folder)
        if is_finished(finished_details(folder), str(folder), sweep, runs):
            delete_snapshots(folder)
            say(f"{folder} is finished already: nothing to do")
            return
        task = load()
        trainer = make_trainer(task)
        say(
            f"{runs} runs of {sweep.task}, shard {shard} of {SHARDS}, preset {sweep.preset.name}: "
            f"{sweep.preset.protocol.epochs} epochs on {trainer.device}, {trainer.engine.name} engine; "
            f"data: {task.source}"
        )
        train_shard(trainer, folder, describe(sweep, shard, task, trainer), start, snapshot_seconds, report)


def shard_lock(folder: Path) -> AbstractContextManager[None]:
    """One process at a time works on a shard."""
    lock = folder.parent / f".{folder.name}.lock"
    return exclusive(lock, busy=f"another process is at work on this shard (it holds {lock})")


def choose_preset(name: str | None, device: torch.device) -> str:
    """The preset by name; without one the paper's where there is a GPU, else the demo, and a line that says so."""
    if name is not None:
        return name
    chosen = "paper" if device.type == "cuda" else "demo"
    why = "there is a GPU" if chosen == "paper" else "there is no GPU"
    say(f"preset {chosen}, because {why} (choose with --preset {'|'.join(PRESETS)})")
    return chosen


def describe(sweep: Sweep, shard: int, task: TaskData, trainer: PopulationTrainer) -> dict[str, Any]:
    """What the shard's manifest says of how it was made."""
    return {
        "kind": "shard",
        "config": sweep.config_name,
        "task": sweep.task,
        "spec": task.spec.to_dict(),
        "preset": sweep.preset.name,
        "protocol": asdict(sweep.preset.protocol),
        "seeds": sweep.seeds,
        "shard": shard,
        "runs": len(trainer.configs),
        "data_source": task.source,
        "embedding_sha256": task.embedding.sha256 if task.embedding else None,
        "engine": trainer.engine.name,
        "precision": trainer.engine.precision,
    }


def is_finished(details: dict[str, Any] | None, place: str, sweep: Sweep, runs: int) -> bool:
    """Whether the shard is there; a finished one of another preset or size is not overwritten but an error."""
    if details is None:
        return False
    asked = (sweep.preset.name, runs, asdict(sweep.preset.protocol))
    if (details.get("preset"), details.get("runs"), details.get("protocol")) != asked:
        raise ValueError(
            f"{place} holds a finished shard of preset {details.get('preset')} with {details.get('runs')} runs, not "
            f"{sweep.preset.name} with {runs}: choose another --out or delete it"
        )
    return True


def train_shard(
    trainer: PopulationTrainer,
    folder: Path,
    details: dict[str, Any],
    start: float,
    snapshot_seconds: float,
    report: Report,
) -> None:
    """Trains to the end, from the last snapshot where there is one, and writes the shard, which began at ``start``."""
    folder.mkdir(parents=True, exist_ok=True)
    owner = fingerprint(trainer.configs, data=trainer.task.sha256, **details)
    earlier = 0.0
    if (found := load_snapshot(folder, owner, trainer.state)) is not None:
        trainer.state, earlier = found
        say(f"resumed after epoch {trainer.state.epoch} of {trainer.protocol.epochs}")

    def wall_seconds() -> float:
        return earlier + time.monotonic() - start

    first_step = last_snapshot = time.monotonic()
    with progress() as bar:
        row = bar.add_task("", total=trainer.protocol.epochs, completed=trainer.state.epoch, status="")
        first_epoch = trainer.state.epoch
        while not trainer.finished:
            trainer.train_epoch()
            accuracy = trainer.state.test_accuracy[:, trainer.state.epoch - 1].cpu()  # waits for the end of the epoch
            diverged = int((~trainer.state.alive).sum())
            elapsed = time.monotonic() - first_step
            share = (trainer.state.epoch - first_epoch) / trainer.protocol.epochs
            # a clock too coarse to see the epoch pass is no reason to stop
            status = describe_progress(accuracy, diverged, len(trainer.configs) * share / max(elapsed, 1e-9))
            bar.update(row, completed=trainer.state.epoch, status=status)
            report(trainer.state.epoch, trainer.protocol.epochs, status)
            if bar.disable:
                say(f"epoch {trainer.state.epoch}/{trainer.protocol.epochs}  {status}")
            if time.monotonic() - last_snapshot >= snapshot_seconds and not trainer.finished:
                save_snapshot(folder, trainer.state, owner, wall_seconds())
                last_snapshot = time.monotonic()
    measures = trainer.measure_snapshots()

    def timing() -> dict[str, Any]:
        return {
            "wall_seconds": round(wall_seconds(), 3),
            "engine_seconds": None if earlier else round(trainer.engine_time.seconds(), 3),  # this process alone
            "device": device_name(trainer.device),
        }

    write_shard(folder, details["shard"], trainer.configs, trainer.state, measures, details, timing)
    delete_snapshots(folder)
    diverged = int((~trainer.state.alive).sum())
    say(f"{folder}: {len(trainer.configs)} runs, {diverged} of them diverged, in {wall_seconds():.0f} s")


def progress() -> Progress:
    return Progress(
        TextColumn("epoch"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.fields[status]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def describe_progress(accuracy: Tensor, diverged: int, models_per_second: float) -> str:
    accuracy = accuracy[~accuracy.isnan()]
    parts = [f"{models_per_second:.3g} models/s"]
    if len(accuracy):
        parts.append(f"accuracy best {float(accuracy.max()):.3f} median {float(accuracy.median()):.3f}")
    if diverged:
        parts.append(f"{diverged} diverged")
    return "  ".join(parts)


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"


def list_shards(job: Job) -> None:
    sweep = job.sweep
    table = Table(title=f"{sweep.config_name}, preset {sweep.preset.name}: {sweep.preset.protocol.epochs} epochs a run")
    for heading in ("shard", "train fraction", "runs", "state"):
        table.add_column(heading, justify="right" if heading != "state" else "left")
    for shard in range(SHARDS):
        configs = sweep.shard(shard)
        folder = shard_folder(job.out, sweep.config_name, shard)
        details = job.remote.details(folder) if job.remote else finished_details(folder)
        state = f"finished, preset {details.get('preset')}" if details else "begun" if folder.is_dir() else ""
        table.add_row(str(shard), str(configs[0].train_fraction), str(len(configs)), state)
    Console().print(table)


if __name__ == "__main__":
    main()
