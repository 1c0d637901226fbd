"""Computes the trials that are not finished yet: fit on train, choose on validation, judge on test, store."""

import ctypes
import gc
import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from benchmarks.data import MIN_ROWS, TEST_FILES, BenchmarkData, Fitted, NotFinite, Outcome
from benchmarks.models.registry import builder, known_models
from benchmarks.models.training import RECIPES, TrainingGroup, train_one_by_one, train_together
from benchmarks.options import EPOCHS
from benchmarks.results import describe_device
from benchmarks.trial import Trial, TrialStore
from nfn.predictors.ranks import Ranks

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
Outcomes = dict[Trial, Outcome]
_Advance = Callable[[str, int], None]
"""Called with the work under way and how many more trials are done."""


def compute(
    trials: Sequence[Trial], data: BenchmarkData, store: TrialStore, *, jobs: int, advance: _Advance
) -> tuple[Outcomes, dict[str, str]]:
    """The outcomes of the trials, and model → why it cannot be computed here, or has no finite predictions.

    Trials that are in the store are not computed again.
    """
    finished, skipped = _known(trials, data, store), {}
    advance("reading finished trials", len(finished))
    wanted = set(trials)
    for group in groups(to_fit(trials, data, store), data):
        model = known_models()[group[0].model]
        advance(_label(group), 0)
        possible = [trial for trial in group if min(data.rows_at_least(trial.threshold)) >= MIN_ROWS]
        if missing := model.missing():
            skipped[model.name] = missing
        elif possible:
            try:
                outcomes = fit_and_judge(possible, data, jobs)
            except NotFinite as error:
                skipped[model.name] = str(error)
            else:
                store.add(outcomes)
                finished |= {trial: outcome for trial, outcome in outcomes.items() if trial in wanted}
        advance(_label(group), len(wanted.intersection(group)))
    averages = _averaged([trial for trial in trials if trial.parts and trial not in finished], data, store)
    advance("averaging", len(averages))
    return finished | averages, skipped


def _known(trials: Sequence[Trial], data: BenchmarkData, store: TrialStore) -> Outcomes:
    """The finished ones among the trials: in the store, and not judged on test rows that the zoo had before.

    A trial from before this was noted is taken as it is.
    """

    def is_current(trial: Trial, outcome: Outcome) -> bool:
        return outcome.notes.get(TEST_FILES) in (None, data.tested_on(trial.elsewhere).test_files)

    return {trial: outcome for trial, outcome in store.find(list(trials)).items() if is_current(trial, outcome)}


def to_fit(trials: Sequence[Trial], data: BenchmarkData, store: TrialStore) -> list[Trial]:
    """The trials that are not finished; in place of an average, its unfinished parts."""
    finished = _known(trials, data, store)
    fits = {fit: None for trial in trials if trial not in finished for fit in trial.parts or (trial,)}
    fitted = _known(list(fits), data, store)
    return [fit for fit in fits if fit not in fitted]


def _averaged(trials: Sequence[Trial], data: BenchmarkData, store: TrialStore) -> Outcomes:
    """The averages whose parts are all finished; they are stored like any other outcome."""
    found = _known([part for trial in trials for part in trial.parts], data, store)
    outcomes = {
        trial: average([found[part] for part in trial.parts], data.train.truth()[data.train.at_least(trial.threshold)])
        for trial in trials
        if all(part in found for part in trial.parts)
    }
    if outcomes:
        store.add(outcomes)
    return outcomes


def groups(trials: Sequence[Trial], data: BenchmarkData) -> list[list[Trial]]:
    """Trials that are fitted in one go.

    On a GPU all seeds and thresholds of a neural predictor train together. On a CPU that gains nothing, and the last
    digits of a trial that is fitted alone do not depend on the others: a table that is interrupted and started again
    comes out the same. Trees of the same rows share the work of preparing them.
    """
    together: dict[Trial, list[Trial]] = {}
    for trial in trials:
        model = known_models()[trial.model]
        alone = model.neural and (data.train.weights.device.type == "cpu" or not model.stacked)
        shared = {} if alone else {"seed": 0, "threshold": 0.0} if model.neural else {"seed": 0}
        together.setdefault(replace(trial.fit, **shared), []).append(trial)
    return list(together.values())


def _label(group: Sequence[Trial]) -> str:
    thresholds = sorted({trial.threshold for trial in group})
    suffix = "" if thresholds == [0.0] else f", ≥ {', '.join(f'{threshold:.0%}' for threshold in thresholds)}"
    return f"{group[0].config}: {known_models()[group[0].model].title}{suffix}"


