"""``datasets.load_dataset`` for the zoo, from any folder and from any web server that serves a published one."""

from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from zoo.layout import configs_of, split_files
from zoo.locate import DEFAULT_NAME, is_url, resolve
from zoo.manifest import MANIFEST_FILE, Manifest
from zoo.splits import SPLITS

TIMEOUT_SECONDS = 30


def load_dataset(path: str | Path = DEFAULT_NAME, name: str | None = None, **arguments: Any) -> Any:
    """``datasets.load_dataset`` with the same arguments, after finding the zoo that ``path`` names.

    ``path`` may be a folder, the address of one on a web server, OWNER/NAME on the hub, or the default name, which also
    finds ``$SMALL_TRANSFORMER_ZOO`` and the sample beside this package.
    """
    import datasets

    place = resolve(path)
    if isinstance(place, str) and is_url(place):
        # a web server lists no folder, so the patterns of the card cannot be expanded: the manifest has the names
        return datasets.load_dataset("arrow", data_files=served_files(place, name), **arguments)
    return datasets.load_dataset(str(place), name, **arguments)


def served_files(address: str, config: str | None) -> dict[str, list[str]]:
    """The addresses of a served zoo's files by split."""
    where = f"{address}/{MANIFEST_FILE}"
    try:
        with urlopen(where, timeout=TIMEOUT_SECONDS) as answer:
            manifest = Manifest.parse(answer.read(), where)
    except URLError as error:
        raise FileNotFoundError(f"{where} does not answer: {error.reason}") from error
    configs = configs_of(manifest, address)
    if config not in configs:
        raise ValueError(f"{address} has no config {config!r}: it has {', '.join(configs)}")
    return {split: [f"{address}/{file}" for file in split_files(manifest, config, split)] for split in SPLITS}
