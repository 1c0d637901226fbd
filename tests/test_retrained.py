"""The comparison of shards that were trained again: it finds one changed number among them."""

from pathlib import Path

import numpy as np
import pytest

from tests import retrained
from tests.fabricated import TINY_MNIST, fabricate_shard, publish
from tests.faults.rewriting import Rows, rewrite
from zoo.format.schema import WEIGHTS
from zoo.format.shard import CHECKPOINTS_FILE, RUNS_FILE, Shard
from zoo.thin import main as thin


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=12, diverged=1)
    thin([str(tmp_path / "runs"), str(tmp_path / "thin"), "--runs", "3", "--whole", "3"])
    publish(tmp_path / "thin", tmp_path / "zoo")
    monkeypatch.setattr(retrained, "SAMPLE", tmp_path / "zoo")
    publish(tmp_path / "runs", tmp_path / "curves")
    monkeypatch.setattr(retrained, "CURVES", tmp_path / "curves")
    return tmp_path / "runs"


def change(folder: Path, file: str, column: str) -> None:
    """The last bit of a number of the first row, or of the first of its numbers."""

    def next_number(rows: Rows) -> None:
        row = rows[0]
        if isinstance(row[column], list):
            row[column][0] = after(row[column][0])
        else:
            row[column] = after(row[column])

    rewrite(folder, file, next_number)


def after(number: float) -> float:
    return float(np.nextafter(np.float32(number), np.float32(9)))


def test_the_same_shard_is_the_same_here_and_by_its_digests(runs: Path, tmp_path: Path, capsys) -> None:
    retrained.main([str(runs)])
    printed = capsys.readouterr().out
    assert "mnist: 12 runs were published, 12 of them are the same" in printed
    assert "mnist: 12 checkpoints were published, 12 of them are the same" in printed, "three runs, four each"
    digests = str(tmp_path / "digests.json")
    retrained.main(["--digests", digests])
    capsys.readouterr()
    retrained.main([str(runs), "--digests", digests])
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize(
    ("file", "column", "what"),
    [
        (RUNS_FILE, "test_loss", "12 runs"),
        (CHECKPOINTS_FILE, WEIGHTS, "12 checkpoints"),
        *((CHECKPOINTS_FILE, name, "12 checkpoints") for name in ("test_accuracy", "test_loss", "train_loss")),
    ],
)
def test_one_changed_number_is_found(file: str, column: str, what: str, runs: Path, capsys) -> None:
    folder = runs / "mnist" / "shard-00000"
    first = Shard.read(folder).runs().column("run_id")[0].as_py()
    change(folder, file, column)
    with pytest.raises(SystemExit) as ended:
        retrained.main([str(runs)])
    assert ended.value.code == 1
    printed = capsys.readouterr().out
    assert f"mnist: {what} were published, 11 of them are the same" in printed
    assert f"differs: mnist {first}" in printed
    assert printed.count("differs: ") == 1


def test_shards_without_published_runs_do_not_compare_as_the_same(runs: Path, tmp_path: Path) -> None:
    fabricate_shard(tmp_path / "other", TINY_MNIST, shard=1)
    with pytest.raises(SystemExit) as ended:
        retrained.main([str(tmp_path / "other")])
    assert ended.value.code == 1
