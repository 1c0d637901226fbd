"""The average of two predictors, and how far each predictor is above the one that reads hyperparameters only."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import rankdata

from benchmarks import kendall, results, tables
from benchmarks import trial as trial_module
from benchmarks.experiment import Entry, _entry_rows
from benchmarks.models import trees
from benchmarks.models.registry import MODELS, weight_models
from benchmarks.results import ResultIndex
from benchmarks.statistics import kendall_tau
from benchmarks.tables import render_table
from benchmarks.trial import Trial, TrialStore, _average, to_fit
from nfn.predictors.ranks import Ranks
from tests.benchmarks.synthetic import invent_data, random_label
from tests.benchmarks.test_experiments import outcome, run

AVERAGE = "gauge_nfn_hyperparameters"


def test_the_average_is_that_of_places_among_the_training_accuracies() -> None:
    training = np.array([0.1, 0.2, 0.3, 0.9, 1.0], dtype=np.float32)
    parts = [
        outcome([0.1, 0.3, 1.0, 0.9], [0.2, 0.3, 0.8, 0.9], parameters=10, wall_seconds=1.0),
        outcome([0.3, 0.3, 0.2, 0.9], [0.2, 0.3, 0.8, 0.9], parameters=5, wall_seconds=2.0),
    ]
    both = _average(parts, training)
    # places 0 and ½, ½ and ½, 1 and ¼, ¾ and ¾
    np.testing.assert_allclose(both.predicted, [0.2, 0.3, 0.6, 0.9], rtol=1e-6)
    np.testing.assert_array_equal(both.truth, parts[0].truth)
    assert (both.notes["parameters"], both.notes["wall_seconds"], both.notes["validation_tau"]) == (15, 3, None)
    with pytest.raises(AssertionError, match="the same test rows"):
        _average([parts[0], outcome([0.1, 0.2], [0.3, 0.4])], training)


@pytest.mark.long
def test_an_average_needs_no_fit_of_parts_that_are_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "_ROUNDS", 20)
    data = invent_data(60, 20, 30, random_label)
    both = [Trial("kendall", "mnist", AVERAGE, seed, "z", epochs=1, recipe="gauge").normalized() for seed in (0, 1)]
    parts = [part for trial in both for part in trial.parts]
    assert [(part.model, part.seed, part.recipe) for part in parts] == [
        ("gauge_nfn", 0, "gauge"),
        ("hyperparameters", 0, "paper"),
        ("gauge_nfn", 1, "gauge"),
        ("hyperparameters", 0, "paper"),
    ]
    store = TrialStore(tmp_path)
    assert to_fit(both, data, store) == list(dict.fromkeys(parts))
    run(parts, data, tmp_path)
    assert to_fit(both, data, store) == []
    monkeypatch.setattr(trial_module, "_fit_and_judge", None)
    finished = run(both, data, tmp_path)
    assert list(finished) == both, "parts that were not asked for have no row"
    ranks = Ranks.among(data.train.truth())
    found = store.find(parts)
    for trial in both:
        places = [ranks.of(found[part].predicted) for part in trial.parts]
        expected = rankdata(np.round(sum(places), 5))
        assert kendall_tau(finished[trial].predicted, expected) > 0.99
    assert store.find(both).keys() == set(both)


def test_an_average_is_another_trial_when_a_part_is_fitted_in_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial("kendall", "mnist", AVERAGE, 0, "z", epochs=1, recipe="gauge").normalized()
    before = trial.key
    monkeypatch.setitem(MODELS, "gauge_nfn", replace(MODELS["gauge_nfn"], edition=9))
    assert trial.key != before


def entry(model: str, predicted: np.ndarray, truth: np.ndarray) -> Entry:
    made = outcome(predicted.tolist(), truth.tolist())
    return Entry(Trial("kendall", "mnist", model, 0, "z", recipe=MODELS[model].recipe), (made,))


def test_the_paired_interval_above_hyperparameters_covers_and_is_narrower_than_the_two() -> None:
    """Two predictors that share most of their error: the difference of their τ is far more certain than either."""
    draw = np.random.default_rng(0)
    differences, inside = [], 0
    for _ in range(20):
        truth = draw.uniform(size=120)
        shared = truth + 0.3 * draw.normal(size=120)
        weights, reference = (shared + 0.1 * draw.normal(size=120) for _ in range(2))
        rows = _entry_rows([entry("mlp", weights, truth), entry("hyperparameters", reference, truth)])
        index = ResultIndex.latest(rows, "mnist")
        above = index.value("tau_above_hyperparameters", "mlp")
        interval = index.interval("tau_above_hyperparameters", "mlp")
        alone = index.interval("tau", "mlp")
        assert above is not None
        assert interval is not None
        assert alone is not None
        assert above == pytest.approx(kendall_tau(weights, truth) - kendall_tau(reference, truth), abs=1e-6)
        assert interval[1] - interval[0] < alone[1] - alone[0]
        differences.append(above)
        inside += interval[0] <= 0 <= interval[1]  # both are equally good, so the true difference is 0
        assert index.find("tau_above_hyperparameters", "hyperparameters") is None
    assert inside >= 17
    assert min(differences) < 0 < max(differences)


@pytest.mark.long
def test_the_average_is_shown_with_its_lead_and_never_as_the_leader(
    tiny_zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "_ROUNDS", 20)
    monkeypatch.setattr(tables, "_FEWEST_RUNS", 1)  # so few test runs have no leader otherwise
    assert AVERAGE not in weight_models()
    options = ["--zoo", str(tiny_zoo), "--out", str(tmp_path), "--epochs", "1", "--quick", "--jobs", "1"]
    kendall.main([*options, "--models", "gauge_nfn", "hyperparameters"])
    monkeypatch.setattr(trial_module, "_fit_and_judge", None)
    kendall.main([*options, "--models", "gauge_nfn", "hyperparameters", AVERAGE])
    rows = results.read("kendall", tmp_path)
    best = [row for row in rows if row.metric == "tau" and row.model == AVERAGE]
    assert len(best) == 1
    index = ResultIndex.latest([*rows, replace(best[0], value=0.99)], "mnist")
    table = render_table("kendall", {"mnist": index})
    assert "| Gauge-NFN averaged with hyperparameters only | 0.990" in table
    assert "| Gauge-NFN | **" in table
    assert "| τ behind the leader (bold) | τ above hyperparameters only |" in table
    assert "the mean of the ranks that both predict" in table
