"""zoo.thin: all runs of a shard, the weights of a few."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import zoo
from tests.fabricated import folder_contents
from tests.refusal import refusal
from zoo.format.published import PublishedZoo
from zoo.format.shard import CHECKPOINTS_FILE, RUNS_FILE, TIMING_FILE, Shard, write_shard
from zoo.publish import main as publish
from zoo.reading.reader import MappedCheckpoints
from zoo.storage.untrusted import read_json
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
    assert "all runs are listed, but only some of their checkpoints are here" in (out / "README.md").read_text()
    for config, details in PublishedZoo.read(out).configs.items():
        shards = [Shard.read(folder) for folder in sorted((runs / config).glob("shard-*"))]
        assert details.thinned == {str(s.record.shard): s.manifest.files[CHECKPOINTS_FILE].sha256 for s in shards}
        reader = zoo.open(out, config, split="all")
        assert len(reader.runs) == sum(len(shard.runs()) for shard in shards)
        kept = reader.metadata.groupby("run_id").size().to_dict()
        assert set(kept) == set(reader.runs[reader.runs["has_weights"]]["run_id"])
        one = len(details.checkpoints)
        assert sorted(kept.values()) == [1] * 2 * len(shards) + [one] * len(shards)


def draw_from(
    shard: Shard,
    folder: Path,
    rows: list[int],
    checkpoint_column: tuple[str, pa.Array] | None = None,
    **changed: pa.Array,
) -> None:
    """A shard of a sample with some runs of a shard of the grid, and their checkpoints."""
    runs = shard.runs().take(rows)
    number = pa.array([1_000_000] * len(rows), pa.int32())
    for name, column in {"shard": number, "wall_seconds": pa.array([7.0] * len(rows)), **changed}.items():
        runs = runs.set_column(runs.schema.get_field_index(name), runs.schema.field(name), column)
    checkpoints = MappedCheckpoints([shard.folder / CHECKPOINTS_FILE], shard.record.spec)
    of_these = checkpoints.table.to_pandas()["run_id"].isin(runs.column("run_id").to_pylist())
    record = replace(shard.record, shard=1_000_000)
    timing = read_json(shard.folder / TIMING_FILE)
    kept = checkpoints.take(np.flatnonzero(of_these))
    if checkpoint_column is not None:
        name, column = checkpoint_column
        kept = kept.set_column(kept.schema.get_field_index(name), kept.schema.field(name), column)
    write_shard(folder, record, [kept], runs, lambda: timing)


def test_a_sample_brings_the_weights_of_runs_that_thinned_shards_list(runs: Path, tmp_path: Path):
    main([str(runs), str(tmp_path / "thin"), "--runs", "0", "--whole", "0"])
    shard = Shard.read(runs / "mnist" / "shard-00000")
    drawn = np.flatnonzero(np.array(shard.runs().column("status").to_pylist()) == "completed")[[1, 4]].tolist()
    draw_from(shard, tmp_path / "thin" / "mnist" / "shard-1000000", drawn)
    publish([str(tmp_path / "thin"), str(tmp_path / "zoo")])
    verify([str(tmp_path / "zoo")])
    publish([str(runs), str(tmp_path / "whole")])
    whole, some = (zoo.open(tmp_path / name, "mnist", split="all") for name in ("whole", "zoo"))
    listed = some.runs.drop(columns="has_weights")
    pd.testing.assert_frame_equal(listed, whole.runs.drop(columns="has_weights", errors="ignore"))
    assert set(some.metadata["run_id"]) == {shard.runs().column("run_id")[row].as_py() for row in drawn}
    for row, (run, checkpoint) in enumerate(some.metadata[["run_id", "checkpoint"]].itertuples(index=False)):
        (same,) = whole.rows(f"run_id == '{run}' and checkpoint == '{checkpoint}'")
        assert torch.equal(some.weights(row), whole.weights(int(same)))


def test_a_sample_of_runs_that_are_there_with_weights_changes_nothing(runs: Path, tmp_path: Path):
    """Not even by a run that diverged, whose last loss is NaN, and in another version of the package."""
    publish([str(runs), str(tmp_path / "before" / "zoo")])
    shard, version = Shard.read(runs / "mnist" / "shard-00000"), pa.array(["later"] * 3)
    assert shard.runs().column("status")[39].as_py() == "diverged"
    draw_from(shard, runs / "mnist" / "shard-1000000", [0, 3, 39], code_version=version)
    publish([str(runs), str(tmp_path / "after" / "zoo")])
    assert folder_contents(tmp_path / "after" / "zoo") == folder_contents(tmp_path / "before" / "zoo")


def test_a_run_with_other_curves_is_not_the_same_run(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    shard = Shard.read(runs / "mnist" / "shard-00001")
    curves = shard.runs().column("train_loss").take([2, 3]).to_pylist()
    curves[1][0] += 1e-6
    other = pa.array(curves, shard.runs().schema.field("train_loss").type)
    draw_from(shard, runs / "mnist" / "shard-1000000", [2, 3], train_loss=other)
    fault = "runs.arrow, row 1: the run is also in shard-00001, with other numbers"
    assert fault in refusal(publish, [str(runs), str(tmp_path / "zoo")], capsys)


def test_a_checkpoint_with_other_weights_is_not_the_same_checkpoint(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    shard = Shard.read(runs / "mnist" / "shard-00000")
    other = pa.array([0.5] * 4, pa.float32())
    draw_from(shard, runs / "mnist" / "shard-1000000", [2], checkpoint_column=("train_loss", other))
    fault = "checkpoints.arrow, row 0: the checkpoint is also in shard-00000, with other numbers"
    assert fault in refusal(publish, [str(runs), str(tmp_path / "zoo")], capsys)


def test_only_runs_of_thinned_shards_may_lack_checkpoints(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    thin, zoo_folder = tmp_path / "thin", str(tmp_path / "zoo")
    main([str(runs), str(thin), "--runs", "2"])
    shutil.rmtree(thin / "mnist" / "shard-00000")
    shard = Shard.read(runs / "mnist" / "shard-00000")
    checkpoints = MappedCheckpoints([shard.folder / CHECKPOINTS_FILE], shard.record.spec)
    lacking = [checkpoints.take(np.arange(1, len(checkpoints)))]
    timing = read_json(shard.folder / TIMING_FILE)
    write_shard(thin / "mnist" / "shard-00000", shard.record, lacking, shard.runs(), lambda: timing)
    line = refusal(publish, [str(thin), zoo_folder], capsys)
    assert "shard-00000/runs.arrow, row 0: the run is completed, but one of epoch_50" in line


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


def test_the_card_shows_a_checkpoint_that_was_kept(runs: Path, tmp_path: Path):
    main([str(runs), str(tmp_path / "thin"), "--whole", "0", "--checkpoints", "best"])
    publish([str(tmp_path / "thin"), str(tmp_path / "zoo")])
    example = next(line for line in (tmp_path / "zoo" / "README.md").read_text().splitlines() if "z.batches(" in line)
    assert "checkpoint == 'best'" in example
    assert "nan" not in example
