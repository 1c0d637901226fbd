"""Trains one shard of a job: alone, from its last snapshot, and uploaded where its destination is a URL.

Idempotent: a finished shard is left alone. Killed at any moment and started again, it ends with the same bytes.
One that was finished with fewer runs (``--runs``) is continued: only the missing ones are trained. The shard of all
runs, with the bytes of one trained at once, then takes the place of the old one in one step.

Snapshots are safetensors files ``state-1f0c93ab-00042.safetensors``, named after the training they belong to and the
epochs done. The two newest are kept: if the newest is damaged, training resumes from the one before. Snapshots
of another training in the same folder are not read, and are deleted when the shard is finished.
"""

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from generation.estimate import estimate_seconds
from generation.job import Job
from generation.population.engine import PopulationState, checkpoint_labels
from generation.population.trainer import PopulationTrainer
from zoo.command import duration, how_many, progress_bar
from zoo.device import name_device
from zoo.format.manifest import MANIFEST_FILE, Manifest
from zoo.format.schema import BEST, RUN_SCHEMA, checkpoint_schema, usual_label, with_weights
from zoo.format.shard import CHECKPOINTS_FILE, TIMING_FILE, Shard, ShardRecord, write_shard
from zoo.format.table_file import read_batches
from zoo.storage.atomic import remove_unfinished, write_atomically
from zoo.storage.swap import recover, replacing_folder
from zoo.storage.untrusted import HeldFile
from zoo.terminal import say
from zoo.version import VERSION

_KEPT = 2  # snapshots
_PATTERN = "state-*.safetensors"
_LONGEST_HEADER = 1 << 20  # bytes, of a snapshot
_LONG_SECONDS = 600.0  # a training that is worth announcing
_Report = Callable[[int, int, str], None]
"""Called after each epoch with its number, how many there are, and a status line."""


def train_shard(job: Job, shard: int, report: _Report | None = None) -> None:
    """Trains a shard of the job and, where it belongs at a URL, uploads it; ``report`` is called after every epoch."""
    job.configs(shard)  # a shard that does not exist is an error here, before a lock is made and a store is read
    with job.lock(shard):
        if job.remote is None:
            _train_in_folder(job, shard, report)
        elif job.is_finished(shard):
            say(f"shard {shard} is finished already in {job.destination}: nothing to do")
        else:
            job.remote.try_writing()
            if job.held_runs(shard) and not job.held_runs(shard, here=True):
                job.remote.download(job.folder(shard))
            _train_in_folder(job, shard, report)
            job.remote.upload(job.folder(shard))
            say(f"shard {shard} is uploaded to {job.destination}")


def _train_in_folder(job: Job, shard: int, report: _Report | None) -> None:
    """The finished shard in its local folder; call it with the lock held."""
    folder, clock = job.folder(shard), _Clock()
    recover(folder, _shard_files)
    remove_unfinished(folder)
    held = job.held_runs(shard, here=True)
    if held == len(job.configs(shard)):
        _delete_snapshots(folder)
        say(f"{folder} is finished already: nothing to do")
        return
    trainer, record = job.prepare(shard, held)
    earlier = _earlier_runs(job, folder, record) if held else None
    say(
        f"{how_many(len(trainer.configs), 'run')} of {record.task}, {job.sweep.title(shard)}, preset {record.preset}: "
        f"{how_many(trainer.protocol.epochs, 'epoch')} on {trainer.device}, {record.engine} engine; "
        f"data: {record.data_source}"
    )
    if note := record.data_note():
        say(f"note: {record.config} is trained on {note}; its manifest and card will say so")
    on_cpu = trainer.device.type == "cpu"
    if on_cpu and (seconds := estimate_seconds(job, trainer.configs, trainer.task, steps=1)[0]) > _LONG_SECONDS:
        less = "--preset demo takes minutes, and a GPU far less" if record.task_file is None else "a GPU takes far less"
        say(f"that will take about {duration(seconds)} on this CPU; {less}")
    folder.mkdir(parents=True, exist_ok=True)
    if earlier:
        say(f"{folder} has the first {how_many(held, 'run')} already and keeps them")
        clock.earlier = earlier.timing.wall_seconds
    _train_epochs(job, trainer, record, clock, report)
    checkpoints, runs = _checkpoint_tables(trainer, trainer.measure_checkpoints()), _runs_table(trainer, shard)
    rows = checkpoints if earlier is None else chain(_stored_checkpoints(earlier), checkpoints)
    runs = runs if earlier is None else pa.concat_tables([earlier.runs().select(runs.column_names), runs])
    with nullcontext(folder) if earlier is None else replacing_folder(folder, _shard_files, wait=True) as target:
        write_shard(target, record, rows, runs, lambda: _timing(trainer, clock))
    _delete_snapshots(folder)
    diverged = runs.column("status").to_pylist().count("diverged")
    say(f"{folder}: {how_many(record.runs, 'run')}, {diverged} of them diverged, in {clock.seconds():.0f} s")


