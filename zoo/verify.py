"""Checks a published zoo and names the file and the row at fault: hashes, schema, counts, rows, weights, splits.

    python -m zoo.verify small-transformer-zoo
    python -m zoo.verify small-transformer-zoo --evaluate 20 --data DIR

With --evaluate, that many random rows of each config, of all splits in turn and of each at least one, are rebuilt from
their weights, and their accuracy and loss on the real test set are measured again, of language models the other labels,
too. Exit code 1 and one line on stderr for each fault.

That proves that the files are those of the manifest, byte by byte, and that the rows do not contradict each other: what
follows from the rest of a row does, labels agree with the runs' curves, and no weights are there twice. It does not
prove where a zoo comes from, or that its runs were trained as they say: generation/README.md has the details.
"""

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import isclose
from pathlib import Path
from typing import Annotated

from zoo.checked import CountOrZero, Seed, printable
from zoo.command import DEFAULT_NAME, Advance, Argument, Command, Option, how_many, progress_bar


@dataclass(frozen=True)
class _Options:
    zoo: Annotated[str, Argument("folder of the zoo, or its name on the hub", "DIR")] = DEFAULT_NAME
    evaluate: Annotated[CountOrZero, Option("measure N random rows of each config again, some of every split", "N")] = 0
    data: Annotated[
        Path | None,
        Option(
            "folder that the data's paths start from; Shakespeare's text is its shakespeare/input.txt, else that of "
            "the package (default: this one; the paper's data is downloaded)",
            "DIR",
        ),
    ] = None
    fetch: Annotated[bool, Option("also download the data that the zoo names on the hub, for --evaluate")] = False
    seed: Annotated[Seed, Option("which rows --evaluate takes")] = 0


_command = Command(__name__, "zoo.verify", __doc__, _Options)

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from zoo.format.card import croissant_faults, parquet_fault
from zoo.format.faults import SeenWeights, config_faults
from zoo.format.manifest import MANIFEST_FILE, read_one_edition
from zoo.format.published import CROISSANT_FILE, RUNS_FILE, RUNS_PARQUET, ConfigDetails, PublishedZoo
from zoo.format.schema import PUBLISHED_RUN_SCHEMA
from zoo.format.splits import SPLITS
from zoo.format.table_file import read_table
from zoo.reading.locate import find_folder
from zoo.reading.reader import MappedCheckpoints
from zoo.tasks.embedding import EMBEDDING_FILES, WordEmbedding
from zoo.tasks.evaluation import evaluate, load_task
from zoo.tasks.examples import TaskData
from zoo.tasks.language import language_labels
from zoo.tasks.paper_data import SAMPLE_SOURCE, load_sample_digits, task_data
from zoo.transformer.model import build_model

_FAULTY = 1
_ACCURACY_TOLERANCE, _LOSS_TOLERANCE, _RELATIVE_TOLERANCE = 0.002, 1e-4, 1e-5
"""Another device rounds differently and may classify a few test examples differently. Losses may be large."""


def _verify(folder: Path, advance: Advance = lambda done: None) -> list[str]:
    """Every fault of a published zoo, one line each; none for a sound zoo. ``advance`` gets numbers of bytes.

    A file that fails its hash is named and not looked into. A manifest that cannot be read raises a ValueError. A zoo
    that is published again meanwhile is read again.
    """

    def find_faults(zoo: PublishedZoo) -> Iterator[str]:
        yield from zoo_faults(zoo, {}, advance)
        yield from (f"{folder / name} is not listed in the manifest" for name in zoo.surplus_entries())

    return _of_one_edition(folder, find_faults)


def _of_one_edition(folder: Path, find: Callable[[PublishedZoo], Iterator[str]]) -> list[str]:
    """The faults of one edition of a zoo."""
    warn = partial(warnings.warn, f"{folder} changed while reading: it is read again", stacklevel=2)
    return read_one_edition(folder, lambda _: list(find(PublishedZoo.read(folder))), warn)


def zoo_faults(zoo: PublishedZoo, seen: SeenWeights, advance: Advance = lambda done: None) -> Iterator[str]:
    """The faults of all that the manifest lists; ``seen`` gathers weights, over several zoos where they are joined."""
    damaged = _check_files(zoo, advance)
    yield from damaged.values()
    with suppress(ValueError):  # a split whose files are not all there, which is reported below
        yield from (f"{zoo.folder} lists {name!r}, a file of no config" for name in zoo.files_of_no_config())
    if CROISSANT_FILE not in damaged:
        yield from croissant_faults(zoo)
    for config in zoo.configs:
        yield from _check_config(zoo, config, set(damaged), seen)