def fit_and_judge(trials: Sequence[Trial], data: BenchmarkData, jobs: int) -> Outcomes:
    """Fits the trials of one group. Only when every choice is made is each judged on test, once."""
    model = known_models()[trials[0].model]
    device = data.train.weights.device if model.neural else torch.device("cpu")
    if model.library is not None:
        importlib.import_module(model.library)  # before the clock starts
    fits = list(dict.fromkeys(trial.fit for trial in trials))
    before = _reset_peak_memory(device)
    start = time.perf_counter()
    fitted = fit(fits, data, jobs)
    cost = {
        "wall_seconds": (time.perf_counter() - start) / len(fits),
        "peak_memory_megabytes": None if before is None else max(0.0, _peak_memory(device) - before),
        "fitted_together": len(fits),
        "device": describe_device(device),
    }
    return {trial: _judged(trial, fitted[trial.fit], data, cost) for trial in trials}


def fit(trials: Sequence[Trial], data: BenchmarkData, jobs: int = 1) -> dict[Trial, Fitted]:
    """The trials of one group, fitted: one model by one recipe, at several seeds and perhaps thresholds."""
    first, model = trials[0], known_models()[trials[0].model]
    by_threshold: dict[float, list[Trial]] = {}
    for trial in trials:
        by_threshold.setdefault(trial.threshold, []).append(trial)
    training_groups = [
        TrainingGroup(data.train.at_least(at), data.validation.at_least(at), tuple(trial.seed for trial in members))
        for at, members in by_threshold.items()
    ]
    if model.fit is not None:
        fitted = [
            model.fit(data.train.take(each.rows), data.validation.take(each.validation), each.seeds, jobs)
            for each in training_groups
        ]
    else:
        train = train_together if model.stacked else train_one_by_one
        build = builder(model.name, data.train.spec, first.channels, first.components)
        recipe = RECIPES[first.recipe]
        fitted = train(build, training_groups, data.train, data.validation, recipe, first.epochs or EPOCHS)
    return dict(zip(chain(*by_threshold.values()), chain(*fitted), strict=True))


def _judged(trial: Trial, fitted: Fitted, data: BenchmarkData, cost: dict[str, float | str | None]) -> Outcome:
    outcome = data.tested_on(trial.elsewhere).judge(fitted, trial.threshold, trial.model)
    notes = {
        "validation_tau": fitted.validation_tau if np.isfinite(fitted.validation_tau) else None,
        "epoch": fitted.epoch,
        "epochs": fitted.epochs,
        "parameters": fitted.parameters,
    }
    return replace(outcome, notes=outcome.notes | notes | cost)


def average(outcomes: Sequence[Outcome], training_accuracies: Float[np.ndarray, " m"]) -> Outcome:
    """The average of several predictors, from their finished outcomes: nothing is fitted, nothing chosen.

        p(x) = F⁻¹((1/k)·Σ_i F(p_i(x)))     F(a): the rank of accuracy a among the training accuracies, from 0 to 1

    Accuracies themselves would be averaged badly: a predictor whose predictions are spread more widely would decide the
    order alone, and half a point means much near the best runs and nothing among the failed ones. Ranks are what
    Gauge-NFN and the trees on hyperparameters are fitted to predict: where one of them is unsure, it predicts a rank
    near the middle and so weighs less. And this rank of a row does not depend on the other test rows, as one among the
    predictions of the test split would.
    """
    first = outcomes[0]
    assert all(np.array_equal(outcome.truth, first.truth) for outcome in outcomes), "they are of the same test rows"
    ranks = Ranks.among(training_accuracies)
    mean_ranks = np.mean([ranks.of(outcome.predicted) for outcome in outcomes], axis=0)

    def total(note: str) -> float | None:
        values = [outcome.notes[note] for outcome in outcomes]
        numbers = [value for value in values if isinstance(value, int | float)]
        return float(sum(numbers)) if len(numbers) == len(values) else None

    notes = first.notes | dict.fromkeys(("validation_tau", "epoch", "epochs", "mean_change", "fitted_together"))
    notes |= {note: total(note) for note in ("parameters", "wall_seconds")}
    return replace(first, predicted=ranks.accuracy_at(mean_ranks).astype(np.float32), notes=notes)


def _reset_peak_memory(device: torch.device) -> float | None:
    """Counts the peak from here on, and returns the megabytes in use; None where the system does not report them.

    On a GPU it is the memory of the device, on a CPU that of the process, after returning what earlier work freed.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device) / 2**20
    try:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        _RESET.write_text("5")
        return _resident("VmRSS")
    except (OSError, AttributeError):
        return None


def _peak_memory(device: torch.device) -> float:
    return torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else _resident("VmHWM")


def _resident(name: str) -> float:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 1024
