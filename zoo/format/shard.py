"""The shards that generation wrote: found, checked, and grouped by config.

RUNS/<config>/shard-00003/ holds checkpoints.arrow, runs.arrow, timing.json and, once it is finished, manifest.json.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from zoo.format.manifest import MANIFEST_FILE, Manifest
from zoo.format.schema import PUBLISHED_RUN_SCHEMA, RUN_SCHEMA
from zoo.format.table_file import read_table
from zoo.storage.json_text import read_json
from zoo.transformer.spec import SPECS, TransformerSpec

CHECKPOINTS_FILE, RUNS_FILE, TIMING_FILE = "checkpoints.arrow", "runs.arrow", "timing.json"
SHARED = ("task", "spec", "preset", "protocol", "seeds", "data_source", "embedding_sha256")
"""What all shards of a config must have in common."""
LONGEST = 1e9  # seconds; a shard takes hours
RECORDED = (*SHARED, "config", "shard", "engine", "precision")

KINDS = {"shard": int, "spec": dict, "protocol": dict} | dict.fromkeys(
    ("preset", "seeds", "data_source", "engine", "precision"), str
)


@dataclass(frozen=True)
class Shard:
    """A finished shard on disk."""

    folder: Path
    manifest: Manifest

    @classmethod
    def read(cls, folder: Path) -> "Shard":
        """Reads the manifest and checks that it is a shard's, and this config's."""
        shard = cls(folder, Manifest.read(folder))
        details, where = shard.details, folder / MANIFEST_FILE
        if details.get("kind") != "shard":
            raise ValueError(f"{where} is no shard's: its kind is {details.get('kind')!r}")
        if missing := [name for name in RECORDED if name not in details]:
            raise ValueError(f"{where} does not say the shard's {missing[0]}")
        if details["config"] != folder.parent.name:
            raise ValueError(f"{where} belongs to config {details['config']!r}, but lies in {folder.parent.name!r}")
        if details["task"] not in tuple(SPECS) or details["config"].split("-")[0] != details["task"]:
            raise ValueError(f"{where} has task {details['task']!r}, which does not fit config {details['config']!r}")
        for name, kind in KINDS.items():
            if type(details[name]) is not kind:
                raise ValueError(f"{where} is damaged: the shard's {name} is {details[name]!r}")
        try:
            TransformerSpec(**details["spec"])
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where} is damaged: {error}") from error
        if not {CHECKPOINTS_FILE, RUNS_FILE} <= shard.manifest.files.keys():
            raise ValueError(f"{where} does not list {CHECKPOINTS_FILE} and {RUNS_FILE}")
        return shard

    @property
    def details(self) -> dict[str, Any]:
        return self.manifest.details

    @property
    def number(self) -> int:
        return self.details["shard"]

    @property
    def spec(self) -> TransformerSpec:
        return TransformerSpec(**self.details["spec"])

    def check_files(self) -> None:
        """Compares every file with its recorded hash."""
        for name in self.manifest.files:
            self.manifest.check_file(self.folder, name)

    def runs(self) -> pa.Table:
        """One row a run, with its share of the shard's wall time."""
        table = read_table(self.folder / RUNS_FILE, RUN_SCHEMA)
        seconds = self.wall_seconds() / max(1, len(table))
        return table.append_column(PUBLISHED_RUN_SCHEMA.field("wall_seconds"), pa.array([seconds] * len(table)))

    def wall_seconds(self) -> float:
        return self._timed("wall_seconds")

    def engine_seconds(self) -> float | None:
        """What its engine took; None where the shard was interrupted, or is of a version that did not say."""
        return None if self._timing.get("engine_seconds") is None else self._timed("engine_seconds")

    def device(self) -> str:
        """What it was trained on."""
        return str(self._timing.get("device", "unknown"))

    def _timed(self, name: str) -> float:
        seconds = self._timing.get(name)
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < LONGEST:
            raise ValueError(f"{self.folder / TIMING_FILE} does not say {name}: {seconds!r}")
        return float(seconds)

    @cached_property
    def _timing(self) -> dict[str, Any]:
        path = self.folder / TIMING_FILE
        try:
            timing = read_json(path)
        except (OSError, ValueError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from error
        if not isinstance(timing, dict):
            raise ValueError(f"{path} is damaged: it holds no object")
        return timing


def find_shards(runs: Path) -> tuple[dict[str, list[Shard]], list[Path]]:
    """The finished shards by config, in order of their numbers, and the folders of unfinished ones."""
    if not runs.is_dir():
        raise FileNotFoundError(f"{runs} is no folder: it should hold what `python -m generation.run` wrote")
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
        shards.sort(key=lambda shard: shard.number)
        check_agreement(shards)
    return configs, unfinished


def check_agreement(shards: Sequence[Shard]) -> None:
    """Refuses shards that were not trained alike: their rows would not belong in one config."""
    first = shards[0]
    for other in shards[1:]:
        for name in SHARED:
            if other.details[name] != first.details[name]:
                raise ValueError(
                    f"{first.details['config']} mixes shards trained differently: {name} is {first.details[name]!r} in "
                    f"{first.folder.name} and {other.details[name]!r} in {other.folder.name}; publish them apart"
                )
