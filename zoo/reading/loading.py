"""``datasets.load_dataset`` for the zoo, from any folder and from any web server that serves a published one.

The library's own reader takes what a folder's card names, wherever that is, and reads a stream that is cut between two
record batches as a shorter one. Here a builder's files come from the manifest alone, are read with the zoo's own checks
and compared with the manifest. So however a split is written (``train[:100%]``), rows that are missing are an error.
"""

import hashlib
from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
from datasets.builder import Key
from datasets.exceptions import DatasetGenerationError
from datasets.table import table_cast

from zoo.command import DEFAULT_NAME
from zoo.format.manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES, FileEntry, Manifest, edition_of, read_one_edition
from zoo.format.published import RUNS_FILE, configs_of, split_files
from zoo.format.schema import PUBLISHED_RUN_SCHEMA, checkpoint_schema
from zoo.format.table_file import read_batches
from zoo.reading.fetch import ServedSource, fetch_small
from zoo.reading.locate import default_configs, download, hub_address, is_url, resolve
from zoo.storage.untrusted import HeldFile

_RUNS_SUFFIX, _RUNS_SPLIT = "-runs", "runs"
_PREPARING = ("download_mode", "verification_mode", "num_proc")
_ARGUMENTS = ("split", "streaming", "cache_dir", "features", "keep_in_memory", "revision", "token", *_PREPARING)


def load_dataset(path: str | Path = DEFAULT_NAME, name: str | None = None, **arguments: Any) -> Any:
    """``datasets.load_dataset`` for the zoo that ``path`` names.

    ``path`` may be a folder, the address of one on a web server, OWNER/NAME on the hub, or the default name, which also
    finds ``$SMALL_TRANSFORMER_ZOO`` and the sample beside this package. ``name`` is a config, and may be left out where
    there is only one. Further arguments are those of ``datasets.load_dataset``: split, streaming, cache_dir, features,
    keep_in_memory, revision, token, download_mode, verification_mode, num_proc. Only files that the manifest lists are
    read. Rows that are missing are an error, never a shorter dataset; so is a server that is too slow or sends too much
    (see ``zoo.reading.fetch``). Files are hashed while they are read, those in a folder too: a damaged file raises a
    ValueError at its end at the latest, before its last rows. A stream may have delivered earlier rows of it, and does
    not check a file that is not read to its end.
    """
    if unknown := sorted(arguments.keys() - set(_ARGUMENTS)):
        raise ValueError(f"{unknown[0]} is not for a zoo, whose files its manifest lists: give {', '.join(_ARGUMENTS)}")
    revision, token = arguments.pop("revision", None), arguments.pop("token", None)
    location, headers = resolve(path), {}
    if isinstance(location, str) and not is_url(location):
        if arguments.get("streaming"):
            location, headers = hub_address(location, revision, token)
        else:
            if name is None:  # the manifest alone shows which config is the only one
                manifest = Manifest.read(download(location, None, revision, token, only_manifest=True))
                (name,) = default_configs(configs_of(manifest, location), location)
            location = download(location, name.removesuffix(_RUNS_SUFFIX), revision, token)
    if isinstance(location, str):
        where = f"{location}/{MANIFEST_FILE}"
        try:
            manifest = Manifest.parse(fetch_small(where, MAX_MANIFEST_BYTES, headers), where)
        except ConnectionError as error:
            raise FileNotFoundError(str(error)) from error
        return _load(location, manifest, name, arguments, headers=headers)
    folder = location
    return read_one_edition(folder, lambda edition: _load(folder, Manifest.read(folder), name, arguments, edition))


def _load(
    location: str | Path,
    manifest: Manifest,
    config: str | None,
    arguments: Mapping[str, Any],
    edition: str = "",
    headers: Mapping[str, str] | None = None,
) -> Any:
    """The files of one config through ``datasets``: streamed, or copied into its cache."""
    split, features = arguments.get("split"), arguments.get("features")
    config, schema, names = _config_files(manifest, config, location)
    files = {
        part: [_ListedFile(location, name, manifest.files[name], edition, headers or {}) for name in listed]
        for part, listed in names.items()
    }
    # another location, edition or type of a column is another copy in the library's cache
    hashes = [f"{file.name} {file.entry.sha256}" for part in files.values() for file in part]
    key = hashlib.sha256("\n".join([str(location), str(features), *hashes]).encode()).hexdigest()[:16]
    builder = _ManifestBuilder(
        cache_dir=arguments.get("cache_dir"),
        dataset_name=DEFAULT_NAME,
        config_name=config,
        config_id=f"{config}-{key}",
        files=files,
        schema=schema,
        features=features,
    )
    if arguments.get("streaming"):
        if arguments.get("num_proc") is not None:
            raise ValueError("num_proc is not for streaming: let a torch DataLoader have several workers")
        return builder.as_streaming_dataset(split=split)
    try:
        builder.download_and_prepare(**{name: arguments[name] for name in _PREPARING if name in arguments})
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, ValueError | OSError):
            raise error.__cause__ from None
        raise
    return builder.as_dataset(split=split, in_memory=bool(arguments.get("keep_in_memory")))


