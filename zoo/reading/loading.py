"""``datasets.load_dataset`` for the zoo, from any folder and from any web server that serves a published one."""

import time
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from zoo.format.manifest import MANIFEST_FILE, Manifest
from zoo.format.published import PublishedZoo, configs_of, split_files
from zoo.format.splits import SPLITS
from zoo.reading.locate import DEFAULT_NAME, is_url, resolve
from zoo.storage.json_text import MAX_BYTES

TIMEOUT_SECONDS = 30
ATTEMPTS = 3
PAUSE_SECONDS = 1.0


def load_dataset(path: str | Path = DEFAULT_NAME, name: str | None = None, **arguments: Any) -> Any:
    """``datasets.load_dataset`` with the same arguments, after finding the zoo that ``path`` names.

    ``path`` may be a folder, the address of one on a web server, OWNER/NAME on the hub, or the default name, which also
    finds ``$SMALL_TRANSFORMER_ZOO`` and the sample beside this package. Rows that are missing are an error, never a
    shorter dataset.
    """
    import datasets

    place = resolve(path)
    if isinstance(place, str) and is_url(place):
        return load_served(place, name, **arguments)
    if isinstance(place, Path):
        check_sizes(place, name)
    return datasets.load_dataset(str(place), name, **arguments)


def check_sizes(folder: Path, config: str | None) -> None:
    """Looks whether the files of a config have their recorded sizes; ``datasets`` would read a cut one as shorter."""
    manifest = PublishedZoo.read(folder).manifest
    for name in manifest.files:
        if config is None or name.startswith(f"{config.removesuffix('-runs')}/"):
            manifest.check_size(folder, name)


def load_served(address: str, config: str | None, *, split: Any = None, streaming: bool = False, **rest: Any) -> Any:
    """A zoo on a web server, which lists no folder: the names of the files come from the manifest."""
    import datasets

    manifest = fetch_manifest(address)
    configs = configs_of(manifest, address)
    if config not in configs:
        raise ValueError(f"{address} has no config {config!r}: it has {', '.join(configs)}")
    if streaming:
        from zoo.reading.served import stream_served

        return stream_served(address, config, configs[config], manifest, split, **rest)
    files = {part: [f"{address}/{file}" for file in split_files(manifest, config, part)] for part in SPLITS}
    loaded = datasets.load_dataset("arrow", data_files=files, split=split, **rest)
    whole = {split: loaded} if split in SPLITS else loaded if split is None else {}
    for name, part in whole.items():
        if part.num_rows != (promised := configs[config].rows[name]):
            raise ValueError(
                f"{address}: {name} came with {part.num_rows:,} of {promised:,} rows; "
                "load it again with download_mode='force_redownload'"
            )
    return loaded


def fetch_manifest(address: str) -> Manifest:
    """The manifest of a served zoo; a connection that drops is tried again."""
    where = f"{address}/{MANIFEST_FILE}"
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with urlopen(where, timeout=TIMEOUT_SECONDS) as answer:
                data = answer.read(MAX_BYTES)
                if answer.length:
                    raise OSError(f"it broke off after {len(data):,} bytes")
                return Manifest.parse(data, where)
        except HTTPError as error:
            raise FileNotFoundError(f"{where} does not answer: {error.reason}") from error
        except (HTTPException, OSError) as error:
            if attempt == ATTEMPTS:
                reason = error.reason if isinstance(error, URLError) else error
                raise FileNotFoundError(f"{where} does not answer: {reason}") from error
            time.sleep(PAUSE_SECONDS)
    raise AssertionError
