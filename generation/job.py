"""A job of training: a sweep, its data, the destination of its shards, the device."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from generation.data import part_for, read_training_data
from generation.options import ShardOptions, TrainingOptions
from generation.population.trainer import PopulationTrainer, make_engine
from generation.protocol import PRESETS, Preset, RunConfig
from generation.remote import RemoteShards, scratch_folder
from generation.sweep import Draw, Sweep
from generation.task import TrainingTask, named_task
from generation.word_vectors import frozen_embedding
from zoo.device import choose_device
from zoo.format.shard import ShardRecord, finished_record, shard_folder
from zoo.reading.selection import Selection
from zoo.storage.atomic import exclusive
from zoo.tasks.examples import RawImages, RawTexts, TaskData
from zoo.tasks.formats import IdxData, NpzData, TextData
from zoo.tasks.paper_data import task_data
from zoo.terminal import say


@dataclass(frozen=True)
class Job(ShardOptions):
    """Everything but the number of the shard. Plain data, so that it can travel to another machine.

    ``out`` is the folder that shards are trained in; where they end at a URL, ``url`` is that, and ``out`` is scratch.
    """

    sweep: Sweep
    out: Path
    url: str | None = None

    @classmethod
    def of(cls, options: TrainingOptions, device: str) -> "Job":
        """The job of a command line, on this device."""
        remote = "://" in options.out
        if not remote and Path(options.out).exists() and not Path(options.out).is_dir():
            raise NotADirectoryError(f"--out {options.out} is not a folder")
        task = named_task(options.task)
        shared: dict[str, Any] = {field.name: getattr(options, field.name) for field in fields(ShardOptions)}
        shared["device"] = device
        preset = _choose_preset(task, options.preset, device)
        return cls(
            Sweep(task, preset, options.seeds or task.seeds, chosen_draw(options)),
            scratch_folder(options.out, options.scratch) if remote else Path(options.out),
            options.out.rstrip("/") if remote else None,
            **shared,
        )

    def anywhere(self) -> "Job":
        """The same job for a process in another folder: no path in it is relative."""
        vectors = str(Path(self.vectors).absolute()) if self.vectors and Path(self.vectors).is_file() else self.vectors
        data = self.data.absolute() if self.data else None
        return replace(self, out=self.out.absolute(), data=data, vectors=vectors)

    @property
    def remote(self) -> RemoteShards | None:
        return RemoteShards(self.url, self.sweep.config_name) if self.url else None

    @property
    def destination(self) -> str:
        """The folder or URL of the finished shards, for messages."""
        return self.url or str(self.out)

    def folder(self, shard: int) -> Path:
        """The folder that a shard is trained in."""
        return shard_folder(self.out, self.sweep.config_name, shard)

    def lock(self, shard: int) -> AbstractContextManager[None]:
        """One process at a time works on a shard."""
        folder = self.folder(shard)
        lock = folder.parent / f".{folder.name}.lock"
        return exclusive(lock, busy=f"another process is at work on this shard (it holds {lock})")

    def configs(self, shard: int) -> tuple[RunConfig, ...]:
        """The runs to train of a shard."""
        return self.sweep.shard(shard)[: self.runs]

    def load(self) -> TaskData:
        """The task's data. A frozen embedding is made once and shared by all shards, so by one process at a time."""
        task, preset = self.sweep.task.file, self.sweep.preset
        raw = read_training_data(task, self.data, sample=preset.name == "demo")
        if not isinstance(raw, RawTexts):
            if self.vectors is not None:
                what = "images" if isinstance(raw, RawImages) else "characters"
                raise ValueError(f"--vectors is for texts with labels, and {task.name} has {what}")
            return part_for(preset, task_data(task, raw))
        folder = self.out / task.name
        with exclusive(folder / ".embedding.lock", busy=None):
            if self.remote:
                self.remote.fetch_embedding(folder)
            embedding = frozen_embedding(task, raw, folder, self.vectors)
            if self.remote:
                self.remote.push_embedding(folder)
        return part_for(preset, task_data(task, raw, embedding))

    @property
    def may_share_embedding(self) -> bool:
        """Whether the task may read words, by one frozen embedding for all its shards; only the data decide."""
        return not isinstance(self.sweep.task.file.data, NpzData | IdxData | TextData)

    def prepare(self, shard: int, held: int = 0) -> tuple[PopulationTrainer, ShardRecord]:
        """Loads the data, and returns the trainer of all runs but the first ``held``, and the record of the shard."""
        configs, task = self.configs(shard), self.load()
        engine = make_engine(self.engine, configs[held:], task, choose_device(self.device), self.models_per_pass)
        record = ShardRecord(
            task=self.sweep.task.file.name,
            spec=task.spec,
            preset=self.sweep.preset.name,
            protocol=self.sweep.preset.protocol.to_dict(),
            seeds=self.sweep.seeds,
            data_source=task.source,
            embedding_sha256=task.embedding.sha256 if task.embedding else None,
            data=task.identity,
            task_file=None if self.sweep.task.file.is_named else self.sweep.task.file.text,
            characters=task.characters,
            config=self.sweep.config_name,
            shard=shard,
            runs=len(configs),
            engine=engine.name,
            precision=engine.precision,
        )
        return PopulationTrainer(engine), record

    def finished(self, shard: int) -> ShardRecord | None:
        """The record of the finished shard at its destination; None where it is not finished."""
        return self.remote.finished_record(self.folder(shard)) if self.remote else finished_record(self.folder(shard))

    def is_finished(self, shard: int) -> bool:
        """Whether all runs of the shard are finished where it belongs."""
        return self.held_runs(shard) == len(self.configs(shard))

    def held_runs(self, shard: int, *, here: bool = False) -> int:
        """How many runs of the shard, the first ones, are finished at its destination, or ``here`` in its folder.

        A finished shard of another training is not overwritten: an error.
        """
        folder = self.folder(shard)
        record = finished_record(folder) if here else self.finished(shard)
        if record is None:
            return 0
        if difference := self.difference(shard, record):
            where = folder if here else self.url or folder
            raise ValueError(f"{where} holds a finished shard {difference}: choose another --out or delete it")
        return record.runs

    def difference(self, shard: int, record: ShardRecord) -> str | None:
        """How a finished shard differs from this job's, in words; None where it is the same or its first runs."""
        sweep, preset, runs = self.sweep, self.sweep.preset, len(self.configs(shard))
        if record.task_file not in (None, sweep.task.file.text):
            return f"of another {sweep.task.file.name}, whose task file was different"
        if record.seeds != sweep.seeds:
            return f"with seeds {record.seeds}, not {sweep.seeds}"
        if (record.preset, record.protocol) != (preset.name, preset.protocol.to_dict()) or record.runs > runs:
            return f"of preset {record.preset} with {record.runs} runs, not {preset.name} with {runs}"
        return None


def _choose_preset(task: TrainingTask, name: str | None, device: str) -> Preset:
    """The preset of a named task; without one all of it where there is a GPU, else the demo, and it prints which.

    Your own task file has its own protocol.
    """
    if not task.file.is_named:
        return Preset("own", task.protocol)
    if name is None:
        name, why = ("paper", "there is a GPU") if device.startswith("cuda") else ("demo", "there is no GPU")
        say(f"preset {name}, because {why} (choose with --preset {'|'.join(PRESETS)})")
    preset = PRESETS[name]
    epochs = task.protocol.epochs if name == "paper" else min(preset.protocol.epochs, task.protocol.epochs)
    return replace(preset, protocol=task.protocol.lasting(epochs))


def chosen_draw(options: TrainingOptions) -> Draw | None:
    """The draw that a command line names; None where it names shards of the grid."""
    if options.sample is None:
        return None
    where = None if options.where is None else Selection.parse(options.where).expression
    return Draw(options.sample, options.sample_seed or 0, where)