def _check_files(zoo: PublishedZoo, advance: Advance = lambda done: None) -> dict[str, str]:
    """Files that are missing or whose size or hash is not the recorded one, and what is wrong with each."""
    faults = {}
    for name, entry in zoo.manifest.files.items():
        try:
            zoo.manifest.check_file(zoo.folder, name)
        except (ValueError, OSError) as error:
            faults[name] = str(error)
        advance(entry.bytes)
    return faults


def _check_config(zoo: PublishedZoo, config: str, damaged: set[str], seen: SeenWeights) -> Iterator[str]:
    """Faults in the content of one config's undamaged files."""
    details = zoo.config(config)
    name = f"{config}/{RUNS_FILE}"
    if name not in zoo.manifest.files:
        yield f"the manifest lists no {name}"
        return
    if name in damaged:
        return
    path = zoo.folder / name
    try:
        runs = read_table(path, PUBLISHED_RUN_SCHEMA)
    except ValueError as error:
        yield str(error)
        return
    if len(runs) != (listed := zoo.manifest.files[name].rows):
        yield f"{path} has {len(runs):,} rows, the manifest says {listed}"
    again = f"{config}/{RUNS_PARQUET}"
    if again in zoo.manifest.files.keys() - damaged and (fault := parquet_fault(zoo.folder / again, runs)):
        yield fault
    counted = dict(Counter(runs.column("status").to_pylist()))
    if counted != details.runs:
        yield f"{path} has runs {counted}, the manifest says {details.runs}"
    embedding_damaged = any(f"{details.task}/{file}" in damaged for file in EMBEDDING_FILES)
    if details.embedding_sha256 is not None and not embedding_damaged:
        folder = zoo.folder / details.task
        try:
            if WordEmbedding.load(folder).sha256 != details.embedding_sha256:
                yield f"{folder} holds another embedding than the one its transformers were trained with"
        except (ValueError, OSError) as error:
            yield str(error)
    paths, splits = list[Path](), list[str]()
    for split in SPLITS:
        try:
            names = zoo.files(config, split)
        except ValueError as error:
            yield str(error)
            continue
        rows = sum(zoo.manifest.files[name].rows or 0 for name in names)
        if rows != details.rows[split]:
            yield f"{config}/{split} has {rows:,} rows, its manifest says {details.rows[split]:,}"
        for name in names:
            if name in damaged:
                continue
            path = zoo.folder / name
            try:
                rows = len(MappedCheckpoints([path], details.spec))
            except ValueError as error:
                yield str(error)
                continue
            if rows != (listed := zoo.manifest.files[name].rows):
                yield f"{path} has {rows:,} rows, the manifest says {listed}"
            paths.append(path)
            splits += [split] * rows
    mapped = MappedCheckpoints(paths, details.spec)
    located = (runs, lambda row: (zoo.folder / config / RUNS_FILE, row)), (mapped.table, mapped.locate)
    weights = (batch.array for batch in mapped.batches)
    thinned = list(map(str, details.shards) if damaged else details.thinned or ())
    yield from config_faults(details, details.shards, *located, weights, seen, splits=splits, thinned=thinned)


def _verify_labels(folder: Path, options: _Options, advance: Advance = lambda done: None) -> list[str]:
    """Measures random rows of each config again, and returns one line for each that differs."""

    def measure_again(zoo: PublishedZoo) -> Iterator[str]:
        for config, details in zoo.configs.items():
            mapped = MappedCheckpoints(zoo.paths(config, SPLITS), details.spec)
            task = _load_test_set(folder, details, options)
            for row in _drawn_rows(details, options):
                weights, (path, number) = torch.from_numpy(mapped.gather(np.array([row]))), mapped.locate(row)
                for name, measured in _measure(task, weights).items():
                    stored = float(mapped.table.column(name)[row].as_py())
                    tolerance = _ACCURACY_TOLERANCE if name == "test_accuracy" else _LOSS_TOLERANCE
                    if not isclose(measured, stored, abs_tol=tolerance, rel_tol=_RELATIVE_TOLERANCE):
                        label = name.removeprefix("test_").replace("_", " ")
                        yield f"{path}, row {number}: stored {label} {stored:.4f}, measured {measured:.4f}"
                advance(1)

    return _of_one_edition(folder, measure_again)


