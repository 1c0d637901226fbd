"""The census counts what was generated from the shards and extrapolates to the whole grid."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import census, results
from benchmarks.census import _count, _named, census_table
from tests.fabricated import TINY_MNIST, fabricate_shard
from zoo.format.shard import TIMING_FILE, find_shards


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two shards of ten runs that took 30 s each; one run of each diverged."""
    for shard in (0, 1):
        folder = fabricate_shard(tmp_path / "runs", TINY_MNIST, shard=shard, count=10, diverged=1)
        timing = {"wall_seconds": 30.0, "engine_seconds": 24.0, "device": "NVIDIA H200"}
        (folder / TIMING_FILE).write_text(json.dumps(timing))
    return tmp_path / "runs"


def test_shards_are_counted(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    census.main([str(runs), "--out", str(tmp_path / "rows")])
    rows = results.read("census", tmp_path / "rows")
    configs, _ = find_shards(runs)
    epochs = configs["mnist"][0].record.protocol["epochs"]
    assert {row.metric: row.value for row in rows} == pytest.approx(
        {
            "runs": 20,
            "diverged_share": 0.1,
            "device_minutes": 1.0,
            "model_epochs_per_second": 20 * epochs / 60,
            "runs_per_hour": 1200,
            "wall_over_engine": 60 / 48,
        }
    )
    assert {row.device for row in rows} == {"NVIDIA H200"}
    line = "| mnist, shards 0 to 1, demo preset, NVIDIA H200 | 20 | 10.0% | 1.0 |"
    assert line in census_table(rows)
    shown = capsys.readouterr().out
    assert "10.0%      1.0" in shown
    assert max(map(len, shown.splitlines())) <= 100
    assert "| 1.250 | 13.3 h, 4.7 GB |" in census_table(rows)
    later = [replace(row, value=30.0) for row in rows if row.metric != "wall_over_engine"]
    assert "| 30 | 3000.0% | 30.0 | 30.0 | – |" in census_table([*rows, *later]), (
        "a census is mixed with an earlier one"
    )
    other_device = [replace(row, device="a CPU") for row in rows]
    assert census_table([*rows, *other_device]).count("13.3 h") == 2
    other_shards = [replace(row, setting=row.setting | {"shards": [7]}) for row in rows]
    assert census_table([*rows, *other_shards]).count("13.3 h") == 2, "a census of other shards replaces the first"


@pytest.mark.parametrize(
    ("shards", "name"), [([3], "shard 3"), ([0, 1, 2, 3], "shards 0 to 3"), ([0, 2, 5], "shards 0, 2, 5")]
)
def test_shards_have_a_name(shards: list[int], name: str) -> None:
    assert _named(shards) == name


def test_the_papers_grid_says_nothing_about_a_task_of_ones_own(runs: Path) -> None:
    rows = _count("mnist", find_shards(runs)[0]["mnist"])
    own = [replace(row, config="photos") for row in rows]
    _, _, *lines = census_table([*rows, *own]).splitlines()
    assert [line.rpartition(" | ")[2] for line in lines] == ["13.3 h, 4.7 GB |", "– |"]
    assert lines[1].startswith("| photos, shards 0 to 1, demo preset, NVIDIA H200 | 20 | 10.0% | 1.0 |")


def test_shards_that_shared_a_device_took_their_part_of_its_time(runs: Path, tmp_path: Path) -> None:
    census.main([str(runs), "--out", str(tmp_path / "rows")])
    census.main([str(runs), "--at-once", "2", "--out", str(tmp_path / "rows")])
    table = census_table(results.read("census", tmp_path / "rows"))
    assert "| mnist, shards 0 to 1, demo preset, NVIDIA H200 | 20 | 10.0% | 1.0 |" in table
    assert "| mnist, shards 0 to 1 (2 at once), demo preset, NVIDIA H200 | 20 | 10.0% | 0.5 |" in table
    assert "| 1.250 | 6.7 h, 4.7 GB |" in table


def test_an_interrupted_shard_has_no_engine_time(runs: Path) -> None:
    timing = runs / "mnist" / "shard-00001" / TIMING_FILE
    timing.write_text(json.dumps({"wall_seconds": 30.0, "engine_seconds": None, "device": "NVIDIA H200"}))
    configs, _ = find_shards(runs)
    assert "wall_over_engine" not in {row.metric for row in _count("mnist", configs["mnist"])}


def test_a_folder_without_shards_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        census.main([str(tmp_path)])
    assert ended.value.code == 2
    assert "none to publish" in capsys.readouterr().err


@pytest.mark.parametrize(
    "timing",
    [
        "{}",
        "[]",
        "{",
        '{"wall_seconds": 0}',
        '{"wall_seconds": -1}',
        '{"wall_seconds": true}',
        '{"wall_seconds": "nan"}',
        '{"wall_seconds": 1, "engine_seconds": [1]}',
        '{"wall_seconds": 1, "engine_seconds": 0}',
    ],
)
def test_a_damaged_timing_file_is_named(timing: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "mnist" / "shard-00001" / TIMING_FILE).write_text(timing)
    with pytest.raises(SystemExit) as ended:
        census.main([str(runs), "--dry-run"])
    assert ended.value.code == 2
    assert "shard-00001/timing.json" in capsys.readouterr().err