def _earlier_runs(job: Job, folder: Path, record: ShardRecord) -> Shard:
    """The finished shard in ``folder``, where it has the first runs of this one and nothing is damaged."""
    earlier = Shard.read(folder)
    earlier.check_files()
    expected = replace(record, runs=earlier.record.runs)
    different = [name for name, value in vars(expected).items() if value != getattr(earlier.record, name)]
    first = [config.run_id for config in job.configs(record.shard)[: expected.runs]]
    if earlier.runs().column("run_id").to_pylist() != first:
        different.append("run_id")
    if different:
        raise ValueError(
            f"{folder} holds {how_many(expected.runs, 'run')} that cannot be continued, since {', '.join(different)} "
            "would be different in the others: choose another --out or delete it"
        )
    return earlier


def _stored_checkpoints(shard: Shard) -> Iterator[pa.Table]:
    file = HeldFile(shard.folder / CHECKPOINTS_FILE)
    schema = checkpoint_schema(shard.record.spec)
    for batch in read_batches(pa.py_buffer(file.map()), schema, str(file.path)):
        yield pa.Table.from_batches([batch])


def _shard_files(folder: Path) -> list[str] | None:
    """The files of a finished shard, snapshots included, and the manifest last; None where it is not finished."""
    if not (folder / MANIFEST_FILE).exists():
        return None
    snapshots = [path.name for path in _snapshots(folder, _PATTERN)]
    return [*snapshots, TIMING_FILE, *Manifest.read(folder).files, MANIFEST_FILE]


class _Clock:
    """How long a shard has taken, the processes before this one included."""

    def __init__(self) -> None:
        self.start, self.earlier = time.monotonic(), 0.0

    def seconds(self) -> float:
        return self.earlier + time.monotonic() - self.start


def _train_epochs(
    job: Job, trainer: PopulationTrainer, record: ShardRecord, clock: _Clock, report: _Report | None
) -> None:
    """Every epoch that is left, from the last snapshot where there is one."""
    folder = job.folder(record.shard)
    # everything that the population's future depends on besides its state
    content = {"code": VERSION, "data": trainer.task.sha256, "record": record.to_dict()}
    content["runs"] = [config.to_dict() for config in trainer.configs]
    owner = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    if (snapshot := _load_snapshot(folder, owner, trainer.state)) is not None:
        trainer.state, clock.earlier = snapshot
        say(f"resumed after epoch {trainer.state.epoch} of {trainer.protocol.epochs}")
    epochs, first_epoch = trainer.protocol.epochs, trainer.state.epoch
    start = last_snapshot = time.monotonic()
    with progress_bar() as bar:
        row = bar.add_task("epoch", total=epochs, completed=first_epoch)
        while not trainer.finished:
            trainer.train_epoch()
            epoch = trainer.state.epoch
            # the clock may be too coarse to see the epoch pass
            status = _describe_epoch(trainer, first_epoch, max(time.monotonic() - start, 1e-9))
            bar.update(row, completed=epoch, description=status)
            if report:
                report(epoch, epochs, status)
            if bar.disable:
                say(f"epoch {epoch}/{epochs}  {status}")
            if time.monotonic() - last_snapshot >= job.snapshot_seconds and not trainer.finished:
                _save_snapshot(folder, trainer.state, owner, clock.seconds())
                last_snapshot = time.monotonic()


