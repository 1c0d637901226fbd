"""Measures speed and appends the rows to ``benchmarks/results/`` the moment they are measured.

python -m benchmarks.speed nfn                                Transformer-NFN beside its literal twin, on CPU and GPU
python -m benchmarks.speed nfn --device cuda --config mnist
python -m benchmarks.speed gauge                              Gauge-NFN: reading 1,000 checkpoints, a fit on 1,400
python -m benchmarks.speed generation                         a whole epoch on a GPU, a few steps on a CPU
python -m benchmarks.speed generation --models 512 1024 --config mnist --device cuda
python -m benchmarks.speed generation --engines fused --variant small      kernels of GPUs with less shared memory
python -m benchmarks.speed generation --engines fused --dim 64 --blocks 4  a transformer with other dimensions
python -m benchmarks.speed loader                             fabricates 4,000 checkpoints in a temporary folder
python -m benchmarks.speed loader --zoo small-transformer-zoo --config agnews
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from zoo.checked import Count
from zoo.command import Command, Device, DryRun, Option
from zoo.format.hyperparameters import OPTIMIZERS, SEED_POLICIES, SHARED_SEED
from zoo.transformer.dimensions import DimensionOptions
from zoo.transformer.spec import PAPER_SPECS, SPECS, spec_for

_AtLeastTwo = Annotated[int, Meta(ge=2)]  # to have a spread
_Threads = Annotated[Count | None, Option("CPU threads (default: torch's own choice)")]


@dataclass(frozen=True, kw_only=True)
class _Shared:
    dry_run: DryRun = False


@dataclass(frozen=True, kw_only=True)
class _Nfn(_Shared):
    repeats: Annotated[_AtLeastTwo, Option("samples of each time")] = 30
    device: Annotated[Literal["cpu", "cuda"] | None, Option("where to train (default: all there is)")] = None
    config: Annotated[str | None, Option("task (default: all)", choices=tuple(PAPER_SPECS))] = None
    threads: _Threads = None


@dataclass(frozen=True, kw_only=True)
class _Gauge(_Nfn):
    repeats: Annotated[_AtLeastTwo, Option("samples of each time")] = 3
    config: Annotated[str | None, Option("task (default: all)", choices=tuple(SPECS))] = None


@dataclass(frozen=True, kw_only=True)
class _Generation(DimensionOptions, _Shared):
    repeats: Annotated[Count, Option("epochs timed")] = 3
    device: Device = "auto"
    config: Annotated[tuple[str, ...], Option("tasks", choices=tuple(SPECS))] = tuple(SPECS)
    models: Annotated[tuple[Count, ...] | None, Option("population sizes (default: 512 1024, on a CPU 4)")] = None
    engines: Annotated[
        tuple[Literal["fused", "torch"], ...] | None,
        Option("what trains populations (default: both on a GPU, torch on a CPU)"),
    ] = None
    steps: Annotated[Count | None, Option("steps per epoch (default: 468, as many as MNIST has; on a CPU 3)")] = None
    seeds: Annotated[
        str, Option("shared: one seed for all models; distinct: a seed for each", choices=SEED_POLICIES)
    ] = SHARED_SEED
    variant: Annotated[
        Literal["large", "medium", "small"] | None,
        Option("the fused engine's variant (default: the best that fits this GPU)"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class _Loader(_Shared):
    repeats: Annotated[_AtLeastTwo, Option("passes over the data for each way")] = 7
    zoo: Annotated[str | None, Option("a zoo with at least 4,000 training rows (default: fabricated)", "DIR")] = None
    config: Annotated[str, Option("config of the zoo")] = "mnist"
    threads: Annotated[Count, Option("threads that sum the batches")] = 1
    scratch: Annotated[
        Path | None, Option("folder for about 1.5 GB of temporary files (default: that of the system)", "DIR")
    ] = None


_command = Command(
    __name__,
    "benchmarks.speed",
    __doc__,
    {
        "nfn": (_Nfn, "Transformer-NFN: forward and backward, and a training step, beside its literal twin"),
        "gauge": (_Gauge, "Gauge-NFN: what it reads of 1,000 checkpoints, and a fit on 1,400"),
        "generation": (_Generation, "training zoo models: one at a time, and populations"),
        "loader": (_Loader, "reading checkpoints into torch batches: five ways, and a bare memory read"),
    },
)

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from benchmarks import results
from benchmarks.results import Result, Setting
from benchmarks.speed.training import gauge, generation, line_of, measure, nfn, speed_row
from zoo.export import export_checkpoints
from zoo.format.card import DEFAULT_CARD, write_card_and_manifest
from zoo.format.published import RUNS_FILE, ConfigDetails, PublishedZoo, split_file
from zoo.format.schema import CHECKPOINTS, PUBLISHED_RUN_SCHEMA, checkpoint_schema, with_weights
from zoo.format.splits import SPLITS
from zoo.format.statements import NOTHING_STATED
from zoo.format.table_file import ROWS_PER_BATCH, write_table
from zoo.reading.locate import find_folder
from zoo.reading.reader import open_zoo
from zoo.terminal import say

_MIN_CHECKPOINTS, _ROWS_PER_FILE = 4_000, 512
_LOADER_PACKAGES = ("torch", "numpy", "pandas", "pyarrow", "datasets")


def _loader(options: _Loader) -> Iterator[Result]:
    """How fast checkpoints are read into torch batches: five ways of storing and reading them, and a bare memory read.

    Every way delivers batches of 64 checkpoints as a float32 tensor [64, d], and every batch is summed, so that every
    byte is read. The ways take turns, so that a busy moment of the machine affects all of them.
    """
    with tempfile.TemporaryDirectory(dir=options.scratch, prefix="loader-") as temporary:
        if options.zoo is None:
            say(f"fabricating {_MIN_CHECKPOINTS:,} checkpoints")
            folder = _fabricate(Path(temporary) / "small-transformer-zoo", options.config)
        else:
            folder = find_folder(options.zoo, options.config)
        yield from _measure_ways(folder, options.config, Path(temporary), options.repeats)


def _fabricate(folder: Path, config: str) -> Path:
    """A zoo of random weights whose training split has enough checkpoints; no run belongs to them."""
    spec, random = spec_for(config), np.random.default_rng(0)
    schema = checkpoint_schema(spec)
    named = {"task": spec.task, "checkpoint": CHECKPOINTS[1], "optimizer": OPTIMIZERS[0]}
    row = dict.fromkeys(schema.names[:-1], 0) | named

    def checkpoints(first: int, count: int) -> pa.Table:
        rows = [row | {"run_id": f"{number:016x}"} for number in range(first, first + count)]
        weights = random.standard_normal((count, spec.num_parameters), dtype=np.float32)
        return with_weights(pa.Table.from_pylist(rows, pa.schema(list(schema)[:-1])), weights)

    counts = dict.fromkeys(SPLITS, 0) | {"train": _MIN_CHECKPOINTS}
    files = {f"{config}/{RUNS_FILE}": write_table(folder / config / RUNS_FILE, PUBLISHED_RUN_SCHEMA, [])}
    for split, count in counts.items():
        starts = range(0, max(1, count), _ROWS_PER_FILE)
        for index, start in enumerate(starts):
            name = split_file(config, split, index, len(starts))
            rows = checkpoints(start, min(_ROWS_PER_FILE, count - start))
            files[name] = write_table(folder / name, schema, [rows])
    trained = (spec.task, spec, "none", {"epochs": 1}, SHARED_SEED, "nothing: fabricated", None)
    details = ConfigDetails(*trained, engines=[], precisions=[], code_versions=[], shards=[], runs={}, rows=counts)
    card = DEFAULT_CARD.read_text(encoding="utf-8")
    write_card_and_manifest(folder, files, {config: details}, card, folder.name, NOTHING_STATED)
    return folder


def _measure_ways(folder: Path, config: str, scratch: Path, repeats: int) -> Iterator[Result]:
    """The rows of all ways of reading one zoo; the slowest way comes last."""
    import datasets

    datasets.disable_progress_bars()
    reader = open_zoo(folder, config, "train")
    if len(reader) < _MIN_CHECKPOINTS:
        raise ValueError(
            f"{folder} has {len(reader):,} training rows of {config}, the benchmark needs {_MIN_CHECKPOINTS:,}: "
            "leave out --zoo to fabricate them"
        )
    # the bytes of the files in order, whatever they mean, one batch at a time: an upper bound
    paths = PublishedZoo.read(folder).paths(config, ["train"])
    maps = [torch.from_file(str(path), size=path.stat().st_size // 4) for path in paths]
    bare = [piece for each in maps for piece in each.split(ROWS_PER_BATCH * reader.spec.num_parameters)]
    load: Any = partial(datasets.load_dataset, str(folder), config, split="train")
    mapped = load(cache_dir=str(scratch / "cache")).with_format("torch")
    stream = load(streaming=True).with_format("arrow")
    ways: dict[str, Callable[[], Iterable[Tensor]]] = {
        "bare memory read": lambda: bare,
        "zoo.open": lambda: (weights.flat() for weights, _ in reader.batches(ROWS_PER_BATCH)),
        "zoo.open, shuffled": lambda: (weights.flat() for weights, _ in reader.batches(ROWS_PER_BATCH, shuffle=True)),
        "datasets, memory-mapped": lambda: (batch["weights"] for batch in mapped.iter(ROWS_PER_BATCH)),
        "datasets, streaming Arrow": lambda: _read_streaming(stream),
    }
    setting: Setting = {"checkpoints": len(reader), "batch_size": ROWS_PER_BATCH, "threads": torch.get_num_threads()}
    row = partial(speed_row, "loader", config, setting=setting, packages=_LOADER_PACKAGES)

    def rate(variant: str, seconds: Sequence[float]) -> Result:
        return row(variant, "checkpoints_per_second", [len(reader) / each for each in seconds])

    say(f"reading {len(reader):,} checkpoints {repeats} times in each way, in turn")
    times = measure({name: _full_pass(way) for name, way in ways.items()}, repeats=repeats, warmup=1)
    yield from (rate(name, seconds) for name, seconds in times.items())
    pairs = zip(times["bare memory read"], times["zoo.open"], strict=True)
    yield row("zoo.open", "share_of_bare_memory_read", [least / seconds for least, seconds in pairs])
    say("writing one .pt file per checkpoint and reading them twice: hundreds of times slower than zoo.open")
    files = export_checkpoints(reader, scratch / "pt", "torch")  # as the authors of the paper store their zoo
    slowest = "one .pt file each"
    yield rate(slowest, measure({slowest: _full_pass(lambda: _read_state_dicts(files))}, repeats=2, warmup=0)[slowest])


def _full_pass(way: Callable[[], Iterable[Tensor]]) -> Callable[[], float]:
    """One pass over the data that touches every weight."""
    return lambda: sum(float(batch.sum()) for batch in way())


def _read_streaming(stream: Any) -> Iterator[Tensor]:
    for table in stream.iter(ROWS_PER_BATCH):
        column = table.column("weights").combine_chunks()
        yield torch.from_dlpack(column.values).view(len(column), -1)  # a copy would cost a quarter of the speed


def _read_state_dicts(files: Sequence[Path]) -> Iterator[Tensor]:
    for start in range(0, len(files), ROWS_PER_BATCH):
        states = (torch.load(path, weights_only=True) for path in files[start : start + ROWS_PER_BATCH])
        yield torch.stack([torch.cat([tensor.flatten() for tensor in state.values()]) for state in states])


_BENCHMARKS: dict[type[_Shared], Callable[[Any], Iterator[Result]]] = {
    _Nfn: nfn,
    _Gauge: gauge,
    _Generation: generation,
    _Loader: _loader,
}


@_command
def main(options: _Shared) -> None:
    if (threads := getattr(options, "threads", None)) is not None:
        torch.set_num_threads(threads)
    for row in _BENCHMARKS[type(options)](options):
        if not options.dry_run:
            results.append([row])
        print(line_of(row), flush=True)
