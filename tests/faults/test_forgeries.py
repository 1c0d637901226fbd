"""False zoos whose hashes were made to fit: publish, join and verify all refuse them."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from generation.run import main as train
from tests.fabricated import TINY_MNIST, fabricate_shard, publish
from tests.faults.forgeries import FORGERIES, Forge, forge_shard
from tests.faults.rewriting import Rows, change_manifest
from tests.generation.small_tasks import write_lines
from zoo.format.shard import CHECKPOINTS_FILE
from zoo.join import _join
from zoo.reading.reader import open_zoo
from zoo.verify import _verify

RUNS = 24


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A shard for each policy of seeds, and one of language models."""
    root = tmp_path_factory.mktemp("sound")
    policies = ("shared", "distinct")
    shards = {seeds: fabricate_shard(root, TINY_MNIST, count=RUNS, diverged=1, seeds=seeds) for seeds in policies}
    train(["--task", str(write_lines(root)), "--shard", "0", "--device", "cpu", "--out", str(root)])
    return shards | {"language": root / "lines" / "shard-00000"}


def publish_unchecked(runs: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As a publisher would who took the rules out of the code."""
    with monkeypatch.context() as unchecked:
        unchecked.setattr("zoo.publish.config_faults", lambda *_, **__: iter(()))
        publish(runs, out)
    return out


@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
def test_a_forgery_is_refused_by_all(
    forge: Forge, sound: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds, fault = FORGERIES[forge]
    runs = forge_shard(sound[seeds], tmp_path / "runs", forge)
    zoo = publish_unchecked(runs, tmp_path / "zoo", monkeypatch)
    found = _verify(zoo)
    assert any(fault in line for line in found), found
    for refused in (lambda: publish(runs, tmp_path / "out"), lambda: _join([zoo], tmp_path / "out")):
        with pytest.raises(ValueError, match="row ") as refusal:
            refused()
        assert str(refusal.value).partition(": ")[2] in {line.partition(": ")[2] for line in found}
    assert not (tmp_path / "out").exists()


def test_what_is_not_forged_is_refused_by_none(sound: dict[str, Path], tmp_path: Path) -> None:
    """So each refusal is about the forgery, not about how it is made."""
    for folder in sound.values():
        forge_shard(folder, tmp_path / "runs", lambda *_: None)
    publish(tmp_path / "runs", tmp_path / "zoo")
    _join([tmp_path / "zoo"], tmp_path / "joined")
    assert _verify(tmp_path / "joined") == []


@pytest.mark.parametrize("characters", [None, " abcdefghi", " abcdefghijk", " abcdefghii", "abcdefghij "])
def test_characters_that_do_not_fit_are_refused(characters: str | None, sound: dict[str, Path], tmp_path: Path) -> None:
    """None, too few, too many, one twice, and not in the order of their code points."""
    message = "11 different characters are needed, in the order of their code points, got"
    with pytest.raises(ValueError, match=message):
        forge_shard(sound["language"], tmp_path, lambda _runs, _rows, details: details.update(characters=characters))
    publish(forge_shard(sound["language"], tmp_path / "runs", lambda *_: None), tmp_path / "zoo")
    change_manifest(tmp_path / "zoo", lambda all: all["details"]["configs"]["lines"].update(characters=characters))
    with pytest.raises(ValueError, match=message):
        _verify(tmp_path / "zoo")
    with pytest.raises(ValueError, match=message):
        open_zoo(tmp_path / "zoo", "lines")


def test_transformers_that_read_no_characters_have_none(sound: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="0 different characters are needed"):
        forge_shard(sound["shared"], tmp_path, lambda _runs, _rows, details: details.update(characters="abc"))


def test_weights_of_another_config_are_refused(
    sound: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mnist-seeds with weights of mnist: alone, nothing is wrong with either."""

    def copy_weights(runs: Rows, rows: Rows, details: dict[str, Any]) -> None:
        source = pa.ipc.open_stream((sound["shared"] / CHECKPOINTS_FILE).read_bytes()).read_all().to_pylist()
        for row, other in zip(rows, source, strict=True):
            if row["checkpoint"] == "epoch_50":
                row["weights"] = other["weights"]

    runs = forge_shard(sound["distinct"], tmp_path / "runs", copy_weights)
    publish(runs, tmp_path / "copied")
    publish(forge_shard(sound["shared"], tmp_path / "other", lambda *_: None), tmp_path / "source")
    forge_shard(sound["shared"], runs, lambda *_: None)
    zoo = publish_unchecked(runs, tmp_path / "zoo", monkeypatch)
    copied = "the weights are those of another run or epoch"
    assert [line.partition(": ")[2] for line in _verify(zoo)] == [copied]
    with pytest.raises(ValueError, match=copied):
        publish(runs, tmp_path / "out")
    with pytest.raises(ValueError, match=copied):
        _join([tmp_path / "source", tmp_path / "copied"], tmp_path / "out")
