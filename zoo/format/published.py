"""The published folder: the names of its files, and the details of each config in its manifest.

manifest.json  README.md  croissant.json
mnist/train-00000-of-00086.arrow …  mnist/validation-…  mnist/test-…  mnist/runs.arrow  mnist/runs.parquet
agnews/…  agnews/embedding.safetensors  agnews/vocabulary.json
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zoo.checked import CountOrZero, Sha256
from zoo.format.manifest import MANIFEST_FILE, Manifest
from zoo.format.record import TrainingRecord, config_name
from zoo.format.splits import DEFAULT_SHARES, SPLITS, parse_shares, splits_of
from zoo.format.table_file import MAX_TABLE_BYTES
from zoo.storage.swap import unlisted_entries
from zoo.storage.untrusted import HeldFile
from zoo.tasks.embedding import EMBEDDING_FILES

CARD_FILE, CROISSANT_FILE = "README.md", "croissant.json"
RUNS_FILE, RUNS_PARQUET = "runs.arrow", "runs.parquet"
DERIVED_FILES = (CARD_FILE, CROISSANT_FILE, RUNS_PARQUET)
"""The names of files that are made from the others and the manifest."""
PREDICTORS_FOLDER = "predictors"
"""The folder of fitted predictors beside a zoo on the hub; they are not part of it or of its manifest."""
_BESIDE_A_ZOO = frozenset({".git", ".gitattributes", ".gitignore", ".cache", PREDICTORS_FOLDER})
"""Entries that git, the hub's client and we ourselves put beside a zoo. They are not part of it: ``zoo.verify`` ignores
them, and publishing, which would delete them, refuses as for any other file."""


@dataclass(frozen=True)
class ConfigDetails(TrainingRecord):
    """One config of a published zoo: what its transformers are, how they were trained, and how many there are."""

    engines: list[str]
    precisions: list[str]
    code_versions: list[str]
    shards: list[CountOrZero]
    runs: dict[str, CountOrZero]
    rows: dict[str, CountOrZero]
    splits: str = field(default=DEFAULT_SHARES, kw_only=True)
    """The percentages of train, validation and test."""
    kept: tuple[str, ...] | None = field(default=None, kw_only=True)
    """The checkpoints that were published; None for all that were taken."""
    thinned: dict[str, Sha256] | None = field(default=None, kw_only=True)
    """Shard → SHA-256 of the file of all its checkpoints, where only some runs have weights here; None where all do."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_shares(self.splits)
        self.checkpoints_among(self.kept)
        if set(self.rows) != set(SPLITS):
            raise ValueError(f"rows must count {', '.join(SPLITS)}, got {self.rows}")

    @property
    def checkpoints(self) -> tuple[str, ...]:
        return self.checkpoints_among(self.kept)

    @property
    def filled_splits(self) -> list[str]:
        """The splits that have rows; a small zoo may have no run in one of them."""
        return [split for split in SPLITS if self.rows[split]]

    def splits_of(self, column: Callable[[str], Iterable[Any]]) -> list[str]:
        """The split of every row of a table of this config; ``column`` gives the values of a column by its name."""
        return splits_of(column, repeats=self.repeats is not None, shares=self.splits)


@dataclass(frozen=True)
class PublishedZoo:
    """A published folder whose manifest was read; its files were not."""

    folder: Path
    manifest: Manifest
    configs: dict[str, ConfigDetails]

    @classmethod
    def read(cls, folder: Path) -> "PublishedZoo":
        manifest = Manifest.read(folder)
        return cls(folder, manifest, configs_of(manifest, folder))

    def config(self, name: str) -> ConfigDetails:
        if name not in self.configs:
            raise ValueError(f"{self.folder} has no config {name!r}: it has {', '.join(self.configs)}")
        return self.configs[name]

    def files(self, config: str, split: str) -> list[str]:
        """The Arrow files of a split, in order."""
        self.config(config)
        return split_files(self.manifest, config, split)

    def paths(self, config: str, splits: Sequence[str]) -> list[Path]:
        """The Arrow files of some splits as paths, each there and of the recorded size."""
        names = [name for split in splits for name in self.files(config, split)]
        for name in names:
            self.manifest.check_size(self.folder, name)
        return [self.folder / name for name in names]

    def hold(self, name: str) -> HeldFile:
        """A listed file, kept open, of the recorded size."""
        if name not in self.manifest.files:
            raise ValueError(f"{self.folder}/{MANIFEST_FILE} lists no {name}")
        self.manifest.check_size(self.folder, name)
        return HeldFile(self.folder / name, self.manifest.files[name].bytes)

    def files_of_no_config(self) -> list[str]:
        """The files that the manifest lists beside card, ``croissant.json`` and the files of its own configs."""
        known = {CARD_FILE, CROISSANT_FILE}
        for config, details in self.configs.items():
            known |= {f"{config}/{RUNS_FILE}", f"{config}/{RUNS_PARQUET}"}
            known |= {name for split in SPLITS for name in self.files(config, split)}
            if details.embedding_sha256 is not None:
                known |= {f"{details.task}/{file}" for file in EMBEDDING_FILES}
        return sorted(self.manifest.files.keys() - known)

    def surplus_entries(self) -> list[str]:
        """The entries of the folder that its manifest does not list and that may not lie beside it.

        Listed files may lie behind a link to a folder.
        """
        files = self.manifest.files
        surplus = set(unlisted_entries(self.folder, [*files, MANIFEST_FILE])) - _BESIDE_A_ZOO
        return sorted(name for name in surplus if not any(file.startswith(f"{name}/") for file in files))


