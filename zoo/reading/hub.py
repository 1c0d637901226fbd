"""The Hugging Face hub: uploading a published zoo, downloading one config of it."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from zoo.format.manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES, Manifest
from zoo.format.published import CARD_FILE, EMBEDDING_FILES, PREDICTORS_FOLDER, PublishedZoo, configs_of
from zoo.format.record import task_of
from zoo.storage.untrusted import read_bounded

FILES_OF_A_NEW_REPOSITORY = frozenset({".gitattributes", CARD_FILE, "LICENSE"})
"""What a repository may have from the start, when it is made on the hub's website."""
CHANGED_MEANWHILE = 412
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
LOGIN = "run `hf auth login`, or set HF_TOKEN to a token of https://huggingface.co/settings/tokens"


def check_login(name: str) -> None:
    """What can be known of a push before any work is done for it: that it names a repository and there is a token."""
    from huggingface_hub import get_token

    if not HUB_NAME.fullmatch(name):
        raise ValueError(f"{name!r} names no repository: it should be OWNER/NAME")
    if get_token() is None:
        raise ValueError(f"pushing to {name} needs a login: {LOGIN}")


def push(folder: Path, name: str, *, private: bool = False, beside: Mapping[str, Path] | None = None) -> str:
    """Uploads the zoo as one commit, and returns its address; a repository that is not there yet is made.

    ``beside`` are more files by their name in the repository. Resumable: files that an interrupted upload brought over
    are not sent again, and files that did not change are not part of the commit. Files of an older edition are removed
    in the same commit, and a repository that somebody changed meanwhile is left alone, so that the repository, too, is
    the old zoo or the new one. Other files beside a zoo are kept; a repository that has some and no zoo is refused.
    (``upload_folder`` would be shorter, but makes several commits of a large folder.)
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    check_login(name)
    zoo = PublishedZoo.read(folder)
    files = {file: folder / file for file in (*zoo.manifest.files, MANIFEST_FILE)} | dict(beside or {})
    api = HfApi()
    with hub_answering(f"{folder} is published, but could not be pushed to {name}"):
        api.create_repo(name, repo_type="dataset", exist_ok=True, private=private)
        before = api.dataset_info(name)
        there = {sibling.rfilename for sibling in before.siblings or []}
        removed = sorted(files_of_older_zoo(name, before.sha, there) - files.keys())
        commit = api.create_commit(
            repo_id=name,
            repo_type="dataset",
            operations=[
                *(CommitOperationDelete(path_in_repo=file) for file in removed),
                *(CommitOperationAdd(path_in_repo=file, path_or_fileobj=path) for file, path in files.items()),
            ],
            commit_message=f"Publish {', '.join(zoo.configs)}",
            parent_commit=before.sha,
        )
    return str(commit)


def files_of_older_zoo(name: str, revision: str | None, there: set[str]) -> set[str]:
    """Those files of a repository that its zoo's manifest lists, and the predictors beside it.

    None where it is as good as new; one with other files and no zoo is an error.
    """
    from huggingface_hub import hf_hub_download

    if MANIFEST_FILE not in there:
        for file in sorted(there - FILES_OF_A_NEW_REPOSITORY):
            raise ValueError(f"it holds {file} and is not a zoo (no {MANIFEST_FILE}): name another repository")
        return set()
    path = hf_hub_download(name, MANIFEST_FILE, repo_type="dataset", revision=revision)
    manifest = Manifest.parse(read_bounded(Path(path), MAX_MANIFEST_BYTES), f"{name}/{MANIFEST_FILE}")
    configs_of(manifest, name)
    return {file for file in there if file in manifest.files or file.startswith(f"{PREDICTORS_FOLDER}/")}


def address(name: str, revision: str | None = None, token: bool | str | None = None) -> tuple[str, dict[str, str]]:
    """Where the newest commit of a repository (or this revision) is served, and the headers that ask for it."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.utils import build_hf_headers

    with hub_answering(f"{name} could not be read from the hub"):
        commit = HfApi().dataset_info(name, revision=revision, token=token).sha
    return f"{constants.ENDPOINT}/datasets/{name}/resolve/{commit}", build_hf_headers(token=token)


def download(
    name: str, config: str | None = None, revision: str | None = None, token: bool | str | None = None
) -> Path:
    """The folder in the hub's own cache that holds this config (or the whole zoo), fetched where it is absent."""
    from huggingface_hub import snapshot_download

    wanted = None
    if config is not None:
        # the frozen embedding lies with its task: agnews-seeds needs agnews/vocabulary.json
        task = task_of(config)
        wanted = [MANIFEST_FILE, f"{config}/*", *(f"{task}/{file}" for file in EMBEDDING_FILES)]
    beside = f"{PREDICTORS_FOLDER}/*"
    with hub_answering(f"{name} could not be read from the hub, and is not in its cache here"):
        return Path(
            snapshot_download(
                name,
                repo_type="dataset",
                allow_patterns=wanted,
                ignore_patterns=beside,
                revision=revision,
                token=token,
            )
        )


@contextmanager
def hub_answering(failure: str) -> Iterator[None]:
    """Says in one line what failed and what to do about it, whatever the hub's client raises."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403, 404):
            raise ValueError(
                f"{failure}: it does not exist, or your token may not use it (HTTP {status}): {LOGIN}"
            ) from error
        if status == CHANGED_MEANWHILE:
            raise OSError(f"{failure}: somebody else changed it meanwhile, try again") from error
        raise OSError(f"{failure}: the hub answered with HTTP {status}, try again later") from error
    except ValueError as error:
        raise ValueError(f"{failure}: {error}") from error
    # its transport has changed twice, and each raises types of its own for one fact, that there is no connection
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ConnectionError):
            raise  # a full disk, say
        reason = type(error.__cause__ or error).__name__
        raise OSError(f"{failure}: no connection to the hub ({reason}), try again with a network") from error
