"""The protocol on invented data: a known label is found, a random one is not, and the test split stays closed."""

import ast
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import benchmarks
from benchmarks import results
from benchmarks import trial as trial_module
from benchmarks.data import BenchmarkData, Checkpoints, Elsewhere, Outcome
from benchmarks.experiment import Entry
from benchmarks.models import training
from benchmarks.models.registry import MODELS
from benchmarks.options import SIX_MODELS
from benchmarks.results import ResultIndex
from benchmarks.statistics import kendall_tau
from benchmarks.trial import Outcomes, Trial, TrialStore, compute
from tests.benchmarks.synthetic import invariant_label, invent, invent_data, random_label

PLACES = [("agnews", "best", "z", True), ("agnews", "best", "z", False), ("agnews", "best", "y", True)]


def outcome(predicted: list[float], truth: list[float], **notes: float | str | None) -> Outcome:
    numbers = [np.array(values, dtype=np.float32) for values in (predicted, truth)]
    return Outcome(numbers[0], numbers[1], np.arange(len(truth)), {"device": "cpu", **notes})


def silent(text: str, count: int) -> None:
    pass


READERS = tuple(name for name, model in MODELS.items() if "label" not in model.reads)
"""All models but those that need the label of an earlier checkpoint."""


def trials_of(models: tuple[str, ...], epochs: int, seeds: int = 1, threshold: float = 0.0) -> list[Trial]:
    return [
        Trial("kendall", "mnist", model, seed, "invented", threshold=threshold, epochs=epochs).normalized()
        for model in models
        for seed in range(seeds)
    ]


def run(trials: list[Trial], data: BenchmarkData, folder: Path) -> Outcomes:
    return compute(trials, data, TrialStore(folder), jobs=1, advance=silent)[0]


def taus(outcomes: Outcomes) -> dict[str, float]:
    return {trial.model: kendall_tau(outcome.predicted, outcome.truth) for trial, outcome in outcomes.items()}