def configs_of(manifest: Manifest, folder: Path | str) -> dict[str, ConfigDetails]:
    """The configs in the manifest of a published zoo; any other manifest is an error."""
    where = f"{folder}/{MANIFEST_FILE}"
    if manifest.details.get("kind") != "zoo":
        raise ValueError(f"{where} does not belong to a published zoo: make one with `python -m zoo.publish RUNS OUT`")
    try:
        configs = {name: ConfigDetails.from_dict(raw) for name, raw in manifest.details["configs"].items()}
        for name, config in configs.items():
            if name != config_name(config.task, config.seeds):
                raise ValueError(f"{name!r} is not a config of {config.task} with seeds {config.seeds!r}")
            runs = manifest.files.get(f"{name}/{RUNS_FILE}")
            if runs is not None and runs.bytes > MAX_TABLE_BYTES:
                raise ValueError(f"{name}/{RUNS_FILE} of {runs.bytes:,} bytes, at most {MAX_TABLE_BYTES:,} are read")
        return configs
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{where} is damaged: {type(error).__name__}: {error}") from error


def split_file(config: str, split: str, index: int, count: int) -> str:
    return f"{config}/{split}-{index:05d}-of-{count:05d}.arrow"


def split_files(manifest: Manifest, config: str, split: str) -> list[str]:
    """The files of one split by name, in order; a split always has at least one."""
    names = sorted(name for name in manifest.files if name.startswith(f"{config}/{split}-"))
    if not names:
        raise ValueError(f"{MANIFEST_FILE} lists no file of {config}/{split}")
    for index, name in enumerate(names):
        if name != (expected := split_file(config, split, index, len(names))):
            raise ValueError(f"{MANIFEST_FILE} lists {name!r} where {expected} should be")
    return names


def parse_splits(text: str) -> tuple[str, ...]:
    """``train``, ``train+validation``, or ``all``."""
    names = SPLITS if text == "all" else tuple(text.split("+"))
    if len(set(names)) < len(names) or not set(names) <= set(SPLITS):
        raise ValueError(f"unknown split {text!r}: one of {', '.join(SPLITS)}, several joined by +, or all")
    return names


def zoo_files(folder: Path) -> list[str] | None:
    """Every file of a published zoo by name, the manifest last; None where there is no manifest."""
    return [*Manifest.read(folder).files, MANIFEST_FILE] if (folder / MANIFEST_FILE).is_file() else None


def check_target(out: Path, kind: str, sources: Sequence[Path], configs: Collection[str] = ()) -> None:
    """Refuses to replace a folder that is read, anything but an older zoo or page, or a zoo with a further config."""
    refuse_nested(out, sources)
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / MANIFEST_FILE).is_file() or Manifest.read(out).details.get("kind") != kind:
        raise ValueError(f"{out} is there and is not a {kind}: name a folder that is empty or not there yet")
    if kind == "zoo" and (lost := PublishedZoo.read(out).configs.keys() - configs):
        raise ValueError(f"{out} has {sorted(lost)[0]} too, which would be lost: name another folder or delete it")


def refuse_nested(out: Path, sources: Sequence[Path]) -> None:
    for source in sources:
        if out == source or out in source.parents or source in out.parents:
            raise ValueError(f"{out} and {source} lie inside one another: write to a folder of its own")
