"""``datasets.load_dataset`` for the zoo, from any folder and from any web server that serves a published one."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from zoo.format.manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES, Manifest, read_one_edition
from zoo.format.published import RUNS_FILE, PublishedZoo, configs_of, filled_splits, split_files
from zoo.format.schema import PUBLISHED_RUN_SCHEMA, checkpoint_schema
from zoo.reading.fetch import fetch_small
from zoo.reading.listed_file import ListedFile
from zoo.reading.locate import DEFAULT_NAME, is_url, resolve

RUNS_SUFFIX, RUNS_SPLIT = "-runs", "runs"
PREPARING = ("download_mode", "verification_mode", "num_proc")
ARGUMENTS = ("split", "streaming", "cache_dir", "features", "keep_in_memory", "revision", "token", *PREPARING)


def load_dataset(path: str | Path = DEFAULT_NAME, name: str | None = None, **arguments: Any) -> Any:
    """``datasets.load_dataset`` for the zoo that ``path`` names, with those of its arguments that are in ``ARGUMENTS``.

    ``path`` may be a folder, the address of one on a web server, OWNER/NAME on the hub, or the default name, which also
    finds ``$SMALL_TRANSFORMER_ZOO`` and the sample beside this package. ``name`` is a config, and may be left out where
    there is only one. The manifest alone says which files are read. Rows that are missing are an error, never a shorter
    dataset; so is a server that is too slow (see ``zoo.reading.fetch``).
    """
    if unknown := sorted(arguments.keys() - set(ARGUMENTS)):
        raise ValueError(f"{unknown[0]} is not for a zoo, whose files its manifest lists: give {', '.join(ARGUMENTS)}")
    revision, token = arguments.pop("revision", None), arguments.pop("token", None)
    place, headers = resolve(path), {}
    if isinstance(place, str) and not is_url(place):
        from zoo.reading import hub

        if arguments.get("streaming"):
            place, headers = hub.address(place, revision, token)
        else:
            place = hub.download(place, None if name is None else name.removesuffix(RUNS_SUFFIX), revision, token)
    if isinstance(place, str):
        return load(place, fetch_manifest(place, headers), name, headers=headers, **arguments)
    folder = place

    def load_folder(edition: str) -> Any:
        return load(folder, PublishedZoo.read(folder).manifest, name, edition=edition, **arguments)

    return read_one_edition(folder, load_folder)


def load(
    place: str | Path,
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

    from zoo.reading.manifest_builder import ManifestBuilder

    config = config or only_config(manifest, place)
    schema, names = config_files(manifest, config, place)
    files = {
        part: [ListedFile(place, name, manifest.files[name], edition, headers or {}) for name in listed]
        for part, listed in names.items()
    }
    builder = ManifestBuilder(
        cache_dir=cache_dir,
        dataset_name=DEFAULT_NAME,
        config_name=config,
        # what the library's cache is keyed by: an edition of one place
        config_id=cache_key(place, config, [file for part in files.values() for file in part], features),
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


def only_config(manifest: Manifest, place: str | Path) -> str:
    """The one to read where none is named."""
    configs = list(configs_of(manifest, place))
    if len(configs) != 1:
        raise ValueError(f"{place} has {len(configs)} configs: name one of {', '.join(configs)}")
    return configs[0]


def config_files(manifest: Manifest, config: str, place: str | Path) -> tuple[pa.Schema, dict[str, list[str]]]:
    """The schema and the files of each split; of a config's runs, ``CONFIG-runs``, the one file."""
    configs = configs_of(manifest, place)
    if (of_runs := config.removesuffix(RUNS_SUFFIX)) != config and of_runs in configs:
        if (name := f"{of_runs}/{RUNS_FILE}") not in manifest.files:
            raise ValueError(f"{place}/{MANIFEST_FILE} lists no {name}")
        return PUBLISHED_RUN_SCHEMA, {RUNS_SPLIT: [name]}
    if config not in configs:
        raise ValueError(f"{place} has no config {config!r}: it has {', '.join(configs)}, and each with {RUNS_SUFFIX}")
    names = {split: split_files(manifest, config, split) for split in filled_splits(configs[config])}
    for split, listed in names.items():
        rows = sum(manifest.files[name].rows or 0 for name in listed)
        if rows != (promised := configs[config].rows[split]):
            raise ValueError(f"{place}/{MANIFEST_FILE} is damaged: {rows:,} of {promised:,} rows of {config}/{split}")
    return checkpoint_schema(configs[config].spec), names


def cache_key(place: str | Path, config: str, files: list[ListedFile], features: Any) -> str:
    """The name of a config's copy in the library's cache: another place, edition or type of a column, another copy."""
    parts = [str(place), str(features), *(f"{file.name} {file.entry.sha256}" for file in files)]
    return f"{config}-{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:16]}"


def fetch_manifest(address: str, headers: Mapping[str, str]) -> Manifest:
    """The manifest of a served zoo."""
    where = f"{address}/{MANIFEST_FILE}"
    try:
        return Manifest.parse(fetch_small(where, MAX_MANIFEST_BYTES, headers), where)
    except ConnectionError as error:
        raise FileNotFoundError(str(error)) from error