@pytest.mark.long
def test_only_transformer_nfn_finds_an_invariant_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Every checkpoint is moved by its own group element; the label is an invariant polynomial of the weights."""
    # many rows and few, large steps: the test is about what can be learned, not about how fast
    monkeypatch.setattr(training, "_BATCH_SIZE", 256)
    monkeypatch.setattr(training, "_PEAK_RATE", 5e-3)
    data = invent_data(10_000, 150, 200, invariant_label, move=True)
    finished = run(trials_of(("transformer_nfn", "mlp"), epochs=8), data, tmp_path)
    tau_of = taus(finished)
    assert tau_of["transformer_nfn"] > 0.95
    assert tau_of["mlp"] < 0.85
    change = {trial.model: outcome.notes["mean_change"] for trial, outcome in finished.items()}
    assert isinstance(change["transformer_nfn"], float)
    assert isinstance(change["mlp"], float)
    assert change["transformer_nfn"] < 1e-4
    assert change["mlp"] > 0.02


@pytest.mark.long
def test_no_model_finds_a_random_label(tmp_path: Path):
    """Without any relation, τ has a standard deviation of 2/(3√n), 0.024 for 800 test rows: ±0.1 is four of these."""
    tau_of = taus(run(trials_of(READERS, epochs=4), invent_data(200, 60, 800, random_label), tmp_path))
    assert set(SIX_MODELS) < tau_of.keys()
    for model, tau in tau_of.items():
        assert np.isnan(tau) or abs(tau) < 0.1, model
    assert sum(np.isfinite(tau) for tau in tau_of.values()) >= 4


@pytest.mark.long
def test_no_test_row_is_seen_before_every_choice_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fitting = True

    def open_test() -> Checkpoints:
        assert not fitting, "the test split was opened while a model was still being fitted"
        return invent(30, 2, random_label)

    def watched(original):
        def fit(*arguments):
            nonlocal fitting
            fitting = True
            fitted = original(*arguments)
            fitting = False
            return fitted

        return fit

    monkeypatch.setattr(trial_module, "_fit", watched(trial_module._fit))
    for model in READERS:
        # new data for each model, since an opened split is kept
        sealed = BenchmarkData(
            invent(40, 0, random_label),
            invent(20, 1, random_label),
            open_test,
            config="mnist",
            fingerprint="invented",
            test_examples=1000,
        )
        fitting = True
        with pytest.raises(AssertionError, match="still being fitted"):
            sealed.judge(None, 0.0, model)  # pyright: ignore[reportArgumentType]
        finished = run(trials_of((model,), epochs=2, seeds=2), sealed, tmp_path)
        assert finished


def test_only_judge_opens_the_test_split_and_only_one_function_calls_it():
    """Checked in the source code."""
    users: dict[str, set[tuple[str, str]]] = {"_test": set(), "_moved_test": set(), "open_test": set(), "judge": set()}
    for path in Path(benchmarks.__path__[0]).rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.Attribute) and node.attr in users:
                        users[node.attr].add((path.name, function.name))
    # a fitted predictor that comes with the package says on its card how it did on the test split
    assert users["judge"] == {("trial.py", "_fit_and_judge"), ("pretrain.py", "_tests")}
    assert users["_test"] == {("data.py", "judge"), ("data.py", "_moved_test")}
    assert users["_moved_test"] == {("data.py", "judge")}
    # where a network answers several questions at once, or reads stored features, it is fitted before
    elsewhere = {("recipe.py", "_measure"), ("scale.py", "_judge")}
    assert users["open_test"] == {("data.py", "_test"), ("data.py", "test_elsewhere"), *elsewhere}


@pytest.mark.long
def test_the_same_trial_twice_gives_the_same_numbers_and_is_computed_once(tmp_path: Path):
    data = invent_data(120, 30, 40, invariant_label)
    trials = trials_of(READERS, epochs=1, seeds=1)
    first = run(trials, data, tmp_path / "first")
    half = run(trials[::2], data, tmp_path / "second")
    rest = run(trials, data, tmp_path / "second")
    for trial in dict.fromkeys(trials):
        np.testing.assert_array_equal(first[trial].predicted, rest[trial].predicted, str(trial))
    for trial, outcome in half.items():
        assert rest[trial].notes == outcome.notes, "the seconds too: it was read, not computed"


def test_rows_in_another_order_are_not_taken_for_all_rows():
    rows = invent_data(5, 5, 5, random_label).train
    assert rows.take(np.arange(5)) is rows
    assert rows.take(np.arange(5)[::-1].copy()).runs.tolist() == rows.runs[::-1].tolist()


def test_a_threshold_with_too_few_rows_is_left_out(tmp_path: Path):
    data = invent_data(60, 20, 30, random_label)
    finished = run(trials_of(("mlp",), epochs=1, threshold=0.999), data, tmp_path)
    assert not finished
    assert len(data.train.at_least(0.999)) < 2


def test_a_damaged_file_of_trials_is_one_clear_line(tmp_path: Path):
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells" / "mnist.mlp.safetensors").write_bytes(b"half a file")
    with pytest.raises(ValueError, match=r"mnist.mlp.safetensors is damaged .*delete it"):
        TrialStore(tmp_path).find(trials_of(("mlp",), epochs=1))


def test_the_same_fit_for_two_tables_is_one_trial():
    plain = Trial("kendall", "agnews", "transformer_nfn", 0, "z", epochs=50)
    assert Trial("ablation_width", "agnews", "transformer_nfn", 0, "z", epochs=50, channels=(10,)).key == plain.key
    others = [
        Trial("kendall", "agnews", "transformer_nfn", 0, "z", epochs=50, channels=(5,)),
        Trial("kendall", "agnews", "transformer_nfn", 1, "z", epochs=50),
        Trial("kendall", "agnews", "transformer_nfn", 0, "y", epochs=50),
        Trial("kendall", "agnews", "transformer_nfn", 0, "z", epochs=51),
        Trial("kendall", "agnews", "transformer_nfn", 0, "z", epochs=50, checkpoint="all"),
        Trial("kendall", "agnews", "transformer_nfn", 0, "z", epochs=50, entry_range=1.0),
        Trial("kendall", "agnews", "transformer_nfn", 0, "z", epochs=50, rows=250),
        *(replace(plain, elsewhere=Elsewhere(*place)) for place in PLACES),
    ]
    assert len({trial.key for trial in (plain, *others)}) == 8 + len(PLACES)


@pytest.mark.long
def test_a_row_leads_back_to_its_trial_and_committed_trials_are_still_found():
    plain = Trial("transfer", "agnews", "gauge_nfn", 1, "z", epochs=50, recipe="gauge")
    for trial in (plain, replace(plain, rows=250), replace(plain, elsewhere=Elsewhere(*PLACES[0]))):
        (row,) = Entry(trial, (outcome([0.1, 0.2], [0.3, 0.4]),)).rows("tau", [1.0])
        assert Trial.of_row(row, seed=1) == trial
    rows = [row for row in results.read("kendall") if row.metric == "tau" and row.setting.get("recipe") == "paper"]
    trials = [Trial.of_row(ResultIndex.latest(rows, "mnist").rows[-1], seed=0)]
    assert list(TrialStore(results.FOLDER).find(trials)) == trials


@pytest.mark.parametrize("model", [name for name in READERS if MODELS[name].fit is not None])
def test_two_rows_are_enough_to_fit_and_give_a_constant(model: str):
    train, validation = invent(2, 0, random_label), invent(2, 1, random_label)
    fit = MODELS[model].fit
    assert fit is not None
    (fitted,) = fit(train, validation, [0], 1)
    np.testing.assert_allclose(fitted.predict(validation), train.truth().mean(), rtol=1e-5)


def test_on_a_gpu_the_seeds_of_a_predictor_are_one_group():
    data = invent_data(60, 30, 30, invariant_label)
    trials = [
        trial
        for threshold in (0.0, 0.5)
        for trial in trials_of(("mlp", "random_forest"), epochs=2, seeds=3, threshold=threshold)
    ]
    on_gpu = replace(data.train, weights=data.train.weights.to("meta"))
    data_on_gpu = BenchmarkData(
        on_gpu, data.validation, lambda: on_gpu, config="mnist", fingerprint="invented", test_examples=1000
    )
    assert sorted(len(group) for group in trial_module._groups(trials, data)) == [1, 1, 1, 1, 1, 1, 3, 3]
    assert sorted(len(group) for group in trial_module._groups(trials, data_on_gpu)) == [3, 3, 3, 3]
    neural = [trial for trial in trials if trial.model == "mlp"]
    together = trial_module._fit(neural[:3], data) | trial_module._fit(neural[3:], data)
    for trial in neural:
        alone = trial_module._fit([trial], data)[trial]
        np.testing.assert_allclose(
            together[trial].predict(data.validation), alone.predict(data.validation), atol=1e-3, err_msg=str(trial)
        )
