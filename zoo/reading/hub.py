"""Uploading a published zoo to the Hugging Face hub, with fitted predictors (``benchmarks.pretrain``) beside it.

The format of predictors is that of ``nfn.load_pretrained``. Here they only need the name of a config and a header with
the dimensions of the transformers they read.
"""

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open

from zoo.format.manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES, Manifest
from zoo.format.published import CARD_FILE, PREDICTORS_FOLDER, PublishedZoo, configs_of
from zoo.reading.locate import HUB_NAME, LOGIN, hub_answering
from zoo.storage.untrusted import HeldFile, faults_named, parse_json, read_bounded

_FILES_OF_A_NEW_REPOSITORY = frozenset({".gitattributes", CARD_FILE, "LICENSE"})
"""Files that a repository may have from the start, when it is made on the hub's website."""
_PREDICTOR_SUFFIX, _PREDICTOR_CARD_SUFFIX = ".safetensors", ".toml"
_MAX_PREDICTOR_BYTES = 64 << 20


def check_login(name: str) -> None:
    """Checks before any work is done for a push that it names a repository and there is a token."""
    from huggingface_hub import get_token

    if not HUB_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a repository: it should be OWNER/NAME")
    if get_token() is None:
        raise ValueError(f"pushing to {name} needs a login: {LOGIN}")


def push(folder: Path, name: str, *, private: bool = False, beside: Mapping[str, Path] | None = None) -> str:
    """Uploads the zoo as one commit, and returns its address; a repository that is not there yet is made.

    ``beside`` are more files by their name in the repository. Resumable: files that an interrupted upload brought over
    are not sent again, and files that did not change are not part of the commit. Files of an older edition are removed
    in the same commit, and a repository that someone changed meanwhile is left alone, so that the repository
    is also the old zoo or the new one. Other files beside a zoo are kept; a repository that has some and no zoo is
    refused. (``upload_folder`` would be shorter, but makes several commits of a large folder.)
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
        removed = sorted(_files_of_older_zoo(name, before.sha, there) - files.keys())
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


def _files_of_older_zoo(name: str, revision: str | None, there: set[str]) -> set[str]:
    """The files of a repository that its zoo's manifest lists, and the predictors beside it.

    There are none where it is as good as new; one with other files and no zoo is an error.
    """
    from huggingface_hub import hf_hub_download

    if MANIFEST_FILE not in there:
        for file in sorted(there - _FILES_OF_A_NEW_REPOSITORY):
            raise ValueError(f"it holds {file} and is not a zoo (no {MANIFEST_FILE}): name another repository")
        return set()
    path = hf_hub_download(name, MANIFEST_FILE, repo_type="dataset", revision=revision)
    manifest = Manifest.parse(read_bounded(Path(path), MAX_MANIFEST_BYTES), f"{name}/{MANIFEST_FILE}")
    configs_of(manifest, name)
    return {file for file in there if file in manifest.files or file.startswith(f"{PREDICTORS_FOLDER}/")}


def fitted_predictors(folder: Path, zoo: PublishedZoo) -> dict[str, Path]:
    """Name in the repository → file, for each config of the zoo that a predictor with a card in the folder reads."""
    found: dict[str, Path] = {}
    for config, details in zoo.configs.items():
        path = folder / f"{config}{_PREDICTOR_SUFFIX}"
        card = path.with_suffix(_PREDICTOR_CARD_SUFFIX)
        if path.is_file() and card.is_file() and _spec_read_by(path) == details.spec.to_dict():
            found |= {f"{PREDICTORS_FOLDER}/{file.name}": file for file in (path, card)}
    if not found:
        raise ValueError(
            f"{folder} holds no fitted predictor for {', '.join(zoo.configs)}: files such as "
            f"{next(iter(zoo.configs))}{_PREDICTOR_SUFFIX} with a card, of transformers with these dimensions"
        )
    return found


def _spec_read_by(path: Path) -> object:
    """The dimensions of the transformers that a predictor reads, from its header; None where they are not there."""
    HeldFile(path).refuse_larger(_MAX_PREDICTOR_BYTES)
    with faults_named(f"{path} is damaged", SafetensorError), safe_open(path, framework="np") as file:
        header = file.metadata() or {}
    config = parse_json(header.get("config", "{}").encode(), f"the config of {path}")
    return config.get("spec") if isinstance(config, dict) else None
