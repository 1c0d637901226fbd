"""Merges the shards that generation wrote into the published zoo: Arrow files by split, runs, card, manifest.

    python -m zoo.publish runs my-zoo
    python -m zoo.publish runs my-zoo --push-to-hub OWNER/NAME          after `hf auth login`
    python -m zoo.publish runs my-zoo --push-to-hub OWNER/NAME --predictors nfn/pretrained
    python -m zoo.publish runs out --splits 60/20/20                a small zoo: more validation and test runs
    python -m zoo.publish runs out --checkpoints epoch_20           a light one: a single checkpoint of each run

The same runs always give the same bytes. The split of a run is a function of its id, so publishing again with more
shards and the same --splits moves none; where each configuration was trained several times, it is a function of the
configuration, so that all its repeats are in one split. OUT is replaced whole: killed at any moment, it is the old zoo
or the new one. (Where the file system cannot exchange two folders, as NFS cannot, there is a moment between two renames
without OUT; publishing again after a kill in it brings the old one back.) A file in OUT that is not part of the old
zoo, such as .git, is never deleted: publishing refuses.
"""

import functools
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from zoo.checked import printable
from zoo.command import Advance, Argument, Command, Option, progress_bar
from zoo.format.splits import DEFAULT_SHARES, SPLITS, parse_shares, run_digest, splits_of
from zoo.format.statements import Statements


@dataclass(frozen=True)
class _Options(Statements):
    runs: Annotated[Path, Argument("folder that generation wrote its shards to", "RUNS")]
    out: Annotated[Path, Argument("folder of the published zoo; an older zoo is replaced", "OUT")]
    checkpoints: Annotated[tuple[str, ...] | None, Option("only these of each run (default: all)", "LABEL")] = None
    splits: Annotated[str, Option("percentages of train, validation and test", "T/V/T")] = DEFAULT_SHARES
    card: Annotated[Path | None, Option("template of README.md (default: the one in this package)", "FILE")] = None
    push_to_hub: Annotated[str | None, Option("then upload to this dataset repository", "OWNER/NAME")] = None
    predictors: Annotated[
        Path | None, Option("also upload those fitted predictors in this folder that read its transformers", "DIR")
    ] = None
    private: Annotated[bool, Option("make that repository private, if it is new")] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_shares(self.splits)
        if self.push_to_hub is None and (self.private or self.predictors):
            option = "--private" if self.private else "--predictors"
            raise ValueError(f"{option} is about a repository on the hub: name it with --push-to-hub OWNER/NAME")


_command = Command(__name__, "zoo.publish", __doc__, _Options)

import numpy as np
import pyarrow as pa
from jaxtyping import Integer

from zoo.format.card import DEFAULT_CARD, write_card_and_manifest
from zoo.format.faults import Located, SeenWeights, config_faults
from zoo.format.manifest import MANIFEST_FILE, FileEntry, Manifest
from zoo.format.published import RUNS_FILE, ConfigDetails, PublishedZoo, check_target, split_file, zoo_files
from zoo.format.record import TrainingRecord, check_same_data
from zoo.format.schema import PUBLISHED_RUN_SCHEMA, checkpoint_schema, stored_schema
from zoo.format.shard import CHECKPOINTS_FILE, Shard, find_shards
from zoo.format.table_file import ROWS_PER_BATCH, write_table
from zoo.reading.hub import check_login, fitted_predictors, push
from zoo.reading.reader import MappedCheckpoints
from zoo.storage.swap import replacing_folder
from zoo.tasks.embedding import VECTORS_FILE, WordEmbedding, copy_embedding

_ROWS_PER_FILE = 512  # 38 MB; the paper's 43,900 training rows make 86 files
_FILES_OF_A_SMALL_SPLIT = 4  # streaming readers divide files among their workers


def _publish(options: _Options, advance: Advance = lambda rows: None) -> Manifest:
    """Publishes every finished shard below ``runs`` as the folder ``out``; ``advance`` gets the number of rows."""
    runs, out = options.runs, options.out.resolve()
    configs, _ = find_shards(runs)
    check_target(out, "zoo", [runs.resolve()], configs)
    check_same_data({config: shards[0].record for config, shards in configs.items()})
    template = (options.card or DEFAULT_CARD).read_text(encoding="utf-8")
    with replacing_folder(out, zoo_files) as folder:
        files: dict[str, FileEntry] = {}
        details: dict[str, ConfigDetails] = {}
        seen: SeenWeights = {}
        for config, shards in configs.items():
            entries, details[config] = _write_config(folder, config, shards, options, seen, advance)
            files |= entries
            if shards[0].record.embedding_sha256 is not None:
                files |= _copy_embedding(runs, folder, shards[0])
        name = options.push_to_hub or out.name
        return write_card_and_manifest(folder, files, details, template, name, options)


