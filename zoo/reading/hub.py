"""The Hugging Face hub: uploading a published zoo, downloading one config of it."""

import re
from pathlib import Path

from zoo.format.manifest import MANIFEST_FILE
from zoo.format.published import PublishedZoo
from zoo.format.record import task_of

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def push(folder: Path, name: str) -> str:
    """Uploads the zoo as one commit, and returns its address.

    Resumable: files that an interrupted upload brought over are not sent again. Files of an older edition are removed
    in the same commit, so that the repository, too, is the old zoo or the new one.
    """
    from huggingface_hub import HfApi

    if not HUB_NAME.fullmatch(name):
        raise ValueError(f"{name!r} names no repository: it should be OWNER/NAME")
    zoo = PublishedZoo.read(folder)
    api = HfApi()
    api.create_repo(name, repo_type="dataset", exist_ok=True)
    commit = api.upload_folder(
        repo_id=name,
        repo_type="dataset",
        folder_path=folder,
        allow_patterns=[MANIFEST_FILE, *zoo.manifest.files],
        delete_patterns="*",
        commit_message=f"Publish {', '.join(zoo.configs)}",
    )
    return str(commit)


def address(name: str, revision: str | None = None, token: bool | str | None = None) -> tuple[str, dict[str, str]]:
    """Where the newest commit of a repository (or this revision) is served, and the headers that ask for it."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.utils import build_hf_headers

    commit = HfApi().dataset_info(name, revision=revision, token=token).sha
    return f"{constants.ENDPOINT}/datasets/{name}/resolve/{commit}", build_hf_headers(token=token)


def download(
    name: str, config: str | None = None, revision: str | None = None, token: bool | str | None = None
) -> Path:
    """The folder in the hub's own cache that holds this config (or the whole zoo), fetched where it is absent."""
    from huggingface_hub import snapshot_download

    if config is None:
        return Path(snapshot_download(name, repo_type="dataset", revision=revision, token=token))
    # the frozen embedding lies with its task: agnews-seeds needs agnews/vocabulary.json
    task = task_of(config)
    wanted = [MANIFEST_FILE, f"{config}/*", f"{task}/embedding.safetensors", f"{task}/vocabulary.json"]
    return Path(snapshot_download(name, repo_type="dataset", allow_patterns=wanted, revision=revision, token=token))
