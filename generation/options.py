"""The options of the commands that train: what to train, where, and how. Imports nothing that takes time."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from msgspec import Meta

from generation.protocol import PRESETS
from zoo.checked import Count, NotNegative
from zoo.command import Device, Option
from zoo.format.hyperparameters import MAX_REPEATS, MIN_REPEATS, repeats_of
from zoo.transformer.spec import SPECS

TaskName = Annotated[str, Option(f"{', '.join(SPECS)}, or the path of a task file (TOML)")]
DATA_HELP = (
    "folder that the paths of the task's data start from; Shakespeare's text is its shakespeare/input.txt, else that "
    "of the package (default: the task file's; the paper's is downloaded)"
)
_EngineName = Literal["auto", "fused", "torch"]
ENGINES: tuple[_EngineName, ...] = get_args(_EngineName)
SampleSeed = Annotated[int, Meta(ge=0, lt=1000)]


@dataclass(frozen=True, kw_only=True)
class ShardOptions:
    """How the shards are trained."""

    runs: Annotated[Count | None, Option("train only the first N runs of the shard (default: all)", "N")] = None
    data: Annotated[Path | None, Option(DATA_HELP)] = None
    vectors: Annotated[
        str | None,
        Option("word vectors for texts: a word2vec file or a name gensim can download (default: trained on the texts)"),
    ] = None
    device: Device = "auto"
    engine: Annotated[
        _EngineName, Option("fused: CUDA kernels; torch: batched products; auto: the kernels where they can train")
    ] = "auto"
    models_per_pass: Annotated[
        Count | None, Option("torch engine: models in memory at once (default: as many as fit)", "N")
    ] = None
    snapshot_seconds: Annotated[NotNegative, Option("least time between snapshots to resume from", "S")] = 120.0


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(ShardOptions):
    """The runs to train, and the destination of their shards."""

    task: TaskName = "mnist"
    sample: Annotated[
        Count | None,
        Option(
            "train N configurations drawn at random from the whole grid, in place of shards of it; "
            "a shard per train fraction, with numbers of their own",
            "N",
        ),
    ] = None
    where: Annotated[
        str | None, Option('draw the sample from this part of the grid, e.g. "learning_rate >= 0.01"', "EXPRESSION")
    ] = None
    sample_seed: Annotated[SampleSeed | None, Option("which sample: 0 to 999 (default: 0)", "S")] = None
    preset: Annotated[
        str | None,
        Option(
            f"the work of a shard: {'; '.join(preset.summary for preset in PRESETS.values())} "
            "(default: paper with a GPU, demo without; a task file has a protocol of its own)",
            choices=tuple(PRESETS),
        ),
    ] = None
    seeds: Annotated[
        str | None,
        Option(
            "shared: one seed for all runs, as in the paper; distinct: a seed for each run; "
            f"N, {MIN_REPEATS} to {MAX_REPEATS}: each configuration N times, each time with a seed of its own "
            "(default: that of the task file, for the paper's tasks shared)",
            "{shared,distinct,N}",
        ),
    ] = None
    out: Annotated[str, Option("folder of the shards, or a URL that fsspec can write to")] = "runs"
    scratch: Annotated[Path | None, Option("with a URL: local folder to train in (default: in the cache)")] = None

    def __post_init__(self) -> None:
        if self.seeds is not None:
            repeats_of(self.seeds)
        if self.preset is not None and self.task not in SPECS and Path(self.task).is_file():
            raise ValueError(f"--preset is for {', '.join(SPECS)}: leave it out, the protocol is in {self.task}")
        for name, value in (("--sample-seed", self.sample_seed), ("--where", self.where)):
            if value is not None and self.sample is None:
                raise ValueError(f"{name} is about a sample: say how many configurations with --sample N")
