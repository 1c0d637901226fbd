"""Repeats through the commands: trained into a config of their own, never mixed with another number of repeats."""

from collections import Counter
from pathlib import Path

import pytest
from small_tasks import write_digits

import zoo
from generation import run
from tests.fabricated import publish
from zoo.format.hyperparameters import CONFIGURATION
from zoo.verify import main as verify


@pytest.mark.long
def test_repeats_are_trained_published_and_not_mixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_digits(tmp_path / "data", train=200, test=20)
    runs = tmp_path / "runs"
    options = ["--shard", "0", "--runs", "4", "--preset", "demo", "--device", "cpu", "--data", str(data)]
    run.main(["--seeds", "2", *options, "--out", str(runs)])
    assert [folder.name for folder in runs.glob("*/shard-*")] == ["shard-00000"]
    details = publish(runs, tmp_path / "zoo").details["configs"]["mnist-repeats"]
    assert details["seeds"] == "2"
    verify([str(tmp_path / "zoo"), "--evaluate", "4", "--data", str(data)])
    table = zoo.open(tmp_path / "zoo", "mnist-repeats", split="all").runs
    assert len(set(table["seed"])) == 4
    configurations = zip(*(table[name] for name in ("task", *CONFIGURATION)), strict=True)
    assert sorted(Counter(configurations).values()) == [2, 2]
    capsys.readouterr()
    with pytest.raises(SystemExit):
        run.main(["--seeds", "4", *options, "--out", str(runs)])
    assert "holds a finished shard with seeds 2, not 4" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run.main(["--seeds", "1", *options])
    assert "error: unknown seeds '1': shared, distinct, or how often" in capsys.readouterr().err