def _write_config(
    folder: Path, config: str, shards: Sequence[Shard], options: _Options, seen: SeenWeights, advance: Advance
) -> tuple[dict[str, FileEntry], ConfigDetails]:
    """Writes the splits and the runs of one config; refuses what ``zoo.verify`` would report."""
    for shard in shards:
        shard.check_files()
    record, located = shards[0].record, _locate_runs(shards, [shard.runs() for shard in shards])
    runs = located[0]
    rows = MappedCheckpoints([shard.folder / CHECKPOINTS_FILE for shard in shards], record.spec)
    completed = _completed_rows(rows, runs, record)
    metadata = rows.table.take(pa.array(completed))
    weights = (rows.gather(part) for part in _pieces(completed, ROWS_PER_BATCH))
    located_rows: Located = metadata, lambda row: rows.locate(int(completed[row]))
    numbers = [each.record.shard for each in shards]
    thinned = [str(each.record.shard) for each in shards if each.record.all_checkpoints]
    for fault in config_faults(record, numbers, located, located_rows, weights, seen, thinned=thinned):
        raise ValueError(fault)
    facts, kept = metadata.to_pandas(), record.checkpoints_among(options.checkpoints)
    facts["split"] = splits_of(facts.__getitem__, repeats=record.repeats is not None, shares=options.splits)
    by_split = {split: completed[facts["checkpoint"].isin(kept) & (facts["split"] == split)] for split in SPLITS}
    files: dict[str, FileEntry] = {}
    schema, run_schema = (stored_schema(each, runs) for each in (checkpoint_schema(rows.spec), PUBLISHED_RUN_SCHEMA))
    for split in SPLITS:
        parts = _cut(by_split[split])
        for index, part in enumerate(parts):
            name = split_file(config, split, index, len(parts))
            files[name] = write_table(folder / name, schema, _read_rows(rows, part, advance))
    name = f"{config}/{RUNS_FILE}"
    files[name] = write_table(folder / name, run_schema, [runs])
    used = set(runs.column("shard").to_pylist())
    shards = [shard for shard in shards if shard.record.shard in used]
    records = [shard.record for shard in shards]
    return files, ConfigDetails(
        **records[0].training(),
        engines=sorted({record.engine for record in records}),
        precisions=sorted({record.precision for record in records}),
        code_versions=sorted({shard.manifest.code_version for shard in shards}),
        shards=[record.shard for record in records],
        runs=dict(sorted(Counter(runs.column("status").to_pylist()).items())),
        rows={split: len(by_split[split]) for split in SPLITS},
        splits=options.splits,
        kept=None if options.checkpoints is None else kept,
        thinned={str(each.shard): each.all_checkpoints.sha256 for each in records if each.all_checkpoints} or None,
    )


def _locate_runs(shards: Sequence[Shard], tables: Sequence[pa.Table]) -> Located:
    """The runs of all shards and where they are; refuses a table that is not of its shard.

    A run of the grid may be in a sample too. It is taken from the first of its shards, if it is the same in all.
    """
    for shard, table in zip(shards, tables, strict=True):
        if not set(table.column("shard").to_pylist()) <= {shard.record.shard}:
            raise ValueError(f"{shard.folder / RUNS_FILE} has runs of another shard than {shard.record.shard}")
    all_runs, kept = pa.concat_tables(tables), []
    files = [shard.folder / RUNS_FILE for shard in shards]
    places = [(file, row) for file, table in zip(files, tables, strict=True) for row in range(len(table))]
    trained = all_runs.drop_columns(["shard", "wall_seconds", "code_version"]).to_pandas()  # where NaN equals NaN
    first: dict[str, int] = {}
    for row, run in enumerate(all_runs.column("run_id").to_pylist()):
        (here, number), (there, _) = places[row], places[first.setdefault(run, row)]
        if here == there:
            kept.append(row)
        elif not trained.iloc[row].equals(trained.iloc[first[run]]):
            raise ValueError(f"{here}, row {number}: the run is also in {there.parent.name}, with other numbers")
    return all_runs.take(kept), lambda row: places[kept[row]]