def _describe_epoch(trainer: PopulationTrainer, first_epoch: int, seconds: float) -> str:
    """After an epoch: model-epochs per second, the labels of the runs that are alive, the time left.

    By the epochs of this process alone, which took ``seconds``: a resumed shard's rate is not inflated.
    """
    state = trainer.state
    done, left = state.epoch - first_epoch, trainer.protocol.epochs - state.epoch
    label, more_is_better = usual_label(trainer.task.spec)
    values = getattr(state, label)[:, state.epoch - 1].cpu()
    values = values[values.isfinite()]
    parts = [f"{len(trainer.configs) * done / seconds:,.3g} model-epochs/s"]
    if len(values):
        best = float(values.max() if more_is_better else values.min())
        parts.append(f"{label.removeprefix('test_')} best {best:.3f} median {float(values.median()):.3f}")
    if trainer.diverged:
        parts.append(f"{trainer.diverged} diverged")
    if left:
        parts.append(f"{duration(seconds / done * left)} left")
    return "  ".join(parts)


def _timing(trainer: PopulationTrainer, clock: _Clock) -> dict[str, Any]:
    """The content of ``timing.json``; it has the engine's time where one process trained the whole shard."""
    return {
        "wall_seconds": round(clock.seconds(), 3),
        "engine_seconds": None if clock.earlier else round(trainer.engine_seconds, 3),
        "device": name_device(trainer.device),
    }


def _checkpoint_tables(trainer: PopulationTrainer, measures: dict[str, Tensor]) -> Iterator[pa.Table]:
    """The checkpoints of each completed run, run by run, since their weights may be large."""
    state, labels = trainer.state, checkpoint_labels(trainer.configs[0])
    metadata_fields = list(checkpoint_schema(trainer.task.spec))[:-1]
    alive = state.alive.cpu()
    measured = {name: values.T.tolist() for name, values in measures.items()}
    for run, config in enumerate(trainer.configs):
        if not alive[run]:
            continue
        epochs = config.protocol.checkpoints | {BEST: int(state.best_epoch[run])}
        columns = {
            "run_id": [config.run_id] * len(labels),
            "task": [config.task] * len(labels),
            "checkpoint": list(labels),
            "epoch": [epochs[label] for label in labels],
            **{name: values[run] for name, values in measured.items()},
            **{name: [value] * len(labels) for name, value in config.hyperparameters().items()},
        }
        arrays = [pa.array(columns[field.name]).cast(field.type) for field in metadata_fields]
        weights = state.checkpoints[:, run].cpu().numpy().astype(np.float32)
        yield with_weights(pa.table(arrays, schema=pa.schema(metadata_fields)), weights)


def _runs_table(trainer: PopulationTrainer, shard: int) -> pa.Table:
    """One row per run; the curves of a diverged run end where it diverged."""
    configs, state = trainer.configs, trainer.state
    # a run is measured up to and with the epoch it diverged in; losses may be NaN in that last one, accuracy never is
    lengths = (~state.test_accuracy.isnan()).sum(dim=1).tolist()

    def curves(values: Tensor) -> list[list[float]]:
        return [row[:length].tolist() for row, length in zip(values.cpu(), lengths, strict=True)]

    columns = {
        "run_id": [config.run_id for config in configs],
        "task": [config.task for config in configs],
        "status": ["completed" if alive else "diverged" for alive in state.alive.tolist()],
        **{name: [config.hyperparameters()[name] for config in configs] for name in configs[0].hyperparameters()},
        "shard": [shard] * len(configs),
        "epochs": [config.protocol.epochs for config in configs],
        "best_epoch": state.best_epoch.tolist(),
        "test_accuracy": curves(state.test_accuracy),
        "test_loss": curves(state.test_loss),
        "train_loss": curves(state.train_loss),
        "code_version": [VERSION] * len(configs),
    }
    return pa.table([pa.array(columns[field.name], field.type) for field in RUN_SCHEMA], schema=RUN_SCHEMA)


