"""The table commands, end to end on a small zoo: rows, tables, plots, resuming, and one clear line for bad input."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import ablation_components, ablation_width, augmentation, kendall, paper, results
from benchmarks import trial as trial_module
from benchmarks.data import BenchmarkData, Checkpoints
from benchmarks.experiment import Experiment
from benchmarks.models import training
from benchmarks.models.registry import MODELS
from benchmarks.options import SIX_MODELS, USUAL_MODELS
from benchmarks.results import ResultIndex
from benchmarks.tables import _threshold_title, for_terminal
from tests.faults.rewriting import Rows, rewrite
from tests.refusal import refusal
from zoo.reading.reader import open_zoo
from zoo.reading.selection import Selection


def test_kendall_writes_rows_tables_and_plots_and_computes_nothing_twice(
    tiny_zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    arguments = ["--zoo", str(tiny_zoo), "--out", str(tmp_path), "--epochs", "2", "--seeds", "2", "--jobs", "1"]
    arguments += [
        "--thresholds",
        "none",
        "50",
        "99",
        "--models",
        "mlp",
        "lightgbm",
        "hyperparameters",
        "--device",
        "cpu",
    ]
    monkeypatch.setattr(training, "_PATIENCE", 1)
    kendall.main(arguments)
    table = (tmp_path / "kendall.mnist.md").read_text()
    assert for_terminal(table).strip() in capsys.readouterr().out
    assert "| Kendall's τ, mnist, epoch_75 | no threshold | ≥ 50% | ≥ 99% |" in table
    assert "paper 0.866 ± 0.002" in table
    assert "Too few rows to rank: ≥ 99%" in table
    assert "counts as 0, is predicted by LightGBM (no threshold, ≥ 50%). Trees have" in table
    for name in ("scatter", "thresholds", "accuracy"):
        assert (tmp_path / f"kendall.mnist.{name}.png").read_bytes().startswith(b"\x89PNG")
    rows = results.read("kendall", tmp_path)
    index = ResultIndex.latest(rows, "mnist")
    tau = index.find("tau", "mlp", threshold=0.0, recipe="paper")
    assert tau is not None
    assert tau.n == 2
    assert tau.stderr is not None
    interval = index.interval("tau", "mlp", threshold=0.0, recipe="paper")
    assert interval is not None
    assert interval[0] <= tau.value <= interval[1]
    assert index.find("tau", "mlp", threshold=0.0, recipe="converged") is not None
    assert index.find("tau", "mlp", threshold=0.5, recipe="converged") is None
    scaled = index.find("tau", "mlp", threshold=0.0, recipe="scaled")
    assert scaled is not None
    assert scaled.value != tau.value, "scaled weights were not trained on"
    metrics = {row.metric for row in rows if row.model == "mlp"}
    assert {"r2", "wall_seconds", "parameters", "peak_memory_megabytes", "mean_change", "tau_behind_leader"} <= metrics
    assert {row.n for row in rows if row.model == "lightgbm"} == {1}

    def fail(*_: object) -> None:
        raise AssertionError("a finished trial was computed again")

    monkeypatch.setattr(trial_module, "_fit_and_judge", fail)
    kendall.main(arguments)
    assert (tmp_path / "kendall.mnist.md").read_text() == table
    assert results.read("kendall", tmp_path) == rows, "there is nothing new, so no row was added"


@pytest.mark.long
def test_trials_are_fitted_again_when_only_the_test_rows_changed(tiny_zoo: Path, tmp_path: Path):
    changed = Path(shutil.copytree(tiny_zoo, tmp_path / "zoo"))
    models = ["--models", "hyperparameters", "gauge_nfn", "gauge_nfn_hyperparameters"]

    def taus() -> dict[str, float]:
        arguments = ["--zoo", str(changed), "--out", str(tmp_path / "out"), "--quick", "--epochs", "1", "--jobs", "1"]
        kendall.main([*arguments, *models])
        rows = results.read("kendall", tmp_path / "out")
        return {row.model: row.value for row in rows if row.metric == "tau" and row.model}

    before = taus()
    assert len(before) == 3
    (file,) = changed.glob("mnist/test-*.arrow")

    def turn_around(rows: Rows) -> None:
        for row in rows:
            row["test_accuracy"] = 1 - row["test_accuracy"]

    rewrite(changed, file.relative_to(changed).as_posix(), turn_around)
    assert taus() == pytest.approx({model: -tau for model, tau in before.items()})


@pytest.mark.long
def test_the_same_command_twice_gives_the_same_numbers(tiny_zoo: Path, tmp_path: Path):
    values = []
    for name in ("a", "b"):
        options = ["--quick", "--epochs", "2", "--jobs", "1", "--models", "statnn", "random_forest", "hyperparameters"]
        kendall.main(["--zoo", str(tiny_zoo), "--out", str(tmp_path / name), *options])
        rows = results.read("kendall", tmp_path / name)
        timed = ("wall_seconds", "peak_memory_megabytes")
        values.append({row.identity(): (row.value, row.stderr) for row in rows if row.metric not in timed})
    assert values[0] == values[1]
    assert {row.model for row in rows if row.model} == {"statnn", "random_forest", "hyperparameters"}
    index = ResultIndex.latest(rows, "mnist")
    taus = {name: index.value("tau", name) or 0.0 for name in ("statnn", "random_forest", "hyperparameters")}
    best = max(taus["statnn"], taus["random_forest"])
    for name, tau in taus.items():
        assert index.value("tau_behind_leader", name) == pytest.approx(best - tau), "the leader reads weights"


@pytest.mark.long
def test_the_other_tables(tiny_zoo: Path, tmp_path: Path):
    shared = ["--zoo", str(tiny_zoo), "--out", str(tmp_path), "--epochs", "1", "--seeds", "1", "--jobs", "1"]
    ablation_components.main(shared)
    table = (tmp_path / "ablation_components.md").read_text()
    assert table.count("paper") == 10
    assert len(results.read("ablation_components", tmp_path)) > 10
    ablation_width.main([*shared, "--widths", "3", "2,2"])
    table = (tmp_path / "ablation_width.agnews.md").read_text()
    assert "| [15, 15] | –<br>paper 0.913 ± 0.002 | – | – |" in table
    index = ResultIndex.latest(results.read("ablation_width", tmp_path), "agnews")
    assert index.value("encoder_parameters", "transformer_nfn", channels=(2, 2)) is not None
    augmentation.main([*shared, "--ranges", "10", "--models", "mlp", "transformer_nfn"])
    index = ResultIndex.latest(results.read("augmentation", tmp_path), "agnews")
    assert index.value("tau", "mlp", entry_range=10.0) is not None
    plain, doubled = (index.value("test_rows", "data", entry_range=size) for size in (None, 10.0))
    assert plain is not None
    assert doubled == 2 * plain


def test_augmented_rows_are_the_rows_and_moved_copies_of_the_same_runs(tiny_zoo: Path):
    plain = BenchmarkData.from_zoo(tiny_zoo, "mnist")
    double = BenchmarkData.from_zoo(tiny_zoo, "mnist", entry_range=1.0)
    count = len(plain.train)
    np.testing.assert_array_equal(double.train.weights[:count], plain.train.weights)
    assert not np.allclose(double.train.weights[count:], plain.train.weights)
    np.testing.assert_array_equal(double.train.truth()[count:], plain.train.truth())
    assert list(double.train.runs[count:]) == list(plain.train.runs)
    again = BenchmarkData.from_zoo(tiny_zoo, "mnist", entry_range=1.0)
    np.testing.assert_array_equal(double.train.weights, again.train.weights)


def test_a_selection_of_every_split_is_another_data_set(tiny_zoo: Path):
    whole = BenchmarkData.from_zoo(tiny_zoo, "mnist")
    some = BenchmarkData.from_zoo(tiny_zoo, "mnist", where=Selection.parse("optimizer in ['sgd', 'adam']"))
    for part, of in ((some.train, whole.train), (some.validation, whole.validation)):
        assert 0 < len(part) < len(of)
        assert set(part.hyperparameters["optimizer"]) <= {"sgd", "adam"}
        optimizers = of.hyperparameters["optimizer"]
        assert list(part.runs) == [
            run for run, optimizer in zip(of.runs, optimizers, strict=True) if optimizer in ("sgd", "adam")
        ]
    assert some.fingerprint != whole.fingerprint
    assert (
        BenchmarkData.from_zoo(tiny_zoo, "mnist", where=Selection.parse("epoch > 0")).fingerprint == whole.fingerprint
    )


def test_the_digest_of_rows_depends_on_all_they_hold(tiny_zoo: Path):
    rows = BenchmarkData.from_zoo(tiny_zoo, "mnist").train
    weights, accuracy, runs = rows.weights.clone(), rows.accuracy.clone(), rows.runs.copy()
    same = rows.metadata.assign(goodness=accuracy.numpy(), run_id=runs)
    assert replace(rows, weights=weights, metadata=same).digest() == rows.digest()
    weights[-1, -1] += 1
    accuracy[0] += 0.5
    runs[3] = "another"
    tables = [rows.metadata.assign(goodness=accuracy.numpy()), rows.metadata.assign(run_id=runs)]
    changed = [replace(rows, weights=weights), *(replace(rows, metadata=table) for table in tables)]
    assert len({rows.digest(), *(other.digest() for other in changed)}) == 4


def test_the_table_of_a_selection_is_not_mistaken_for_the_whole_table(tiny_zoo: Path, tmp_path: Path):
    shared = ["--quick", "--zoo", str(tiny_zoo), "--out", str(tmp_path), "--epochs", "1", "--models", "mlp"]
    kendall.main(shared)
    kendall.main([*shared, "--where", "optimizer in ['sgd', 'adam']"])
    rows = results.read("kendall", tmp_path)
    whole, some = ResultIndex.latest(rows, "mnist"), ResultIndex.latest(rows, "mnist", "optimizer in ['sgd', 'adam']")
    of_all, of_some = (index.value("train_rows", "data", threshold=0.0) or 0 for index in (whole, some))
    assert of_all > of_some > 0
    assert whole.value("tau", "mlp") != some.value("tau", "mlp")
    tables = [path.read_text() for path in sorted(tmp_path.glob("kendall.mnist*.md"), key=lambda path: len(path.name))]
    assert ["mnist, epoch_75 where optimizer in ['adam', 'sgd'] |" in text for text in tables] == [False, True]
    assert len(list(tmp_path.glob("kendall.mnist*.png"))) == 4, "each has its own plots, of one threshold two"


def test_all_checkpoints_of_a_run_are_in_one_split(tiny_zoo: Path):
    data = BenchmarkData.from_zoo(tiny_zoo, "mnist", checkpoint="all")
    test = Checkpoints.read(open_zoo(tiny_zoo, "mnist", "test"), "all", data.train.weights.device)
    runs = [set(rows.runs) for rows in (data.train, data.validation, test)]
    assert len(data.train) == 4 * len(runs[0])
    assert len(set.union(*runs)) == sum(map(len, runs))


def test_a_model_without_its_library_is_left_out_and_reported(
    tiny_zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "xgboost", None)
    arguments = ["--quick", "--zoo", str(tiny_zoo), "--out", str(tmp_path), "--models", "xgboost", "hyperparameters"]
    line = refusal(kendall.main, arguments, capsys)
    assert line == "error: XGBoost needs xgboost: pip install 'small-transformer-zoo[benchmarks]'\n"
    assert not list(tmp_path.iterdir()), "nothing was fitted"
    # models that the command names itself
    monkeypatch.setattr("benchmarks.experiment.USUAL_MODELS", ("xgboost", "hyperparameters"))
    with pytest.raises(SystemExit) as ended:
        kendall.main(arguments)
    assert ended.value.code == 3
    captured = capsys.readouterr()
    assert "skipped: XGBoost needs xgboost: pip install 'small-transformer-zoo[benchmarks]'" in captured.err
    assert ResultIndex.latest(results.read("kendall", tmp_path), "mnist").find("tau", "hyperparameters") is not None
    monkeypatch.setattr("benchmarks.experiment.USUAL_MODELS", ("xgboost",))
    with pytest.raises(SystemExit):
        kendall.main([*arguments[:-1], "--out", str(tmp_path / "alone")])
    assert "Too few rows" not in (tmp_path / "alone" / "kendall.mnist.md").read_text(), "it was not for want of rows"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--models", "oracle"], "unknown model 'oracle': choose some of mlp, statnn"),
        (["--models", "hyperparameters", "--recipes", "converged"], "--recipes converged trains no hyperparameters"),
        (["--models", "mlp", "probes", "--recipes", "place"], "--recipes place trains no probes: add paper"),
        (["--thresholds", "120"], "a threshold is none or a percentage of at least 0 and below 100, got '120'"),
        (["--seeds", "0"], "argument --seeds: must be a whole number of at least 1, got '0'"),
        (["--epochs", "-1"], "argument --epochs: must be a whole number of at least 1"),
        (["--zoo", "nowhere"], "no zoo called 'nowhere'"),
        (["--config", "chess"], "has no config 'chess'"),
        (["--device", "abacus"], "unknown device 'abacus': cpu or cuda"),
        (["--where", "epoch =="], "cannot read the expression 'epoch =='"),
        (["--where", "color == 'red'"], "no column 'color': there are run_id, task"),
    ],
)
def test_bad_input_is_one_clear_line(
    tiny_zoo: Path, tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    assert message in refusal(kendall.main, ["--zoo", str(tiny_zoo), "--out", str(tmp_path), *arguments], capsys)


def test_bad_widths_and_ranges_are_one_clear_line(capsys: pytest.CaptureFixture[str]):
    for main, arguments, message in (
        (ablation_width.main, ["--widths", "ten"], "such as 10 or 5,5, got 'ten'"),
        (augmentation.main, ["--ranges", "-1"], "argument --ranges: each value must be a number above 0, got '-1'"),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert message in capsys.readouterr().err


def test_recipes_that_some_of_the_usual_models_have_train_only_those(tiny_zoo: Path):
    assert tuple(name for name in MODELS if name in USUAL_MODELS) == USUAL_MODELS
    options = kendall._Options(thresholds=("none", "50"), recipes=("converged",), seeds=1)
    entries = kendall._entries(Experiment("kendall", options), options, BenchmarkData.from_zoo(tiny_zoo, "mnist"))
    assert [(trial.model, trial.threshold) for (trial,) in entries] == [
        ("mlp", 0.0),
        ("statnn", 0.0),
        ("transformer_nfn", 0.0),
    ]


def test_thresholds_are_not_rounded():
    assert [_threshold_title(threshold) for threshold in (0, 0.6, 0.55, 0.796, 0.999)] == [
        "no threshold",
        "≥ 60%",
        "≥ 55%",
        "≥ 79.6%",
        "≥ 99.9%",
    ]


def test_the_numbers_of_the_paper_are_complete():
    for config in ("mnist", "agnews"):
        assert paper.KENDALL[config].keys() == set(SIX_MODELS)
    assert len(paper.WIDTHS) == 8
    # some numbers are in several tables of the paper
    assert {name: row[None] for name, row in paper.AUGMENTATION.items()} == {
        name: row[0.0] for name, row in paper.KENDALL["agnews"].items()
    }
    assert max(paper.COMPONENTS["mnist"].values()) == paper.KENDALL["mnist"]["transformer_nfn"][0.0]