def _completed_rows(rows: MappedCheckpoints, runs: pa.Table, record: TrainingRecord) -> Integer[np.ndarray, " n"]:
    """The checkpoints of completed runs, and of unknown ones, in the order of the runs' digests.

    One that several shards have is taken from the first of them, if it is the same in all.
    """
    ids, names = (rows.table.column(name).to_pylist() for name in ("run_id", "checkpoint"))
    states = dict(zip(*(runs.column(name).to_pylist() for name in ("run_id", "status")), strict=True))
    place = {name: index for index, name in enumerate(record.checkpoints)}
    completed = [row for row, run in enumerate(ids) if states.get(run, "completed") == "completed"]
    chosen, first = [], {(ids[row], names[row]): row for row in reversed(completed)}
    for row in completed:
        (here, number), (there, _) = map(rows.locate, (row, earlier := first[ids[row], names[row]]))
        if here == there:
            chosen.append(row)
        elif not rows.take(np.array([row])).equals(rows.take(np.array([earlier]))):
            raise ValueError(f"{here}, row {number}: the checkpoint is also in {there.parent.name}, with other numbers")
    chosen.sort(key=lambda row: (run_digest(ids[row]), place.get(names[row], -1)))
    return np.array(chosen, dtype=np.int64)


def _cut(rows: Integer[np.ndarray, " n"]) -> list[Integer[np.ndarray, " k"]]:
    """The rows of each file: 512, or a quarter of a small split in whole batches of 64. An empty split is one file."""
    quarter = -(-len(rows) // (_FILES_OF_A_SMALL_SPLIT * ROWS_PER_BATCH)) * ROWS_PER_BATCH
    return _pieces(rows, min(_ROWS_PER_FILE, max(ROWS_PER_BATCH, quarter)))


def _pieces(rows: Integer[np.ndarray, " n"], size: int) -> list[Integer[np.ndarray, " k"]]:
    """The rows in pieces of one size, the last one smaller; no rows are one empty piece."""
    return np.split(rows, range(size, len(rows), size))


def _read_rows(rows: MappedCheckpoints, selected: Integer[np.ndarray, " n"], advance: Advance) -> Iterator[pa.Table]:
    """The selected rows as tables of 64."""
    for part in _pieces(selected, ROWS_PER_BATCH):
        yield rows.take(part)
        advance(len(part))


def _copy_embedding(runs: Path, folder: Path, shard: Shard) -> dict[str, FileEntry]:
    """Puts the task's frozen embedding beside its rows, if it is the one the shard was trained with."""
    task = shard.record.task
    if WordEmbedding.load(runs / task).sha256 != shard.record.embedding_sha256:
        raise ValueError(f"{runs / task / VECTORS_FILE} is not the embedding that {shard.folder} was trained with")
    return {name: FileEntry.of(folder / name) for name in copy_embedding(task, runs, folder)}


def report(out: Path) -> None:
    """Prints what a published zoo holds."""
    zoo = PublishedZoo.read(out)
    for name, config in zoo.configs.items():
        counts = ", ".join(f"{config.rows[split]:,} {split}" for split in SPLITS)
        states = ", ".join(f"{runs:,} {status}" for status, runs in config.runs.items())
        print(printable(f"{name}: {counts} rows; runs: {states}"))
        for split in SPLITS:
            if split not in config.filled_splits:
                remedy = "more runs fill it, or other --splits of zoo.publish than " + config.splits
                print(f"{name}: no run belongs in {split} yet, so load_dataset will not have it; {remedy}")
    size = sum(entry.bytes for entry in zoo.manifest.files.values()) / 1e6
    print(f"{printable(out)}: {len(zoo.manifest.files)} files, {size:,.1f} MB")


@_command
def main(options: _Options) -> None:
    if options.push_to_hub:
        check_login(options.push_to_hub)
    configs, unfinished = find_shards(options.runs)
    for folder in unfinished:
        print(f"skipped {printable(folder)}: unfinished (no {MANIFEST_FILE})", file=sys.stderr)
    total = sum(shard.manifest.files[CHECKPOINTS_FILE].rows or 0 for shards in configs.values() for shard in shards)
    with progress_bar() as bar:
        task = bar.add_task("publishing rows", total=total)
        _publish(options, functools.partial(bar.advance, task))
    report(options.out)
    if options.push_to_hub:
        beside = fitted_predictors(options.predictors, PublishedZoo.read(options.out)) if options.predictors else {}
        print(push(options.out, options.push_to_hub, private=options.private, beside=beside))
