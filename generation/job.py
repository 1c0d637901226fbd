"""What a command is told to train: a sweep, its data, the place of its shards, the device."""

import argparse
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from generation.data import read_training_data, with_fewer_examples
from generation.grid import Draw as Sample
from generation.population.trainer import ENGINES, PopulationTrainer, make_engine
from generation.progress import say
from generation.protocol import RunConfig
from generation.remote import RemoteShards, is_url, scratch_folder
from generation.sweep import PRESETS, Preset, Sweep, own_preset
from generation.task import TrainingTask
from generation.word_vectors import frozen_embedding
from zoo.command import positive, seconds
from zoo.device import choose_device
from zoo.format.record import MAX_REPEATS, MIN_REPEATS, repeats_of
from zoo.format.shard import ShardRecord, finished_record, shard_folder
from zoo.reading.selection import Selection
from zoo.storage.atomic import exclusive
from zoo.tasks.examples import RawImages, TaskData
from zoo.tasks.formats import IdxData, NpzData
from zoo.tasks.paper_data import task_data
from zoo.tasks.task_file import PAPER_TASKS

SNAPSHOT_SECONDS = 60.0
TASK_HELP = f"{', '.join(PAPER_TASKS)}, or the path of a task file (TOML)"
DATA_HELP = "folder that the paths of the task's data start from (default: the task file's; the paper's is downloaded)"


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
    def of(cls, options: argparse.Namespace, task: TrainingTask, preset: Preset, device: str) -> "Job":
        """The job of a parsed command line."""
        remote = is_url(options.out)
        if not remote and Path(options.out).exists() and not Path(options.out).is_dir():
            raise NotADirectoryError(f"--out {options.out} is not a folder")
        return cls(
            sweep=Sweep(task, preset, options.seeds or task.seeds, chosen_sample(options)),
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

    def folder(self, shard: int) -> Path:
        """Where a shard is trained."""
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
        if isinstance(raw, RawImages):
            if self.vectors is not None:
                raise ValueError(f"--vectors is for texts, and {task.name} has images")
            return with_fewer_examples(task_data(task, raw), preset.train_examples)
        folder = self.out / task.name
        with exclusive(folder / ".embedding.lock", busy=None):
            if self.remote:
                self.remote.fetch_embedding(folder)
            embedding = frozen_embedding(task, raw, folder, self.vectors)
            if self.remote:
                self.remote.push_embedding(folder)
        return with_fewer_examples(task_data(task, raw, embedding), preset.train_examples)

    @property
    def may_share_embedding(self) -> bool:
        """Whether the task may read words, by one frozen embedding for all its shards; only the data tell for sure."""
        return not isinstance(self.sweep.task.file.data, NpzData | IdxData)

    def prepare(self, shard: int) -> tuple[PopulationTrainer, ShardRecord]:
        """Loads the data and makes ready to train: the trainer of a shard, and what its manifest will say."""
        configs, task = self.configs(shard), self.load()
        engine = make_engine(self.engine, configs, task, choose_device(self.device), self.models_per_pass)
        record = ShardRecord(
            task=self.sweep.task.name,
            spec=task.spec,
            preset=self.sweep.preset.name,
            protocol=self.sweep.preset.protocol.to_dict(),
            seeds=self.sweep.seeds,
            data_source=task.source,
            embedding_sha256=task.embedding.sha256 if task.embedding else None,
            data=task.identity,
            task_file=None if self.sweep.task.file.is_paper else self.sweep.task.file.text,
            config=self.sweep.config_name,
            shard=shard,
            runs=len(configs),
            engine=engine.name,
            precision=engine.precision,
        )
        return PopulationTrainer(engine), record

    def finished(self, shard: int) -> ShardRecord | None:
        """What the finished shard says about itself where it belongs; None where it is not finished."""
        return self.remote.finished_record(self.folder(shard)) if self.remote else finished_record(self.folder(shard))

    def is_finished(self, shard: int) -> bool:
        """Whether the shard is finished where it belongs."""
        return self.accepts(shard, self.finished(shard), self.url or str(self.folder(shard)))

    def accepts(self, shard: int, record: ShardRecord | None, place: str) -> bool:
        """Whether ``record`` is this shard's; a finished one of another preset or size is not overwritten: an error."""
        if record is None:
            return False
        if record.task_file not in (None, self.sweep.task.file.text):
            raise ValueError(
                f"{place} holds a finished shard of another {self.sweep.task.name}, whose task file was different: "
                "choose another --out or delete it"
            )
        if record.seeds != self.sweep.seeds:
            raise ValueError(
                f"{place} holds a finished shard with seeds {record.seeds}, not {self.sweep.seeds}: choose another "
                "--out or delete it"
            )
        preset, runs = self.sweep.preset, len(self.configs(shard))
        if (record.preset, record.runs, record.protocol) != (preset.name, runs, preset.protocol.to_dict()):
            raise ValueError(
                f"{place} holds a finished shard of preset {record.preset} with {record.runs} runs, not "
                f"{preset.name} with {runs}: choose another --out or delete it"
            )
        return True


def choose_preset(task: TrainingTask, name: str | None, device: torch.device) -> Preset:
    """The paper's preset by name; without one all of it where there is a GPU, else the demo, and a line that says so.

    A task file of one's own has its own protocol.
    """
    check_preset(task, name)
    if not task.file.is_paper:
        return own_preset(task)
    if name is not None:
        return PRESETS[name]
    chosen = "paper" if device.type == "cuda" else "demo"
    why = "there is a GPU" if chosen == "paper" else "there is no GPU"
    say(f"preset {chosen}, because {why} (choose with --preset {'|'.join(PRESETS)})")
    return PRESETS[chosen]


def check_preset(task: TrainingTask, name: str | None) -> None:
    if name is not None and not task.file.is_paper:
        raise ValueError(f"--preset is for the paper's tasks: the protocol of {task.name} is in {task.file.where}")


def chosen_sample(options: argparse.Namespace) -> Sample | None:
    """The sample of a parsed command line; None where shards of the grid are meant."""
    if options.sample is not None:
        where = None if options.where is None else Selection.parse(options.where).expression
        return Sample(options.sample, options.sample_seed or 0, where)
    for name, value in (("--sample-seed", options.sample_seed), ("--where", options.where)):
        if value is not None:
            raise ValueError(f"{name} is about a sample: say how many configurations with --sample N")
    return None


def seed_policy(text: str) -> str:
    """An argument that says which seeds runs have."""
    try:
        repeats_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that say what to train, the same for one shard and for many."""
    parser.add_argument("--task", default="mnist", help=TASK_HELP)
    parser.add_argument(
        "--runs", type=positive, metavar="N", help="train only the first N runs of the shard (default: all)"
    )
    parser.add_argument(
        "--sample",
        type=positive,
        metavar="N",
        help="train N configurations drawn at random from the whole grid, in place of shards of it; "
        "a shard per train fraction, with numbers of their own",
    )
    parser.add_argument(
        "--where", metavar="EXPRESSION", help='draw the sample from this part of the grid, e.g. "learning_rate >= 0.01"'
    )
    parser.add_argument("--sample-seed", type=int, metavar="S", help="which sample: 0 to 999 (default: 0)")
    parser.add_argument(
        "--preset",
        choices=tuple(PRESETS),
        help=f"the work of a shard: {'; '.join(preset.summary for preset in PRESETS.values())} "
        "(default: paper with a GPU, demo without; a task file has a protocol of its own)",
    )
    parser.add_argument(
        "--seeds",
        type=seed_policy,
        metavar="{shared,distinct,N}",
        help="shared: one seed for all runs, as in the paper; distinct: a seed for each run; "
        f"N, {MIN_REPEATS} to {MAX_REPEATS}: each configuration N times, each time with a seed of its own "
        "(default: what the task file says, for the paper's tasks shared)",
    )
    parser.add_argument("--out", default="runs", help="folder of the shards, or a URL that fsspec can write to")
    parser.add_argument("--scratch", type=Path, help="with a URL: local folder to train in (default: in the cache)")
    parser.add_argument("--data", type=Path, help=DATA_HELP)
    parser.add_argument(
        "--vectors",
        help="word vectors for texts: a word2vec file or a name gensim can download (default: trained on the texts)",
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, or auto: the GPU where there is one")
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default="auto",
        help="fused: CUDA kernels; torch: batched products; auto: the kernels where they can train",
    )
    parser.add_argument(
        "--models-per-pass", type=positive, help="torch engine: models in memory at once (default: as many as fit)"
    )
    parser.add_argument(
        "--snapshot-seconds",
        type=seconds,
        default=SNAPSHOT_SECONDS,
        help="least time between snapshots to resume from",
    )
