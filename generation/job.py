"""What a command is told to train: a sweep, its data, the place of its shards, the device."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from generation.data.task_data import load_task_data
from generation.engines import ENGINES, make_engine
from generation.population.trainer import PopulationTrainer
from generation.protocol import RunConfig
from generation.storage.remote import RemoteShards, is_url, scratch_folder
from generation.sweep import PRESETS, Sweep
from zoo.device import choose_device
from zoo.storage.lock import exclusive
from zoo.tasks import TaskData

SNAPSHOT_SECONDS = 60.0


@dataclass(frozen=True)
class Job:
    """Everything but the number of the shard. Plain data, so that it can travel to another machine.

    ``out`` is the folder that shards are trained in; where they end at a URL, ``url`` is that, and ``out`` is scratch.
    """

    sweep: Sweep
    out: Path
    url: str | None = None
    runs: int | None = None
    data: Path | None = None
    vectors: str | None = None
    device: str = "auto"
    engine: str = "auto"
    models_per_pass: int | None = None
    snapshot_seconds: float = SNAPSHOT_SECONDS

    @classmethod
    def of(cls, options: argparse.Namespace, preset: str, device: str) -> "Job":
        """The job of a parsed command line."""
        remote = is_url(options.out)
        return cls(
            sweep=Sweep(options.task, PRESETS[preset], options.seeds),
            out=scratch_folder(options.out, options.scratch) if remote else Path(options.out),
            url=options.out.rstrip("/") if remote else None,
            runs=options.runs,
            data=options.data,
            vectors=options.vectors,
            device=device,
            engine=options.engine,
            models_per_pass=options.models_per_pass,
            snapshot_seconds=options.snapshot_seconds,
        )

    def anywhere(self) -> "Job":
        """The same job for a process that stands in another folder: no path in it is relative."""
        vectors = str(Path(self.vectors).absolute()) if self.vectors and Path(self.vectors).is_file() else self.vectors
        data = self.data.absolute() if self.data else None
        return replace(self, out=self.out.absolute(), data=data, vectors=vectors)

    @property
    def remote(self) -> RemoteShards | None:
        return RemoteShards(self.url, self.sweep.config_name) if self.url else None

    @property
    def place(self) -> str:
        """Where the shards end, for messages."""
        return self.url or str(self.out)

    def configs(self, shard: int) -> tuple[RunConfig, ...]:
        """The runs to train of a shard."""
        return self.sweep.shard(shard)[: self.runs]

    def load(self) -> TaskData:
        """The task's data. AG News' embedding is made once and shared by all shards, so one process at a time."""
        if self.sweep.task != "agnews":
            return self._load()
        folder = self.out / self.sweep.task
        with exclusive(folder / ".embedding.lock", busy=None):
            if self.remote:
                self.remote.fetch_embedding(folder)
            task = self._load()
            if self.remote:
                self.remote.push_embedding(folder)
        return task

    def _load(self) -> TaskData:
        return load_task_data(
            self.sweep.task,
            self.data,
            embedding_folder=self.out / self.sweep.task,
            vectors=self.vectors,
            train_examples=self.sweep.preset.train_examples,
            sample=self.sweep.preset.name == "demo",
        )

    def trainer(self, shard: int) -> Callable[[TaskData], PopulationTrainer]:
        """What makes the trainer of a shard once its data is there."""
        configs = self.configs(shard)

        def make(task: TaskData) -> PopulationTrainer:
            engine = make_engine(self.engine, configs, task, self.torch_device, self.models_per_pass)
            return PopulationTrainer(configs, task, engine)

        return make

    @property
    def torch_device(self) -> torch.device:
        return choose_device(self.device)


def positive(text: str) -> int:
    """An argument that counts something."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that say what to train, the same for one shard and for many."""
    parser.add_argument("--task", choices=("mnist", "agnews"), default="mnist")
    parser.add_argument("--runs", type=positive, help="train only the first so many runs of the shard")
    parser.add_argument("--preset", choices=tuple(PRESETS), help="paper with a GPU, demo without, unless named")
    parser.add_argument("--seeds", choices=("shared", "distinct"), default="shared", help="one seed, as in the paper")
    parser.add_argument("--out", default="runs", help="folder of the shards (runs), or a URL that fsspec can write to")
    parser.add_argument("--scratch", type=Path, help="with a URL: local folder to train in (a folder in ~/.cache)")
    parser.add_argument("--data", type=Path, help="folder of the task's data; downloaded without it")
    parser.add_argument("--vectors", help="word vectors for AG News: a word2vec file or a name gensim can download")
    parser.add_argument("--device", default="auto", help="cuda, cpu, … (auto: the GPU where there is one)")
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default="auto",
        help="what trains: fused CUDA kernels, or torch (auto: the kernels where they can)",
    )
    parser.add_argument(
        "--models-per-pass", type=positive, help="torch engine: models in memory at once (as many as fit)"
    )
    parser.add_argument(
        "--snapshot-seconds", type=float, default=SNAPSHOT_SECONDS, help="least time between snapshots (60)"
    )
