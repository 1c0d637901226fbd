"""Pushing a zoo with ``huggingface_hub`` itself to a stand-in of the hub: whole, resumable, private, no byte twice."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub.utils import disable_progress_bars, enable_progress_bars

import nfn
import zoo
from nfn.predictors.conformal import ConformalInterval
from nfn.predictors.storage import save_pretrained
from tests.fabricated import TINY_AGNEWS, TINY_MNIST, fabricate_embedding, fabricate_shard, folder_contents
from tests.hub_server import TOKEN, Hub, Repository, serving
from zoo import publish, verify
from zoo.format.manifest import MANIFEST_FILE, Manifest
from zoo.format.published import split_files

# huggingface_hub calls its HTTP library in a way that this deprecates
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
NAME = "owner/zoo"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with serving() as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
        template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.chdir(tmp_path)
        disable_progress_bars()
        yield server
        enable_progress_bars()


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=40)
    return tmp_path / "runs"


def push(runs: Path, *options: str) -> Path:
    """Publishes and pushes by the command; the folder that was published."""
    out = runs.parent / "out"
    publish.main([str(runs), str(out), "--push-to-hub", NAME, *options])
    return out


def refusal(runs: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    with pytest.raises(SystemExit) as ended:
        push(runs, *options)
    assert ended.value.code == 2
    errors = capsys.readouterr().err
    assert errors.count("error: ") == 1
    return errors.splitlines()[-1]


def large(folder: Path) -> set[str]:
    paths = [*folder.rglob("*.arrow"), *folder.rglob("*.safetensors")]
    return {hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def test_a_push_is_one_commit_of_exactly_the_published_files(hub: Hub, runs: Path, capsys) -> None:
    out = push(runs)
    repository = hub.repositories[NAME]
    assert [commit.summary for commit in repository.commits] == ["initial commit", "Publish mnist"]
    assert repository.head.files.keys() - {".gitattributes"} == folder_contents(out).keys()
    for name, data in folder_contents(out).items():
        assert repository.head.files[name] == data
    assert sorted(hub.uploads) == sorted(large(out)), "each large file was sent once"
    assert any(request.endswith("/complete") for request in hub.requests), "some of them in parts"
    assert not repository.private
    assert f"{hub.url}/datasets/{NAME}/commit/{repository.head.oid}" in capsys.readouterr().out


def test_what_was_pushed_is_read_back_through_the_hub(hub: Hub, runs: Path, capsys) -> None:
    out = push(runs)
    there, here = zoo.open(NAME, "mnist", split="train"), zoo.open(out, "mnist", split="train")
    assert there.weights(slice(None)).equal(here.weights(slice(None)))
    verify.main([NAME])
    assert "not listed" not in capsys.readouterr().err


def test_the_viewer_finds_every_split_by_the_card(hub: Hub, runs: Path) -> None:
    out = push(runs)
    files = hub.repositories[NAME].head.files
    header = yaml.safe_load(files["README.md"].decode().split("---\n")[1])
    configs = {config["config_name"]: config["data_files"] for config in header["configs"]}
    assert configs.keys() == {"mnist", "mnist-runs"}
    for entry in configs["mnist"]:
        matched = sorted(path for path in files if Path(path).match(entry["path"]))
        assert matched == split_files(Manifest.read(out), "mnist", entry["split"])


def test_a_push_after_a_dropped_connection_sends_only_what_is_missing(hub: Hub, runs: Path, capsys) -> None:
    hub.hang_up_after = 2
    line = refusal(runs, capsys)
    assert "is published, but could not be pushed to owner/zoo: no connection to the hub" in line
    assert len(hub.repositories[NAME].commits) == 1, "nothing of it is to be seen"
    arrived = list(hub.uploads)
    assert len(arrived) == 2
    hub.hang_up_after = None
    out = push(runs)
    assert len(hub.uploads) == len(set(hub.uploads)), "none was sent twice"
    assert set(hub.uploads) == large(out) > set(arrived)
    assert len(hub.repositories[NAME].commits) == 2


@pytest.mark.long
def test_a_second_push_sends_only_what_changed_and_removes_what_is_gone(hub: Hub, runs: Path) -> None:
    out = push(runs)
    sent, before = len(hub.uploads), folder_contents(out)
    fabricate_shard(runs, TINY_AGNEWS, count=20, embedding=fabricate_embedding(TINY_AGNEWS))
    push(runs)
    repository = hub.repositories[NAME]
    after = folder_contents(out)
    changed = {name for name, data in after.items() if before.get(name) != data}
    assert repository.head.changed == changed
    assert changed & {MANIFEST_FILE, "README.md"} == {MANIFEST_FILE, "README.md"}
    assert not any(name.startswith("mnist/") for name in changed)
    changed_large = [name for name in changed if Path(name).suffix in (".arrow", ".safetensors")]
    assert {hashlib.sha256(after[name]).hexdigest() for name in changed_large} == set(hub.uploads[sent:])
    push(runs)
    assert len(repository.commits) == 3, "the same zoo again is not a commit"
    publish.main([str(runs), str(out), "--checkpoints", "best", "--push-to-hub", NAME])
    assert repository.head.removed == after.keys() - folder_contents(out).keys()
    assert ".gitattributes" in repository.head.files


def test_a_repository_that_somebody_changed_meanwhile_is_left_alone(hub: Hub, runs: Path, capsys) -> None:
    hub.before_commit = lambda repository: repository.add("by somebody else", {"notes.txt": b"!"}, set())
    assert "somebody else changed it meanwhile, try again" in refusal(runs, capsys)
    assert hub.repositories[NAME].head.summary == "by somebody else"


def test_a_repository_made_on_the_website_is_filled(hub: Hub, runs: Path) -> None:
    repository = hub.repositories[NAME] = Repository(private=False)
    repository.add("initial commit", {".gitattributes": b"", "README.md": b"---\n---\n", "LICENSE": b"MIT"}, set())
    out = push(runs)
    assert not repository.head.removed
    assert repository.head.files == folder_contents(out) | {".gitattributes": b"", "LICENSE": b"MIT"}


@pytest.mark.parametrize(
    ("file", "message"),
    [("train.csv", "it holds train.csv and is not a zoo"), (MANIFEST_FILE, "owner/zoo/manifest.json is damaged")],
)
def test_a_repository_of_something_else_is_left_alone(hub: Hub, runs: Path, file: str, message: str, capsys) -> None:
    repository = hub.repositories[NAME] = Repository(private=False)
    repository.add("years of work", {".gitattributes": b"", file: b"{}"}, set())
    assert f"could not be pushed to owner/zoo: {message}" in refusal(runs, capsys)
    assert len(repository.commits) == 1


def test_a_later_push_removes_predictors_and_keeps_what_is_not_of_the_zoo(hub: Hub, runs: Path) -> None:
    push(runs)
    others = {"LICENSE": b"MIT", "mnist/figure.png": b"!"}
    hub.repositories[NAME].add("by hand", others | {"predictors/mnist.toml": b""}, set())
    fabricate_shard(runs, TINY_AGNEWS, count=20, embedding=fabricate_embedding(TINY_AGNEWS))
    out = push(runs)
    assert hub.repositories[NAME].head.removed == {"predictors/mnist.toml"}
    assert hub.repositories[NAME].head.files.keys() - {".gitattributes"} == folder_contents(out).keys() | others.keys()


def test_a_private_repository_is_private_and_not_for_strangers(hub: Hub, runs: Path, monkeypatch, capsys) -> None:
    push(runs, "--private")
    assert hub.repositories[NAME].private
    monkeypatch.setenv("HF_TOKEN", "hf_of_a_stranger")
    assert "it does not exist, or your token may not use it (HTTP 401)" in refusal(runs, capsys)
    with pytest.raises(ValueError, match="your token may not use it"):
        zoo.open(NAME, "mnist")


def test_predictors_that_read_these_transformers_lie_beside_the_zoo(hub: Hub, runs: Path, tmp_path: Path, capsys):
    fitted = tmp_path / "fitted"
    predictor, interval = nfn.StatNN(TINY_MNIST), ConformalInterval(torch.empty(0), torch.tensor([0.1]))
    for name in ("mnist", "agnews"):
        save_pretrained(predictor, interval, fitted / f"{name}.safetensors")
        (fitted / f"{name}.toml").write_text(f'name = "{name}"\n')
    push(runs, "--predictors", str(fitted))
    files = hub.repositories[NAME].head.files
    beside = {name for name in files if name.startswith("predictors/")}
    assert beside == {"predictors/mnist.safetensors", "predictors/mnist.toml"}
    assert files["predictors/mnist.safetensors"] == (fitted / "mnist.safetensors").read_bytes()
    verify.main([NAME])
    others = ROOT / "nfn" / "pretrained"  # of transformers with other dimensions
    assert "holds no fitted predictor for mnist" in refusal(runs, capsys, "--predictors", str(others))


def test_predictors_need_a_repository(runs: Path, tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit):
        publish.main([str(runs), str(tmp_path / "out"), "--predictors", str(tmp_path)])
    assert "--predictors is about a repository on the hub" in capsys.readouterr().err


LOAD = """
import datasets, sys
rows = datasets.load_dataset(sys.argv[1], "mnist")
print({split: part.num_rows for split, part in rows.items()})
"""


@pytest.mark.long
def test_datasets_itself_reads_the_pushed_zoo_by_its_card(hub: Hub, runs: Path, tmp_path: Path) -> None:
    """Each command in a process of its own, with nothing but environment variables."""
    settings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}

    def python(*words: str) -> str:
        environment = os.environ | settings | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    python("-m", "zoo.publish", "runs", "out", "--push-to-hub", NAME)
    counts = {split: len(zoo.open("out", "mnist", split=split)) for split in ("train", "validation", "test")}
    assert python("-c", LOAD, NAME).strip() == str(counts)


def test_without_a_config_only_what_is_wanted_is_downloaded(hub: Hub, runs: Path, tmp_path: Path) -> None:
    def downloaded() -> set[str]:
        return (
            {path.relative_to(next(cache.iterdir())).parts[0] for path in cache.glob("*/*")}
            if cache.exists()
            else set()
        )

    cache = tmp_path / "cache" / "datasets--owner--zoo" / "snapshots"
    fabricate_shard(runs, TINY_MNIST, count=8, seeds="distinct")
    fabricate_shard(runs, TINY_AGNEWS, count=8, embedding=fabricate_embedding(TINY_AGNEWS))
    push(runs)
    with pytest.raises(ValueError, match="owner/zoo has 3 configs: name one of agnews, mnist, mnist-seeds"):
        zoo.load_dataset(NAME)
    assert downloaded() == {"manifest.json"}
    assert zoo.open(NAME).config == "mnist"
    assert downloaded() == {"manifest.json", "mnist"}
