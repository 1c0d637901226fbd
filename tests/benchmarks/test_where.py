"""``--where`` is one selection from the command line to stored trials and rows, however it is spelled."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import kendall, results
from benchmarks import trial as trial_module
from benchmarks.data import BenchmarkData
from benchmarks.experiment import Experiment
from benchmarks.options import TableOptions
from benchmarks.results import Result, ResultIndex
from benchmarks.trial import Trial, TrialStore
from tests.benchmarks.synthetic import invent_data, random_label
from zoo.command import Command
from zoo.reading.selection import Selection

COMMITTED = "train_fraction >= 0.8"
SPELLINGS = (COMMITTED, "train_fraction>=0.80", "(8e-1 <= train_fraction)")


def experiment_of(*arguments: str) -> Experiment:
    options = Command(__name__, "test", "", TableOptions).parse([*arguments, "--device", "cpu"])
    return Experiment("kendall", options)


def committed_row(where: str | None) -> Result:
    """The last committed τ of the MLP on all MNIST rows that ``where`` chooses."""
    row = ResultIndex.latest(results.read("kendall"), "mnist", where).find("tau", "mlp", threshold=0.0, recipe="paper")
    assert row is not None
    return row


def data_of(row: Result) -> BenchmarkData:
    """Data that passes for what the row was computed on."""
    invented = invent_data(4, 4, 4, random_label)
    return BenchmarkData(
        invented.train,
        invented.validation,
        lambda: invented.validation,
        config=row.config,
        fingerprint=str(row.setting["zoo"]),
        test_examples=10_000,
    )


@pytest.mark.long
@pytest.mark.parametrize("where", [None, COMMITTED])
def test_committed_trials_are_found_by_their_rows(where: str | None):
    row = committed_row(where)
    trials = [Trial.of_row(row, seed) for seed in range(row.n)]
    assert [trial.where for trial in trials] == [where and Selection.parse(where).expression] * row.n
    assert TrialStore(results.FOLDER).find(trials).keys() == set(trials)


@pytest.mark.long
@pytest.mark.parametrize("arguments", [[], *(["--where", text] for text in SPELLINGS)])
def test_committed_trials_are_found_from_the_command_line(arguments: list[str]):
    row = committed_row(COMMITTED if arguments else None)
    trials = experiment_of(*arguments, "--seeds", str(row.n)).trials(data_of(row), "mlp")
    assert trials == [Trial.of_row(row, seed) for seed in range(row.n)]
    assert TrialStore(results.FOLDER).find(trials).keys() == set(trials)


def test_all_spellings_find_the_committed_rows_and_their_trials():
    row = committed_row(COMMITTED)
    for text in SPELLINGS:
        assert committed_row(text) == row
        assert Trial.of_row(replace(row, setting=row.setting | {"where": text}), 0) == Trial.of_row(row, 0)
    assert committed_row(None) != row


def test_all_spellings_write_the_same_files():
    names = {experiment_of("--where", text).file("kendall.mnist.md").name for text in SPELLINGS}
    assert names == {f"kendall.mnist.{Selection.parse(COMMITTED).file_suffix}.md"}
    assert experiment_of().file("kendall.mnist.md").name == "kendall.mnist.md"


def test_another_spelling_computes_nothing_and_adds_no_row(
    tiny_zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shared = ["--quick", "--zoo", str(tiny_zoo), "--out", str(tmp_path), "--epochs", "1", "--models", "mlp"]
    kendall.main([*shared, "--where", "optimizer in ['sgd', 'adam']"])
    rows, files = results.read("kendall", tmp_path), sorted(tmp_path.iterdir())
    assert all(row.setting["where"] == "optimizer in ['adam', 'sgd']" for row in rows)

    def fail(*_: object) -> None:
        raise AssertionError("a finished trial was computed again")

    monkeypatch.setattr(trial_module, "_fit_and_judge", fail)
    kendall.main([*shared, "--where", 'optimizer in ("adam","sgd","sgd")'])
    assert results.read("kendall", tmp_path) == rows
    assert sorted(tmp_path.iterdir()) == files
