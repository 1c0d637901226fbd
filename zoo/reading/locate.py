"""Finding a zoo by name, from any folder: a path, ``$SMALL_TRANSFORMER_ZOO``, the bundled sample, the Hugging Face hub.

Also the folders of downloaded data and of files that can be made again, in the user's cache.
"""

import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from zoo.command import DEFAULT_NAME
from zoo.format.manifest import MANIFEST_FILE, Manifest
from zoo.format.published import PREDICTORS_FOLDER, configs_of
from zoo.format.record import task_of
from zoo.tasks.embedding import EMBEDDING_FILES

LOGIN = "run `hf auth login`, or set HF_TOKEN to a token of https://huggingface.co/settings/tokens"
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_VARIABLE = "SMALL_TRANSFORMER_ZOO"
_CACHE_VARIABLE, _DATA_VARIABLE = "SMALL_TRANSFORMER_ZOO_CACHE", "SMALL_TRANSFORMER_ZOO_DATA"
_BUNDLED = Path(__file__).parent.parent.parent / DEFAULT_NAME
_CHANGED_MEANWHILE = 412
_USUAL_CONFIGS = ("mnist",)


def cache_folder() -> Path:
    """``$SMALL_TRANSFORMER_ZOO_CACHE``, else ``small-transformer-zoo`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    if named := os.environ.get(_CACHE_VARIABLE):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / DEFAULT_NAME


def data_folder() -> Path:
    """The folder of task data where none is named: ``$SMALL_TRANSFORMER_ZOO_DATA``, else in the cache."""
    return Path(os.environ.get(_DATA_VARIABLE) or cache_folder() / "data")


def is_url(name: str) -> bool:
    return name.startswith(("http://", "https://"))


def resolve(name: str | Path) -> str | Path:
    """A folder, a web address or a name on the hub, whichever ``name`` means here. Nothing is fetched.

    A folder of that name comes first. The default name ``small-transformer-zoo`` may also stand for the content of the
    variable (a folder, an address or OWNER/NAME) and for the sample that comes with a clone of this repository.
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
        if variable := os.environ.get(_VARIABLE):
            if variable == DEFAULT_NAME:
                raise ValueError(f"${_VARIABLE} is {variable!r}, which is not a folder here: give it a whole path")
            return resolve(variable)
        if (_BUNDLED / MANIFEST_FILE).is_file():
            return _BUNDLED
    if isinstance(name, str) and HUB_NAME.fullmatch(name) and not path.parent.is_dir():
        return name
    raise FileNotFoundError(
        f"no zoo called {text!r}: give the folder of one, set ${_VARIABLE}, or name one on the hub as OWNER/NAME"
    )


def find_folder(name: str | Path, config: str | None = None, *, only_manifest: bool = False) -> Path:
    """The zoo as a folder on this machine; from the hub the wanted config is downloaded, or the manifest alone."""
    found = resolve(name)
    if isinstance(found, Path):
        return found
    if is_url(found):
        raise ValueError(f"{found} is not a folder: an address is read with zoo.load_dataset(..., streaming=True)")
    return download(found, config, only_manifest=only_manifest)


def choose_configs(
    name: str | Path, configs: tuple[str, ...] | None = None, usual: tuple[str, ...] = _USUAL_CONFIGS
) -> tuple[str, ...]:
    """The configs that were named, else the zoo's only one, else the usual ones. Only the manifest is read."""
    if configs:
        return configs
    folder = find_folder(name, only_manifest=True)
    return default_configs(configs_of(Manifest.read(folder), name), name, usual)


def default_configs(configs: Collection[str], name: str | Path, usual: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The only config, else the usual ones where there are any; an error that lists the choices where there are not."""
    if len(configs) == 1:
        return tuple(configs)
    if usual and set(usual) <= set(configs):
        return usual
    raise ValueError(f"{name} has {len(configs)} configs: name one of {', '.join(configs)}")


def hub_address(name: str, revision: str | None = None, token: bool | str | None = None) -> tuple[str, dict[str, str]]:
    """The address of the newest commit of a repository (or of this revision), and the headers to request it with."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.utils import build_hf_headers

    with hub_answering(f"{name} could not be read from the hub"):
        commit = HfApi().dataset_info(name, revision=revision, token=token).sha
    return f"{constants.ENDPOINT}/datasets/{name}/resolve/{commit}", build_hf_headers(token=token)


def download(
    name: str,
    config: str | None = None,
    revision: str | None = None,
    token: bool | str | None = None,
    *,
    only_manifest: bool = False,
) -> Path:
    """The folder in the hub's own cache that holds this config (or the whole zoo), fetched where it is absent.

    Its files are hashed, once per process.
    """
    from huggingface_hub import snapshot_download

    wanted = [MANIFEST_FILE] if only_manifest else None
    if config is not None:
        # the frozen embedding lies with its task: agnews-seeds needs agnews/vocabulary.json
        task = task_of(config)
        wanted = [MANIFEST_FILE, f"{config}/*", *(f"{task}/{file}" for file in EMBEDDING_FILES)]
    with hub_answering(f"{name} could not be read from the hub, and is not in its cache here"):
        folder = snapshot_download(
            name,
            repo_type="dataset",
            allow_patterns=wanted,
            ignore_patterns=f"{PREDICTORS_FOLDER}/*",
            revision=revision,
            token=token,
        )
    _check_hashes(Path(folder), tuple(wanted or "*"))
    return Path(folder)


@cache
def _check_hashes(folder: Path, wanted: tuple[str, ...]) -> None:
    """Raises a ValueError that names the first of the wanted files that is there and damaged."""
    manifest = Manifest.read(folder)
    for name in manifest.files:
        if any(fnmatch(name, pattern) for pattern in wanted) and (folder / name).is_file():
            manifest.check_file(folder, name)


@contextmanager
def hub_answering(failure: str) -> Iterator[None]:
    """Reports in one line what failed and what to do about it, whatever the hub's client raises."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403, 404):
            raise ValueError(
                f"{failure}: it does not exist, or your token may not use it (HTTP {status}): {LOGIN}"
            ) from error
        if status == _CHANGED_MEANWHILE:
            raise OSError(f"{failure}: somebody else changed it meanwhile, try again") from error
        raise OSError(f"{failure}: the hub answered with HTTP {status}, try again later") from error
    except ValueError as error:
        raise ValueError(f"{failure}: {error}") from error
    # its transport has changed twice, and each raises its own types where there is no connection
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ConnectionError):
            raise  # a full disk, say
        reason = type(error.__cause__ or error).__name__
        raise OSError(f"{failure}: no connection to the hub ({reason}), try again with a network") from error
