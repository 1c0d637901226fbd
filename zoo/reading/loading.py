"""``datasets.load_dataset`` for the zoo, from any folder and from any web server that serves a published one."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from zoo.command import DEFAULT_NAME
from zoo.format.manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES, Manifest, read_one_edition
from zoo.format.published import RUNS_FILE, PublishedZoo, configs_of, split_files
from zoo.format.schema import PUBLISHED_RUN_SCHEMA, checkpoint_schema
from zoo.reading.fetch import fetch_small
from zoo.reading.locate import default_configs, download, hub_address, is_url, resolve

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
        return _load(location, _fetch_manifest(location, headers), name, headers=headers, **arguments)
    folder = location

    def load_folder(edition: str) -> Any:
        return _load(folder, PublishedZoo.read(folder).manifest, name, edition=edition, **arguments)

    return read_one_edition(folder, load_folder)


def _load(
    location: str | Path,
    manifest: Manifest,
    config: str | None,
    *,
    split: Any = None,
    streaming: bool = False,
    cache_dir: str | None = None,
    features: Any = None,
    keep_in_memory: bool | None = None,
    edition: str = "",
    headers: Mapping[str, str] | None = None,
    **preparing: Any,
) -> Any:
    """The files of one config through ``datasets``: streamed, or copied into its cache."""
    from datasets.exceptions import DatasetGenerationError

    from zoo.reading.manifest_builder import ListedFile, ManifestBuilder

    config, schema, names = _config_files(manifest, config, location)
    files = {
        part: [ListedFile(location, name, manifest.files[name], edition, headers or {}) for name in listed]
        for part, listed in names.items()
    }
    # another location, edition or type of a column is another copy in the library's cache
    hashes = [f"{file.name} {file.entry.sha256}" for part in files.values() for file in part]
    key = hashlib.sha256("\n".join([str(location), str(features), *hashes]).encode()).hexdigest()[:16]
    builder = ManifestBuilder(
        cache_dir=cache_dir,
        dataset_name=DEFAULT_NAME,
        config_name=config,
        config_id=f"{config}-{key}",
        files=files,
        schema=schema,
        features=features,
    )
    if streaming:
        if preparing.get("num_proc") is not None:
            raise ValueError("num_proc is not for streaming: let a torch DataLoader have several workers")
        return builder.as_streaming_dataset(split=split)
    try:
        builder.download_and_prepare(**preparing)
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, ValueError | OSError):
            raise error.__cause__ from None
        raise
    return builder.as_dataset(split=split, in_memory=bool(keep_in_memory))


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


def _fetch_manifest(address: str, headers: Mapping[str, str]) -> Manifest:
    where = f"{address}/{MANIFEST_FILE}"
    try:
        return Manifest.parse(fetch_small(where, MAX_MANIFEST_BYTES, headers), where)
    except ConnectionError as error:
        raise FileNotFoundError(str(error)) from error
