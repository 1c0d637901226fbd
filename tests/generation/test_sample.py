"""A sample of the grid through the commands: trained, left alone when finished, and published with other shards."""

from pathlib import Path

import pytest
from small_tasks import write_digits

from generation import launch, run
from generation.protocol import PRESETS
from generation.sweep import Draw, Sweep
from generation.task import named_task
from tests.fabricated import folder_contents, publish
from zoo.verify import main as verify


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    data = write_digits(tmp_path_factory.mktemp("data"), train=200, test=20)
    return ["--preset", "demo", "--device", "cpu", "--data", str(data)]


@pytest.mark.long
def test_a_sample_is_trained_once_and_published_with_other_shards(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    sample = ["--sample", "3", "--sample-seed", "7", *options, "--out", str(runs)]
    run.main(sample)
    sweep = Sweep(named_task("mnist"), PRESETS["demo"], draw=Draw(3, 7))
    assert {folder.name for folder in (runs / "mnist").glob("shard-*")} == {
        f"shard-{number:05d}" for number in sweep.shards
    }
    before = folder_contents(runs)
    capsys.readouterr()
    run.main(sample)
    assert folder_contents(runs) == before
    assert capsys.readouterr().err.count("is finished already: nothing to do") == len(sweep.shards)
    run.main(["--shard", "0", "--runs", "1", *options, "--out", str(runs)])
    manifest = publish(runs, tmp_path / "zoo")
    assert manifest.details["configs"]["mnist"]["shards"] == [0, *sweep.shards]
    verify([str(tmp_path / "zoo")])
    run.main(["--sample", "1", "--sample-seed", "7", *options, "--out", str(runs)])
    again = publish(runs, tmp_path / "again").details["configs"]["mnist"]
    assert (again["rows"], again["runs"]) == tuple(manifest.details["configs"]["mnist"][of] for of in ("rows", "runs"))


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--sample", "5", "--shard", "0"], "--sample takes the place of --shard"),
        (["--sample", "0"], "--sample: must be a whole number of at least 1, got '0'"),
        (["--sample", "17000"], "the grid has 16,000 configurations: a sample of 17,000 cannot be drawn"),
        (["--shard", "0", "--sample-seed", "3"], "--sample-seed is about a sample"),
        (["--sample", "5", "--sample-seed", "1000"], "--sample-seed: must be a whole number from 0 to 999, got '1000'"),
    ],
)
def test_a_bad_sample_is_one_line(arguments: list[str], fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        run.main([*arguments, "--device", "cpu", "--preset", "demo"])
    assert end.value.code == 2
    assert fault in capsys.readouterr().err.splitlines()[-1]


def test_the_launcher_takes_a_sample_or_shards(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        launch.main(["--sample", "5", "--shards", "0-3"])
    assert "--sample takes the place of --shards" in capsys.readouterr().err


def test_the_shards_of_a_sample_are_listed(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    run.main(["--list", "--sample", "40", *options, "--out", "nowhere"])
    printed = capsys.readouterr().out
    assert all(str(number) in printed for number in (1_000_400, 1_000_401, 1_000_402, 1_000_403))
