"""How fast checkpoints are read into torch batches: five ways of storing and reading them, beside a bare memory read.

python -m benchmarks.speed loader                          fabricates 4,000 checkpoints in a temporary folder
python -m benchmarks.speed loader --zoo small-transformer-zoo --config agnews

Every way delivers batches of 64 checkpoints as a float32 tensor [64, d], and every batch is summed, so that every
byte is read. The ways take turns, so that a busy moment of the machine affects all of them.
"""

import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import zoo
from benchmarks.results import Result
from benchmarks.speed.record import Record, say, say_seconds
from benchmarks.speed.timing import Timing, measure, measure_together
from zoo.command import command, command_parser, positive
from zoo.format.published import PublishedZoo
from zoo.format.splits import split_of
from zoo.format.table_file import ROWS_PER_BATCH
from zoo.publish import publish
from zoo.reading.locate import find_folder
from zoo.storage.untrusted import HeldFile
from zoo.testing import fabricate_shard, run_row
from zoo.transformer.spec import spec_for

MIN_CHECKPOINTS = 4_000
PASSES = 10
PACKAGES = ("torch", "numpy", "pandas", "pyarrow", "datasets")


@command
def main(arguments: list[str] | None = None) -> None:
    parser = command_parser("benchmarks.speed loader", __doc__)
    parser.add_argument("--zoo", help=f"a zoo with at least {MIN_CHECKPOINTS:,} training rows (default: fabricated)")
    parser.add_argument("--config", default="mnist", help="config of the zoo")
    parser.add_argument("--repeats", type=int, default=7, help="passes over the data for each way")
    parser.add_argument("--threads", type=positive, default=1, help="threads that sum the batches")
    parser.add_argument(
        "--scratch", type=Path, help="folder for about 1.5 GB of temporary files (default: that of the system)"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the rows without storing them")
    options = parser.parse_args(arguments)
    if options.repeats < 2:
        raise ValueError(f"--repeats must be at least 2 to have a spread, got {options.repeats}")
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory(dir=options.scratch, prefix="loader-") as scratch:
        if options.zoo is None:
            say(f"fabricating {MIN_CHECKPOINTS:,} checkpoints")
            folder = fabricate(Path(scratch), options.config)
        else:
            folder = find_folder(options.zoo, options.config)
        Record(options.dry_run).keep(measure_loaders(folder, options.config, Path(scratch), options.repeats))


def fabricate(scratch: Path, config: str) -> Path:
    """A zoo of random weights whose training split has just enough checkpoints."""
    spec = spec_for(config)
    count = training = 0
    while training < MIN_CHECKPOINTS:
        training += 4 * (split_of(run_row(config, spec, 0, count, count + 1)["run_id"]) == "train")
        count += 1
    fabricate_shard(scratch / "runs", spec, count=count)
    publish(scratch / "runs", scratch / "small-transformer-zoo")
    return scratch / "small-transformer-zoo"


def measure_loaders(folder: Path, config: str, scratch: Path, repeats: int) -> Iterator[Result]:
    """The rows of all ways of reading one zoo; the slowest way comes last."""
    reader = zoo.open(folder, config, split="train")
    if len(reader) < MIN_CHECKPOINTS:
        raise ValueError(
            f"{folder} has {len(reader):,} training rows of {config}, the benchmark needs {MIN_CHECKPOINTS:,}: "
            "leave out --zoo to fabricate them"
        )
    bare = map_bare(PublishedZoo.read(folder).paths(config, ["train"]), reader.spec.num_parameters)
    mapped, stream = load_with_datasets(folder, config, scratch)
    ways: dict[str, Callable[[], Iterable[Tensor]]] = {
        "bare memory read": lambda: bare,
        "zoo.open": lambda: read_zoo(reader),
        "zoo.open, shuffled": lambda: read_zoo(reader, shuffle=True),
        "datasets, memory-mapped": lambda: (batch["weights"] for batch in mapped.iter(ROWS_PER_BATCH)),
        "datasets, streaming Arrow": lambda: read_streaming(stream),
    }
    setting = {"checkpoints": len(reader), "batch_size": ROWS_PER_BATCH, "threads": torch.get_num_threads()}

    def row(variant: str, metric: str, samples: Sequence[float]) -> Result:
        measured = Timing(tuple(samples))
        return Result.measured(
            "speed.loader",
            config,
            metric,
            measured.median,
            n=measured.n,
            stderr=measured.stderr,
            device="cpu",
            variant=variant,
            setting=dict(setting),
            packages=PACKAGES,
        )

    def rate(variant: str, timing: Timing) -> Result:
        return row(variant, "checkpoints_per_second", [len(reader) / seconds for seconds in timing.samples])

    say(f"reading {len(reader):,} checkpoints {repeats} times in each way, in turn")
    passes = {name: full_pass(way) for name, way in ways.items()}
    timings = measure_together(passes, repeats=repeats, warmup=1, expect=say_seconds)
    yield from (rate(name, timing) for name, timing in timings.items())
    pairs = zip(timings["bare memory read"].samples, timings["zoo.open"].samples, strict=True)
    yield row("zoo.open", "share_of_bare_memory_read", [bare_seconds / seconds for bare_seconds, seconds in pairs])
    say(f"streaming the zoo {PASSES} times")
    for name in ("zoo.open", "zoo.open, shuffled", "datasets, streaming Arrow"):
        yield row(name, "memory_growth_megabytes", [memory_growth(ways[name])])
    say("writing one .pt file per checkpoint and reading them twice: hundreds of times slower than zoo.open")
    files = write_state_dicts(reader, scratch / "pt")
    yield rate("one .pt file each", measure(full_pass(lambda: read_state_dicts(files)), repeats=2, warmup=0))


def full_pass(way: Callable[[], Iterable[Tensor]]) -> Callable[[], float]:
    """One pass over the data that touches every weight."""
    return lambda: sum(float(batch.sum()) for batch in way())


def read_zoo(reader: zoo.ZooReader, shuffle: bool = False) -> Iterator[Tensor]:
    return (weights.flat() for weights, _ in reader.batches(ROWS_PER_BATCH, shuffle=shuffle))


def map_bare(paths: Sequence[Path], d: int) -> list[Tensor]:
    """The bytes of the files in order, whatever they mean, one batch at a time: an upper bound."""
    maps = (torch.from_numpy(np.frombuffer(HeldFile(path).map(), dtype="<f4")) for path in paths)
    return [piece for mapped in maps for piece in mapped.split(ROWS_PER_BATCH * d)]


def load_with_datasets(folder: Path, config: str, scratch: Path) -> tuple[Any, Any]:
    """The training split through plain ``datasets``: memory-mapped as torch tensors, and streamed as Arrow tables."""
    import datasets

    datasets.disable_progress_bars()
    mapped = datasets.load_dataset(str(folder), config, split="train", cache_dir=str(scratch / "cache"))
    stream = datasets.load_dataset(str(folder), config, split="train", streaming=True)
    return mapped.with_format("torch"), stream.with_format("arrow")


def read_streaming(stream: Any) -> Iterator[Tensor]:
    for table in stream.iter(ROWS_PER_BATCH):
        column = table.column("weights").combine_chunks()
        values = column.values.to_numpy().reshape(len(column), -1)
        with warnings.catch_warnings():
            # torch warns that Arrow's memory is read-only; a copy would cost a quarter of the speed
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            tensor = torch.from_numpy(values)
        yield tensor


def write_state_dicts(reader: zoo.ZooReader, folder: Path) -> list[Path]:
    """The baseline: one state_dict per file, as the authors of the paper store their zoo."""
    folder.mkdir()
    files = []
    for row in range(len(reader)):
        weights = zoo.TransformerWeights.from_flat(reader.spec, reader.weights(row), check_finite=False)
        files.append(folder / f"{row:06d}.pt")
        torch.save({name: tensor.clone() for name, tensor in weights.state_dict().items()}, files[-1])
    return files


def read_state_dicts(files: Sequence[Path]) -> Iterator[Tensor]:
    for start in range(0, len(files), ROWS_PER_BATCH):
        states = (torch.load(path, weights_only=True) for path in files[start : start + ROWS_PER_BATCH])
        yield torch.stack([torch.cat([tensor.flatten() for tensor in state.values()]) for state in states])


def memory_growth(way: Callable[[], Iterable[Tensor]]) -> float:
    """By how many megabytes the private memory of the process grows over ten passes, after a first one.

    Pages of mapped files do not count: they belong to the cache of the system, which can take them back.
    """
    full_pass(way)()
    start = private_megabytes()
    peak = start
    for _ in range(PASSES):
        for batch in way():
            batch.sum()
            peak = max(peak, private_megabytes())
    return peak - start


def private_megabytes() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise ValueError("this system does not report the memory of a process: the benchmark needs Linux")
