"""Computes the trials that are not finished yet: fit on train, choose on validation, judge on test, store."""

import ctypes
import gc
import importlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import nn

from benchmarks.data import MIN_ROWS, TEST_FILES, BenchmarkData, NotFinite, Outcome
from benchmarks.models.registry import FittedModel, builder, known_models
from benchmarks.models.training import EPOCHS, RECIPES, TrainingGroup, train_one_by_one, train_together
from benchmarks.results import describe_device
from benchmarks.trial import Trial, TrialStore
from nfn.predictors.ranks import Ranks

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_Advance = Callable[[str, int], None]
"""Called with the work under way and how many more trials are done."""


@dataclass
class Finished:
    """All outcomes of a plan, and why some trials have none."""

    outcomes: dict[Trial, Outcome] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    """Model → why it cannot be computed here, or has no finite predictions."""


def compute(
    trials: Sequence[Trial], data: BenchmarkData, store: TrialStore, *, jobs: int, advance: _Advance
) -> Finished:
    """The outcomes of the trials; those in the store are not computed again."""
    finished = Finished(outcomes=_known(trials, data, store))
    advance("reading finished trials", len(finished.outcomes))
    wanted = set(trials)
    for group in groups(to_fit(trials, data, store), data):
        model = known_models()[group[0].model]
        advance(_label(group), 0)
        missing = model.missing()
        if missing is not None:
            finished.skipped[model.name] = missing
        else:
            possible = [trial for trial in group if min(data.rows_at_least(trial.threshold)) >= MIN_ROWS]
            try:
                outcomes = fit_and_judge(possible, data, jobs) if possible else {}
            except NotFinite as error:
                finished.skipped[model.name] = str(error)
            else:
                store.add(outcomes)
                finished.outcomes |= {trial: outcome for trial, outcome in outcomes.items() if trial in wanted}
        advance(_label(group), len(wanted.intersection(group)))
    averages = _averaged([trial for trial in trials if trial.parts and trial not in finished.outcomes], data, store)
    finished.outcomes |= averages
    advance("averaging", len(averages))
    return finished


def _known(trials: Sequence[Trial], data: BenchmarkData, store: TrialStore) -> dict[Trial, Outcome]:
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


def _averaged(trials: Sequence[Trial], data: BenchmarkData, store: TrialStore) -> dict[Trial, Outcome]:
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


def groups(trials: Sequence[Trial], data: BenchmarkData) -> Iterator[list[Trial]]:
    """Trials that are fitted in one go.

    On a GPU all seeds and thresholds of a neural predictor train together. On a CPU that gains nothing, and the last
    digits of a trial that is fitted alone do not depend on the others: a table that is interrupted and started again
    comes out the same. Trees of the same rows share the work of preparing them.
    """
    together: dict[tuple, list[Trial]] = {}
    for trial in trials:
        apart: tuple = ()
        benchmark_model = known_models()[trial.model]
        if not benchmark_model.neural:
            apart = (trial.threshold,)
        elif data.train.weights.device.type == "cpu" or benchmark_model.module is not None:
            apart = (trial.threshold, trial.seed)
        key = (trial.model, trial.recipe, trial.epochs, trial.components, trial.channels, apart)
        together.setdefault(key, []).append(trial)
    yield from together.values()


def _label(group: Sequence[Trial]) -> str:
    thresholds = sorted({trial.threshold for trial in group})
    suffix = "" if thresholds == [0.0] else f", ≥ {', '.join(f'{threshold:.0%}' for threshold in thresholds)}"
    return f"{group[0].config}: {known_models()[group[0].model].title}{suffix}"


def fit_and_judge(trials: Sequence[Trial], data: BenchmarkData, jobs: int) -> dict[Trial, Outcome]:
    """Fits the trials of one group. Only when every choice is made is each judged on test, once."""
    benchmark_model = known_models()[trials[0].model]
    device = data.train.weights.device if benchmark_model.neural else torch.device("cpu")
    if benchmark_model.library is not None:
        importlib.import_module(benchmark_model.library)  # before the clock starts
    fits = list(dict.fromkeys(trial.fit for trial in trials))
    before = _reset_peak_memory(device)
    start = time.perf_counter()
    fitted = fit_neural(fits, data) if benchmark_model.neural else _fit_other(fits, data, jobs)
    cost = {
        "wall_seconds": (time.perf_counter() - start) / len(fits),
        "peak_memory_megabytes": None if before is None else max(0.0, _peak_memory(device) - before),
        "fitted_together": len(fits),
        "device": describe_device(device),
    }
    return {trial: _judged(trial, fitted[trial.fit], data, cost) for trial in trials}


def fit_neural(trials: Sequence[Trial], data: BenchmarkData) -> Mapping[Trial, FittedModel]:
    first = trials[0]
    by_threshold = {
        threshold: [trial for trial in trials if trial.threshold == threshold]
        for threshold in dict.fromkeys(trial.threshold for trial in trials)
    }
    training_groups = [
        TrainingGroup(
            data.train.at_least(threshold), data.validation.at_least(threshold), tuple(trial.seed for trial in members)
        )
        for threshold, members in by_threshold.items()
    ]
    module: Callable[..., nn.Module] | None = known_models()[first.model].module
    if module is None:
        build = builder(first.model, data.train.spec, first.channels, first.components)
        train = partial(train_together, build)
    else:
        train = partial(train_one_by_one, lambda generator: module(data.train.spec, generator=generator))
    fitted = train(training_groups, data.train, data.validation, RECIPES[first.recipe], first.epochs or EPOCHS)
    return {
        trial: predictor
        for members, predictors in zip(by_threshold.values(), fitted, strict=True)
        for trial, predictor in zip(members, predictors, strict=True)
    }


def _fit_other(trials: Sequence[Trial], data: BenchmarkData, jobs: int) -> Mapping[Trial, FittedModel]:
    """The trials of one model and threshold."""
    first = trials[0]
    fit = known_models()[first.model].fit
    assert fit is not None
    train = data.train.take(data.train.at_least(first.threshold))
    validation = data.validation.take(data.validation.at_least(first.threshold))
    fitted = fit(train, validation, [trial.seed for trial in trials], jobs)
    return dict(zip(trials, fitted, strict=True))


def _judged(trial: Trial, fitted: FittedModel, data: BenchmarkData, cost: dict[str, float | str | None]) -> Outcome:
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
