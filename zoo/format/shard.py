"""A shard on disk, as generation writes it and publishing reads it.

RUNS/<config>/shard-00003/ holds checkpoints.arrow, runs.arrow, timing.json and, once it is finished, manifest.json.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
from msgspec import Meta

from zoo.checked import checked
from zoo.format.manifest import MANIFEST_FILE, FileEntry, Manifest
from zoo.format.published import RUNS_FILE
from zoo.format.record import TrainingRecord, config_name
from zoo.format.schema import PUBLISHED_RUN_SCHEMA, RUN_SCHEMA, checkpoint_schema, stored_schema
from zoo.format.table_file import read_table, write_table
from zoo.storage.atomic import write_atomically
from zoo.storage.untrusted import faults_named, read_json

CHECKPOINTS_FILE, TIMING_FILE = "checkpoints.arrow", "timing.json"
_KIND = "shard"
_Seconds = Annotated[float, Meta(gt=0, lt=1e9)]  # a shard takes hours


@dataclass(frozen=True)
class _Timing:
    """``timing.json``; no ``engine_seconds`` if the engine was interrupted, or an old version did not record them."""

    wall_seconds: _Seconds
    engine_seconds: _Seconds | None = None
    device: str = "unknown"


@dataclass(frozen=True)
class ShardRecord(TrainingRecord):
    """How a shard was made, from its manifest."""

    config: str
    shard: int
    runs: int
    engine: str
    precision: str
    all_checkpoints: FileEntry | None = field(default=None, kw_only=True)
    """The file of all checkpoints, as it was trained, where ``zoo.thin`` has kept only some; None in a whole shard."""

    @classmethod
    def of_manifest(cls, manifest: Manifest, where: str | Path) -> "ShardRecord":
        """The record in a shard's manifest; any other manifest is a ValueError that names ``where`` it lies."""
        details = manifest.details
        if details.get("kind") != _KIND:
            raise ValueError(f"{where} does not belong to a shard: its kind is {details.get('kind')!r}")
        with faults_named(f"{where} is damaged"):
            return cls.from_dict({name: value for name, value in details.items() if name != "kind"})


def shard_folder(runs: Path, config: str, shard: int) -> Path:
    return runs / config / f"shard-{shard:05d}"


def write_shard(
    folder: Path,
    record: ShardRecord,
    checkpoints: Iterable[pa.Table],
    runs: pa.Table,
    timing: Callable[[], dict[str, Any]],
) -> None:
    """Writes a finished shard: the same runs, the same bytes, except for ``timing.json``, which the manifest omits.

    ``timing`` is called after the tables are written, so that writing them can be part of it.
    """
    schema, run_schema = (stored_schema(each, runs) for each in (checkpoint_schema(record.spec), RUN_SCHEMA))
    files = {
        CHECKPOINTS_FILE: write_table(folder / CHECKPOINTS_FILE, schema, checkpoints),
        RUNS_FILE: write_table(folder / RUNS_FILE, run_schema, [runs]),
    }
    write_atomically(folder / TIMING_FILE, json.dumps(timing(), indent=2).encode() + b"\n")
    Manifest(files, {"kind": _KIND, **record.to_dict()}).write(folder)


def finished_record(folder: Path) -> ShardRecord | None:
    """The record of a finished shard; None where it is not finished. A file that is cut short is an error."""
    if not (folder / MANIFEST_FILE).exists():
        return None
    shard = Shard.read(folder)
    for name in shard.manifest.files:
        shard.manifest.check_size(folder, name)
    return shard.record


@dataclass(frozen=True)
class Shard:
    """A finished shard on disk."""

    folder: Path
    manifest: Manifest
    record: ShardRecord

    @classmethod
    def read(cls, folder: Path) -> "Shard":
        """Reads the manifest and checks that it belongs to a shard of this config."""
        manifest, where = Manifest.read(folder), folder / MANIFEST_FILE
        record = ShardRecord.of_manifest(manifest, where)
        if record.config != folder.parent.name:
            raise ValueError(f"{where} belongs to config {record.config!r}, but lies in {folder.parent.name!r}")
        if config_name(record.task, record.seeds) != record.config:
            raise ValueError(
                f"{where} has task {record.task!r} with seeds {record.seeds!r}, which does not fit config "
                f"{record.config!r}"
            )
        if not {CHECKPOINTS_FILE, RUNS_FILE} <= manifest.files.keys():
            raise ValueError(f"{where} does not list {CHECKPOINTS_FILE} and {RUNS_FILE}")
        return cls(folder, manifest, record)

    def check_files(self) -> None:
        """Compares every file with its recorded hash."""
        for name in self.manifest.files:
            self.manifest.check_file(self.folder, name)

    def runs(self) -> pa.Table:
        """One row per run, with its share of the shard's wall time."""
        table = read_table(self.folder / RUNS_FILE, RUN_SCHEMA)
        seconds = self.timing.wall_seconds / max(1, len(table))
        return table.append_column(PUBLISHED_RUN_SCHEMA.field("wall_seconds"), pa.array([seconds] * len(table)))

    @cached_property
    def timing(self) -> _Timing:
        """How long it took, and on which device."""
        path = self.folder / TIMING_FILE
        with faults_named(f"{path} cannot be read", OSError):
            raw = checked(read_json(path), dict[str, Any], "")
            return checked({name: raw[name] for name in _Timing.__dataclass_fields__ if name in raw}, _Timing, "")


def find_shards(runs: Path) -> tuple[dict[str, list[Shard]], list[Path]]:
    """The finished shards by config, in order of their numbers, and the folders of unfinished ones."""
    if not runs.is_dir():
        raise FileNotFoundError(f"{runs} is not a folder: it should hold what `python -m generation.run` wrote")
    configs: dict[str, list[Shard]] = {}
    unfinished = []
    for folder in sorted(runs.glob("*/shard-*")):
        if (folder / MANIFEST_FILE).is_file():
            configs.setdefault(folder.parent.name, []).append(Shard.read(folder))
        else:
            unfinished.append(folder)
    if not configs:
        state = f"{len(unfinished)} unfinished" if unfinished else "no"
        raise ValueError(f"{runs} holds {state} shards and none to publish: run `python -m generation.run` to its end")
    for shards in configs.values():
        shards.sort(key=lambda shard: shard.record.shard)
        _check_agreement(shards)
    return configs, unfinished


def _check_agreement(shards: Sequence[Shard]) -> None:
    """Refuses a shard that is there twice, and shards that were not trained alike: they do not belong in one config."""
    for one, other in pairwise(shards):
        if one.record.shard == other.record.shard:
            raise ValueError(f"{one.folder} and {other.folder} are both shard {one.record.shard}")
    first = shards[0]
    expected = first.record.training()
    for other in shards[1:]:
        for name, value in other.record.training().items():
            if value != expected[name]:
                raise ValueError(
                    f"{first.record.config} mixes shards trained differently: {name} is {expected[name]!r} in "
                    f"{first.folder.name} and {value!r} in {other.folder.name}; publish them apart"
                )
