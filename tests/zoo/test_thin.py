"""zoo.thin: all runs of a shard, the weights of a few."""

from pathlib import Path

import pytest

import zoo
from tests.refusal import refusal
from zoo.format.published import PublishedZoo
from zoo.format.shard import CHECKPOINTS_FILE, RUNS_FILE, Shard
from zoo.publish import main as publish
from zoo.thin import main
from zoo.verify import main as verify


def test_runs_stay_and_few_have_weights(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    thin, out = tmp_path / "thin", tmp_path / "zoo"
    main([str(runs), str(thin), "--runs", "3", "--whole", "1"])
    for folder in sorted(runs.glob("*/shard-*")):
        before, after = Shard.read(folder), Shard.read(thin / folder.relative_to(runs))
        after.check_files()
        assert after.manifest.files[RUNS_FILE] == before.manifest.files[RUNS_FILE]
        assert after.record.all_checkpoints == before.manifest.files[CHECKPOINTS_FILE]
    publish([str(thin), str(out)])
    verify([str(out)])
    assert "no faults" in capsys.readouterr().out
    assert "all runs are listed, and the first of each shard have weights here" in (out / "README.md").read_text()
    for config, details in PublishedZoo.read(out).configs.items():
        shards = [Shard.read(folder) for folder in sorted((runs / config).glob("shard-*"))]
        assert details.thinned == {str(s.record.shard): s.manifest.files[CHECKPOINTS_FILE].sha256 for s in shards}
        reader = zoo.open(out, config, split="all")
        assert len(reader.runs) == sum(len(shard.runs()) for shard in shards)
        kept = reader.metadata.groupby("run_id").size().to_dict()
        assert set(kept) == set(reader.runs[reader.runs["has_weights"]]["run_id"])
        one = len(details.checkpoints)
        assert sorted(kept.values()) == [1] * 2 * len(shards) + [one] * len(shards)


def test_what_is_thinned_already_stays(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    main([str(runs), str(tmp_path / "thin"), "--runs", "2"])
    files = {path: path.read_bytes() for path in (tmp_path / "thin").rglob("*") if path.is_file()}
    capsys.readouterr()
    main([str(runs), str(tmp_path / "thin"), "--runs", "1"])
    assert capsys.readouterr().out == ""
    assert all(path.read_bytes() == content for path, content in files.items())
    main([str(tmp_path / "thin"), str(tmp_path / "thinner"), "--runs", "1"])
    for folder in (tmp_path / "thinner").glob("*/shard-*"):
        original = Shard.read(runs / folder.relative_to(tmp_path / "thinner"))
        assert Shard.read(folder).record.all_checkpoints == original.manifest.files[CHECKPOINTS_FILE]


def test_thinned_shards_go_elsewhere(runs: Path, capsys: pytest.CaptureFixture[str]):
    assert "lie inside one another" in refusal(main, [str(runs), str(runs / "thin")], capsys)
    assert "is not a folder" in refusal(main, ["nowhere", "thin"], capsys)
    assert "got epoch_99" in refusal(main, [str(runs), str(runs.parent / "thin"), "--checkpoints", "epoch_99"], capsys)