def _config_files(
    manifest: Manifest, config: str | None, location: str | Path
) -> tuple[str, pa.Schema, dict[str, list[str]]]:
    """The config, by default the only one, its schema and its files by split; ``CONFIG-runs`` has one file of runs."""
    configs = configs_of(manifest, location)
    if config is None:
        (config,) = default_configs(configs, location)
    of_runs = config.removesuffix(_RUNS_SUFFIX)
    if of_runs != config and of_runs in configs:
        if (name := f"{of_runs}/{RUNS_FILE}") not in manifest.files:
            raise ValueError(f"{location}/{MANIFEST_FILE} lists no {name}")
        return config, PUBLISHED_RUN_SCHEMA, {_RUNS_SPLIT: [name]}
    if config not in configs:
        known = ", ".join(configs)
        raise ValueError(f"{location} has no config {config!r}: it has {known}, and each with {_RUNS_SUFFIX}")
    names = {split: split_files(manifest, config, split) for split in configs[config].filled_splits}
    for split, listed in names.items():
        rows, promised = sum(manifest.files[name].rows or 0 for name in listed), configs[config].rows[split]
        if rows != promised:
            part = f"{config}/{split}"
            raise ValueError(f"{location}/{MANIFEST_FILE} is damaged: {rows:,} of {promised:,} rows of {part}")
    return config, checkpoint_schema(configs[config].spec), names


class _HashedSource:
    """A source of Arrow messages that hashes its bytes, each once and in order, as they are read."""

    def __init__(self, source: pa.Buffer | ServedSource) -> None:
        self.source, self.size = source, source.size
        self.digest, self.hashed = hashlib.sha256(), 0

    def slice(self, offset: int, length: int) -> pa.Buffer:
        data = self.source.slice(offset, length)
        self.digest.update(memoryview(data)[self.hashed - offset :])
        self.hashed = offset + length
        return data


@dataclass(frozen=True)
class _ListedFile:
    """An Arrow file that a manifest lists, in a folder or on a web server, with its entry and the zoo's edition."""

    location: str | Path
    name: str
    entry: FileEntry
    edition: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return f"{self.location}/{self.name}"

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The batches, checked; a file whose rows or SHA-256 are not those of the manifest ends in a ValueError.

        That is checked before the last batch is delivered, so a reader that has all rows of a file has the right ones.
        """
        rows, last = 0, None
        with self._opened() as opened:
            source = _HashedSource(opened)
            for batch in read_batches(source, schema, str(self)):
                if last is not None:
                    yield last
                rows, last = rows + len(batch), batch
        if rows != self.entry.rows:
            raise ValueError(f"{self} is damaged: {rows:,} rows, the manifest says {self.entry.rows:,}")
        if source.digest.hexdigest() != self.entry.sha256:
            raise ValueError(f"{self} is damaged: its SHA-256 is not the one in the manifest")
        if last is not None:
            yield last

    def _opened(self) -> AbstractContextManager[pa.Buffer | ServedSource]:
        if isinstance(self.location, str):
            return closing(ServedSource(str(self), self.entry.bytes, self.headers))
        mapped = HeldFile(self.location / self.name, self.entry.bytes).map()
        # a file that was opened before the manifest is read again belongs to that manifest
        if edition_of(self.location) != self.edition:
            raise ValueError(f"{self.location} was published again since it was loaded: load it again")
        return nullcontext(pa.py_buffer(mapped))


@dataclass
class _ManifestConfig(datasets.BuilderConfig):
    """``files`` are those of each split; ``schema`` is what each of them must have."""

    files: dict[str, list[_ListedFile]] = field(default_factory=dict)
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    features: datasets.Features | None = None


class _ManifestBuilder(datasets.ArrowBasedBuilder):
    """Rows of a published zoo, from a folder or a web server."""

    BUILDER_CONFIG_CLASS = _ManifestConfig
    config: _ManifestConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def _info(self) -> datasets.DatasetInfo:
        features = self.config.features or datasets.Features.from_arrow_schema(self.config.schema)
        return datasets.DatasetInfo(features=features)

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        return [
            datasets.SplitGenerator(name=split, gen_kwargs={"files": files})
            for split, files in self.config.files.items()
        ]

    def _generate_tables(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, files: list[_ListedFile]
    ) -> Generator[tuple[Key, pa.Table], Any, None]:
        for number, file in enumerate(files):
            for index, batch in enumerate(file.batches(self.config.schema)):
                table = pa.Table.from_batches([batch])
                if self.config.features is not None:
                    table = table_cast(table, self.config.features.arrow_schema)
                yield Key(number, index), table
