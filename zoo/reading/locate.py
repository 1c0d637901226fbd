"""Finding a zoo by name from any folder: a path, ``$SMALL_TRANSFORMER_ZOO``, the sample in this repository, the hub."""

import os
from pathlib import Path

from zoo.format.manifest import MANIFEST_FILE
from zoo.reading.hub import HUB_NAME, download

DEFAULT_NAME = "small-transformer-zoo"
VARIABLE = "SMALL_TRANSFORMER_ZOO"
BUNDLED = Path(__file__).parent.parent.parent / DEFAULT_NAME


def is_url(name: str) -> bool:
    return name.startswith(("http://", "https://"))


def resolve(name: str | Path) -> str | Path:
    """A folder, a web address or a name on the hub, whichever ``name`` means here. Nothing is fetched.

    A folder of that name comes first. The default name ``small-transformer-zoo`` may also stand for what the variable
    says (a folder, an address or OWNER/NAME) and for the sample that comes with a clone of this repository.
    """
    text = str(name)
    if is_url(text):
        return text.rstrip("/")
    path = Path(os.path.expanduser(name))  # ~NAME stays as it is if there is no such user
    if (path / MANIFEST_FILE).is_file():
        return path.resolve()
    if path.is_dir() and any(path.iterdir()):
        raise FileNotFoundError(f"{path} is not a zoo (no {MANIFEST_FILE}): make one with `python -m zoo.publish`")
    if text == DEFAULT_NAME:
        if variable := os.environ.get(VARIABLE):
            if variable == DEFAULT_NAME:
                raise ValueError(f"${VARIABLE} is {variable!r}, which is not a folder here: give it a whole path")
            return resolve(variable)
        if (BUNDLED / MANIFEST_FILE).is_file():
            return BUNDLED
    if isinstance(name, str) and HUB_NAME.fullmatch(name) and not path.parent.is_dir():
        return name
    raise FileNotFoundError(
        f"no zoo called {text!r}: give the folder of one, set ${VARIABLE}, or name one on the hub as OWNER/NAME"
    )


def find_folder(name: str | Path, config: str | None = None) -> Path:
    """The zoo as a folder on this machine; from the hub the wanted config is downloaded."""
    place = resolve(name)
    if isinstance(place, Path):
        return place
    if is_url(place):
        raise ValueError(f"{place} is not a folder: an address is read with zoo.load_dataset(..., streaming=True)")
    return download(place, config)
