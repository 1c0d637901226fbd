"""Brings one shard of a job to its end: alone, from its last snapshot, and to the place where it belongs.

Idempotent: a finished shard is left alone. Killed at any moment and started again, it ends with the same bytes.
"""

import time
from typing import Any

import torch

from generation.estimate import estimated_seconds
from generation.job import Job
from generation.population.trainer import PopulationTrainer
from generation.progress import EpochProgress, Report, epoch_bar, no_report, say
from generation.storage.shard_tables import shard_tables
from generation.storage.snapshot import delete_snapshots, fingerprint, load_snapshot, save_snapshot
from zoo.command import duration
from zoo.format.shard import ShardRecord, finished_record, write_shard
from zoo.storage.atomic import remove_unfinished

LONG_SECONDS = 600.0  # a training that is worth announcing


def train_shard(job: Job, shard: int, report: Report = no_report) -> None:
    """Trains a shard of the job and, where its place is a URL, uploads it. ``report`` hears of every epoch."""
    job.configs(shard)  # a shard that does not exist is an error here, before a lock is made and a store is asked
    if job.remote and job.is_finished(shard):
        say(f"shard {shard} is finished already in {job.place}: nothing to do")
        return
    if job.remote:
        job.remote.try_writing()
    with job.lock(shard):
        train_in_folder(job, shard, report)
    if job.remote:
        with job.lock(shard):
            # another process here may have been quicker, and cleared the folder away
            if not job.is_finished(shard):
                job.remote.upload(job.folder(shard))
        say(f"shard {shard} is uploaded to {job.place}")


def train_in_folder(job: Job, shard: int, report: Report) -> None:
    """The finished shard in its local folder; call it with the lock held."""
    folder, clock = job.folder(shard), Clock()
    remove_unfinished(folder)
    if job.accepts(shard, finished_record(folder), str(folder)):
        delete_snapshots(folder)
        say(f"{folder} is finished already: nothing to do")
        return
    trainer, record = job.prepare(shard)
    say(
        f"{record.runs} runs of {record.task}, {job.sweep.title(shard)}, preset {record.preset}: "
        f"{trainer.protocol.epochs} epochs on {trainer.device}, {record.engine} engine; data: {record.data_source}"
    )
    if note := record.data_note():
        say(f"note: {record.config} is trained on {note}; its manifest and card will say so")
    if (seconds := estimated_seconds(trainer)) > LONG_SECONDS:
        say(f"that will take about {duration(seconds)} on this CPU; --preset demo takes minutes, and a GPU far less")
    folder.mkdir(parents=True, exist_ok=True)
    train_epochs(job, trainer, record, clock, report)
    write_shard(folder, record, *shard_tables(trainer, shard), lambda: timing(trainer, clock))
    delete_snapshots(folder)
    say(f"{folder}: {record.runs} runs, {trainer.diverged} of them diverged, in {clock.seconds():.0f} s")


class Clock:
    """How long a shard has taken, the processes before this one included."""

    def __init__(self) -> None:
        self.start, self.earlier = time.monotonic(), 0.0

    def seconds(self) -> float:
        return self.earlier + time.monotonic() - self.start


def train_epochs(job: Job, trainer: PopulationTrainer, record: ShardRecord, clock: Clock, report: Report) -> None:
    """Every epoch that is left, from the last snapshot where there is one."""
    folder = job.folder(record.shard)
    owner = fingerprint(trainer.configs, data=trainer.task.sha256, record=record.to_dict())
    if (snapshot := load_snapshot(folder, owner, trainer.state)) is not None:
        trainer.state, clock.earlier = snapshot
        say(f"resumed after epoch {trainer.state.epoch} of {trainer.protocol.epochs}")
    last_snapshot, epochs = time.monotonic(), trainer.protocol.epochs
    progress = EpochProgress(record.runs, epochs, trainer.state.epoch)
    with epoch_bar() as bar:
        row = bar.add_task("", total=epochs, completed=trainer.state.epoch, status="")
        while not trainer.finished:
            trainer.train_epoch()
            epoch = trainer.state.epoch
            accuracy = trainer.state.test_accuracy[:, epoch - 1].cpu()  # waits for the end of the epoch
            status = progress.describe(epoch, accuracy, trainer.diverged)
            bar.update(row, completed=epoch, status=status)
            report(epoch, epochs, status)
            if bar.disable:
                say(f"epoch {epoch}/{epochs}  {status}")
            if time.monotonic() - last_snapshot >= job.snapshot_seconds and not trainer.finished:
                save_snapshot(folder, trainer.state, owner, clock.seconds())
                last_snapshot = time.monotonic()


def timing(trainer: PopulationTrainer, clock: Clock) -> dict[str, Any]:
    """What ``timing.json`` says; the engine's time is known where one process trained the whole shard."""
    return {
        "wall_seconds": round(clock.seconds(), 3),
        "engine_seconds": None if clock.earlier else round(trainer.engine_time.seconds(), 3),
        "device": device_name(trainer.device),
    }


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