def _pattern(owner: str) -> str:
    """The names of one training's snapshots, as a glob."""
    return f"state-{owner[:8]}-*.safetensors"


def _save_snapshot(folder: Path, state: PopulationState, owner: str, seconds: float) -> Path:
    """Writes the state, whole or not at all, and deletes all but the two newest snapshots."""
    tensors = {name: tensor.cpu().contiguous() for name, tensor in state.tensors().items()}
    facts = {"epoch": str(state.epoch), "owner": owner, "seconds": repr(seconds)}
    metadata = facts | {"sha256": _digest(facts, tensors)}
    path = folder / _pattern(owner).replace("*", f"{state.epoch:05d}")
    if path.exists() and not path.is_file():
        warnings.warn(f"no snapshot is written: {path} exists and is not a file", stacklevel=2)
        return path
    write_atomically(path, safetensors.torch.save(tensors, metadata))
    for old in _snapshots(folder, _pattern(owner))[:-_KEPT]:
        old.unlink()
    return path


def _snapshots(folder: Path, names: str) -> list[Path]:
    """The files of these names, the oldest first; a folder or a pipe of such a name is not a snapshot."""
    return [path for path in sorted(folder.glob(names)) if path.is_file()]


def _load_snapshot(folder: Path, owner: str, like: PopulationState) -> tuple[PopulationState, float] | None:
    """The newest undamaged snapshot of this very training and the seconds it took, or None.

    A damaged one is passed over with a warning.
    """
    for path in sorted(folder.glob(_pattern(owner)), reverse=True):
        try:
            return _read_snapshot(path, owner, like)
        except ValueError as error:
            warnings.warn(f"{path} is not used: {error}", stacklevel=2)
    return None


def _read_snapshot(path: Path, owner: str, like: PopulationState) -> tuple[PopulationState, float]:
    """One snapshot, on the device of ``like``, whose tensors it must match in name, shape and dtype."""
    if not path.is_file():
        raise ValueError("it is not a file")
    try:
        HeldFile(path).refuse_larger(sum(tensor.nbytes for tensor in like.tensors().values()) + _LONGEST_HEADER)
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("owner") != owner:
                raise ValueError("it belongs to another training: other runs, data, precision or code")
            expected = {name: (tensor.shape, tensor.dtype) for name, tensor in like.tensors().items()}
            # shapes are compared before anything is read, so a forged header cannot exhaust memory
            headers = {name: torch.Size(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            if headers != {name: shape for name, (shape, _) in expected.items()}:
                raise ValueError("its tensors are not those of this training")
            tensors = {name: file.get_tensor(name) for name in headers}
        if any(tensors[name].dtype != dtype for name, (_, dtype) in expected.items()):
            raise ValueError("its tensors are not those of this training")
        facts = {name: metadata[name] for name in ("epoch", "owner", "seconds")}
        if _digest(facts, tensors) != metadata.get("sha256"):
            raise ValueError("its checksum does not fit: the file is damaged")
        epoch, seconds = int(metadata["epoch"]), float(metadata["seconds"])
        if not 0 <= epoch <= like.test_accuracy.shape[1] or not 0 <= seconds < float("inf"):
            raise ValueError(f"epoch {epoch} after {seconds} s does not belong to this training")
    # a data type that torch does not have is a KeyError or an AttributeError, according to its name
    except (safetensors.SafetensorError, OSError, KeyError, AttributeError) as error:
        raise ValueError(f"the file is damaged ({error})") from error
    device = like.weights.device
    return PopulationState(epoch=epoch, **{name: tensor.to(device) for name, tensor in tensors.items()}), seconds


def _delete_snapshots(folder: Path) -> None:
    for path in _snapshots(folder, _PATTERN):
        path.unlink()


def _digest(facts: dict[str, str], tensors: dict[str, Tensor]) -> str:
    """SHA-256 of a snapshot's facts and of the names and bytes of its tensors."""
    total = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(tensors):
        total.update(name.encode())
        total.update(tensors[name].numpy().data)
    return total.hexdigest()
