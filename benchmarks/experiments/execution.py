"""Computes the trials that are not finished yet: fit on train, choose on validation, judge on test, store."""

import importlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import nn

from benchmarks.data.benchmark_data import MIN_ROWS, BenchmarkData, NotFinite
from benchmarks.experiments.average import average
from benchmarks.experiments.memory import measured_memory
from benchmarks.experiments.trial import Outcome, Trial
from benchmarks.experiments.trial_store import TrialStore
from benchmarks.models.registry import FittedModel, builder, known_models
from benchmarks.models.schedule import EPOCHS, RECIPES
from benchmarks.models.training_apart import train_apart
from benchmarks.models.training_group import TrainingGroup, train_together
from benchmarks.results import describe_device
from benchmarks.tables.markdown import threshold_title

TEST_FILES = "test_files"  # the note that says on which test rows a trial was judged
Advance = Callable[[str, int], None]
"""Receives what is being computed and how many more trials are done."""


@dataclass
class Finished:
    """All outcomes of a plan, and why some trials have none."""

    outcomes: dict[Trial, Outcome] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    """Model → why it cannot be computed here, or has no finite predictions."""
    rows: dict[float, dict[str, int]] = field(default_factory=dict)
    """Threshold → rows of train and validation."""


def compute(
    trials: Sequence[Trial], data: BenchmarkData, store: TrialStore, *, jobs: int, advance: Advance
) -> Finished:
    """The outcomes of the trials; those in the store are not computed again."""
    finished = Finished(outcomes=known(trials, data, store))
    advance("reading finished trials", len(finished.outcomes))
    finished.rows = {
        threshold: {
            "train_rows": len(data.train.at_least(threshold)),
            "validation_rows": len(data.validation.at_least(threshold)),
        }
        for threshold in dict.fromkeys(trial.threshold for trial in trials)
    }
    wanted = set(trials)
    for group in groups(to_fit(trials, data, store), data):
        model = known_models()[group[0].model]
        advance(label(group), 0)
        missing = model.missing()
        if missing is not None:
            finished.skipped[model.name] = missing
        else:
            possible = [trial for trial in group if min(finished.rows[trial.threshold].values()) >= MIN_ROWS]
            try:
                outcomes = fit_and_judge(possible, data, jobs) if possible else {}
            except NotFinite as error:
                finished.skipped[model.name] = str(error)
            else:
                store.add(outcomes)
                finished.outcomes |= {trial: outcome for trial, outcome in outcomes.items() if trial in wanted}
        advance(label(group), len(wanted.intersection(group)))
    averages = averaged([trial for trial in trials if trial.parts and trial not in finished.outcomes], data, store)
    finished.outcomes |= averages
    advance("averaging", len(averages))
    return finished


def known(trials: Sequence[Trial], data: BenchmarkData, store: TrialStore) -> dict[Trial, Outcome]:
    """Those of the trials that are finished: in the store, and not judged on test rows that the zoo had before.

    Those that were stored before trials said what they were judged on are taken as they are.
    """

    def is_current(trial: Trial, outcome: Outcome) -> bool:
        return outcome.notes.get(TEST_FILES) in (None, data.tested_on(trial.elsewhere).test_files)

    return {trial: outcome for trial, outcome in store.find(list(trials)).items() if is_current(trial, outcome)}


def to_fit(trials: Sequence[Trial], data: BenchmarkData, store: TrialStore) -> list[Trial]:
    """The trials that are not finished; in place of an average, those of its parts that are not."""
    finished = known(trials, data, store)
    fits = {fit: None for trial in trials if trial not in finished for fit in trial.parts or (trial,)}
    fitted = known(list(fits), data, store)
    return [fit for fit in fits if fit not in fitted]


def averaged(trials: Sequence[Trial], data: BenchmarkData, store: TrialStore) -> dict[Trial, Outcome]:
    """The averages whose parts are all finished; they are stored like any other outcome."""
    found = known([part for trial in trials for part in trial.parts], data, store)
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


def label(group: Sequence[Trial]) -> str:
    thresholds = sorted({trial.threshold for trial in group})
    suffix = "" if thresholds == [0.0] else f", {', '.join(map(threshold_title, thresholds))}"
    return f"{group[0].config}: {known_models()[group[0].model].title}{suffix}"


def fit_and_judge(trials: Sequence[Trial], data: BenchmarkData, jobs: int) -> dict[Trial, Outcome]:
    """Fits the trials of one group. Only when every choice is made is each judged on test, once."""
    benchmark_model = known_models()[trials[0].model]
    device = data.train.weights.device if benchmark_model.neural else torch.device("cpu")
    if benchmark_model.library is not None:
        importlib.import_module(benchmark_model.library)  # before the clock starts
    fits = list(dict.fromkeys(trial.fit for trial in trials))
    with measured_memory(device) as memory:
        start = time.perf_counter()
        fitted = fit_neural(fits, data) if benchmark_model.neural else fit_other(fits, data, jobs)
        seconds = time.perf_counter() - start
    cost = {
        "wall_seconds": seconds / len(fits),
        "peak_memory_megabytes": memory.megabytes,
        "fitted_together": len(fits),
        "device": describe_device(device),
    }
    return {trial: judged(trial, fitted[trial.fit], data, cost) for trial in trials}


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
        train = partial(train_apart, lambda generator: module(data.train.spec, generator=generator))
    fitted = train(training_groups, data.train, data.validation, RECIPES[first.recipe], first.epochs or EPOCHS)
    return {
        trial: predictor
        for members, predictors in zip(by_threshold.values(), fitted, strict=True)
        for trial, predictor in zip(members, predictors, strict=True)
    }


def fit_other(trials: Sequence[Trial], data: BenchmarkData, jobs: int) -> Mapping[Trial, FittedModel]:
    """The trials of one model and threshold."""
    first = trials[0]
    fit = known_models()[first.model].fit
    assert fit is not None
    train = data.train.take(data.train.at_least(first.threshold))
    validation = data.validation.take(data.validation.at_least(first.threshold))
    fitted = fit(train, validation, [trial.seed for trial in trials], jobs)
    return dict(zip(trials, fitted, strict=True))


def judged(trial: Trial, fitted: FittedModel, data: BenchmarkData, cost: dict[str, float | str | None]) -> Outcome:
    tested = data.tested_on(trial.elsewhere)
    verdict = tested.judge(fitted, trial.threshold, trial.model)
    notes = {
        TEST_FILES: tested.test_files,
        "validation_tau": fitted.validation_tau if np.isfinite(fitted.validation_tau) else None,
        "epoch": fitted.epoch,
        "epochs": fitted.epochs,
        "parameters": fitted.parameters,
        "mean_change": verdict.mean_change,
    }
    return Outcome(verdict.predicted, verdict.truth, verdict.runs, notes | cost, verdict.configurations)