def _measure(task: TaskData, weights: Float[Tensor, "1 d"]) -> dict[str, float]:
    """What a checkpoint's columns of these names should hold."""
    measured = evaluate(build_model(task.spec, weights[0]), task)
    more = language_labels(task, weights) if task.spec.causal else {}
    return {"test_accuracy": measured.accuracy, "test_loss": measured.loss} | {k: float(v) for k, v in more.items()}


def _drawn_rows(details: ConfigDetails, options: _Options) -> list[int]:
    """Random rows of a config, numbered through its splits, from each split in turn, and from each at least one."""
    sizes, random = [details.rows[split] for split in SPLITS], np.random.default_rng(options.seed)
    starts = np.cumsum([0, *sizes]).tolist()
    turns = [enumerate((start + random.permutation(size)).tolist()) for start, size in zip(starts, sizes, strict=False)]
    in_turn = [row for _, row in sorted(turn for split in turns for turn in split)]
    return in_turn[: max(options.evaluate, len(details.filled_splits))]


def _load_test_set(folder: Path, details: ConfigDetails, options: _Options) -> TaskData:
    """The data the config was measured on; any other would not compare."""
    definition = details.definition(Path.cwd(), fetch=options.fetch)
    if _same_test_set(details.data_source, SAMPLE_SOURCE) and options.data is None:
        task = task_data(definition, load_sample_digits())
    else:
        try:
            task = load_task(definition, options.data, lambda: folder / details.task)
        except FileNotFoundError as error:
            if definition.is_paper:
                raise
            raise FileNotFoundError(f"{error}; name the folder of {definition.name}'s data with --data") from error
    if details.data and task.identity:
        same = details.data.test_sha256 == task.identity.test_sha256
        if details.spec.causal:  # the divergence is from the bigrams of the training text
            same = same and details.data.train_sha256 == task.identity.train_sha256
    else:
        same = _same_test_set(details.data_source, task.source)
    if not same:
        raise ValueError(
            f"the zoo was measured on {details.data_source!r}, but the data at hand is {task.source!r}, with another "
            f"{'text' if details.spec.causal else 'test set'}: name the folder of the same data with --data"
        )
    train = task.train[slice(details.data.train_rows if details.data else None)]  # the first windows of a text
    return replace(task, spec=details.spec, train=train)


def _same_test_set(recorded: str, source: str) -> bool:
    """Whether two sources have one test set, for zoos that recorded no hash of it.

    A preset may train on a part of the training set, named after a comma; the test set is always whole.
    """
    return recorded == source or recorded.startswith(f"{source}, ")


@_command
def main(options: _Options) -> None:
    folder = find_folder(options.zoo)
    zoo = PublishedZoo.read(folder)
    size = sum(entry.bytes for entry in zoo.manifest.files.values())
    with progress_bar() as bar:
        hashing = bar.add_task("checking bytes", total=size)
        problems = _verify(folder, advance=lambda done: bar.advance(hashing, done))
        if options.evaluate and not problems:
            drawn = sum(len(_drawn_rows(details, options)) for details in zoo.configs.values())
            measuring = bar.add_task("measuring again", total=drawn)
            problems = _verify_labels(folder, options, advance=lambda done: bar.advance(measuring, done))
    if zoo.manifest.sha256 is None:
        # a manifest of the first release; publishing or joining again adds a hash
        print(f"note: {folder / MANIFEST_FILE} has no hash of itself: changes to it go unnoticed", file=sys.stderr)
    for problem in problems:
        print(f"error: {printable(problem)}", file=sys.stderr)
    if problems:
        sys.exit(_FAULTY)
    rows = sum(sum(config.rows.values()) for config in zoo.configs.values())
    counted = f"{rows:,} rows in {len(zoo.manifest.files)} files, {size / 1e6:,.1f} MB"
    print(f"{printable(folder)}: {', '.join(zoo.configs)}; {counted}: no faults")
    if options.evaluate:
        counts = {len(_drawn_rows(details, options)) for details in zoo.configs.values()}
        drawn = f"{'up to ' if len(counts) > 1 else ''}{how_many(max(counts), 'random row')}"
        within = f"all within {_ACCURACY_TOLERANCE}, losses within {_LOSS_TOLERANCE}"
        print(f"accuracy of {drawn} per config measured again: {within}")
