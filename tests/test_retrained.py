"""The comparison of shards that were trained again: it finds one changed number among them."""

from pathlib import Path

import numpy as np
import pytest

from tests import retrained
from tests.faults.rewriting import Rows, rewrite
from zoo.format.schema import WEIGHTS
from zoo.format.shard import CHECKPOINTS_FILE, RUNS_FILE, Shard
from zoo.publish import publish
from zoo.testing import TINY_MNIST, fabricate_shard


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=12, diverged=1)
    publish(tmp_path / "runs", tmp_path / "zoo", first=3)
    monkeypatch.setattr(retrained, "SAMPLE", tmp_path / "zoo")
    publish(tmp_path / "runs", tmp_path / "curves")
    monkeypatch.setattr(retrained, "CURVES", tmp_path / "curves")
    return tmp_path / "runs"


def change(folder: Path, column: str) -> None:
    """The last bit of one number of the first row."""

    def next_number(rows: Rows) -> None:
        rows[0][column][0] = float(np.nextafter(np.float32(rows[0][column][0]), np.float32(9)))

    rewrite(folder, CHECKPOINTS_FILE if column == WEIGHTS else RUNS_FILE, next_number)


def test_the_same_shard_is_the_same_here_and_by_its_digests(runs: Path, tmp_path: Path, capsys) -> None:
    retrained.main([str(runs)])
    said = capsys.readouterr().out
    assert "mnist: 12 runs were published, 12 of them are the same" in said
    assert "mnist: 12 checkpoints were published, 12 of them are the same" in said, "three runs, four each"
    digests = str(tmp_path / "digests.json")
    retrained.main(["--digests", digests])
    capsys.readouterr()
    retrained.main([str(runs), "--digests", digests])
    assert capsys.readouterr().out == said


@pytest.mark.parametrize(("column", "what"), [("test_loss", "12 runs"), (WEIGHTS, "12 checkpoints")])
def test_one_changed_number_is_found(column: str, what: str, runs: Path, capsys) -> None:
    folder = runs / "mnist" / "shard-00000"
    first = Shard.read(folder).runs().column("run_id")[0].as_py()
    change(folder, column)
    with pytest.raises(SystemExit) as ended:
        retrained.main([str(runs)])
    assert ended.value.code == 1
    said = capsys.readouterr().out
    assert f"mnist: {what} were published, 11 of them are the same" in said
    assert f"differs: mnist {first}" in said
    assert said.count("differs: ") == 1


def test_shards_of_which_nothing_was_published_are_not_called_the_same(runs: Path, tmp_path: Path) -> None:
    fabricate_shard(tmp_path / "other", TINY_MNIST, shard=1)
    with pytest.raises(SystemExit) as ended:
        retrained.main([str(tmp_path / "other")])
    assert ended.value.code == 1
