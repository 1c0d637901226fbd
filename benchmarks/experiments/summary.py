"""From finished trials to result rows: means over seeds with their errors, intervals over test runs, differences."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata, util

import numpy as np

from benchmarks.data.benchmark_data import BenchmarkData
from benchmarks.experiments.execution import Finished
from benchmarks.experiments.trial import Outcome, Trial
from benchmarks.models.registry import MODELS, SIX_MODELS
from benchmarks.results import Result, Scalar
from benchmarks.statistics.ranking import kendall_tau
from benchmarks.statistics.uncertainty import (
    Interval,
    bootstrap_taus,
    coefficient_of_determination,
    noise_ceiling,
    resample_runs,
    standard_error,
)

NOTED = (
    "mean_change",
    "wall_seconds",
    "peak_memory_megabytes",
    "fitted_together",
    "parameters",
    "validation_tau",
    "epoch",
    "epochs",
)
# trials that differ in nothing here have the same test rows
COLUMN = ("threshold", "checkpoint", "entry_range", "where")


@dataclass(frozen=True)
class Entry:
    """One entry of a table: the trials that differ in their seed alone."""

    trial: Trial
    outcomes: tuple[Outcome, ...]

    @property
    def truth(self) -> np.ndarray:
        return self.outcomes[0].truth

    @property
    def rankable(self) -> bool:
        return len(self.truth) >= 2 and bool(np.ptp(self.truth) > 0)

    def taus(self) -> list[float]:
        """One a seed; a constant prediction ranks nothing and counts as 0."""
        found = [kendall_tau(one.predicted, one.truth) for one in self.outcomes]
        return [0.0 if math.isnan(tau) else tau for tau in found]

    def constant(self) -> int:
        return sum(bool(np.ptp(one.predicted) == 0) for one in self.outcomes)


def entries_of(outcomes: Mapping[Trial, Outcome]) -> list[Entry]:
    groups: dict[str, list[Trial]] = {}
    for trial in outcomes:
        groups.setdefault(json.dumps(trial.across_seeds(), sort_keys=True), []).append(trial)
    by_seed = (sorted(trials, key=lambda trial: trial.seed) for trials in groups.values())
    return [Entry(trials[0], tuple(outcomes[trial] for trial in trials)) for trials in by_seed]


def summarise(finished: Finished, data: BenchmarkData, trials: Sequence[Trial]) -> list[Result]:
    """All rows of a table: of every entry, and of the data under each column."""
    rows: list[Result] = []
    entries = entries_of(finished.outcomes)
    for column in dict.fromkeys(column_of(trial) for trial in trials):
        own = [entry for entry in entries if column_of(entry.trial) == column]
        sample = next(trial for trial in trials if column_of(trial) == column)
        rows += data_rows(sample, own, finished, data)
        rows += entry_rows([entry for entry in own if entry.rankable])
    return rows


def column_of(trial: Trial) -> tuple:
    return tuple(getattr(trial, name) for name in COLUMN)


def data_rows(sample: Trial, entries: Sequence[Entry], finished: Finished, data: BenchmarkData) -> list[Result]:
    """Rows of each split, and the noise ceiling of τ."""
    setting = {name: value for name, value in setting_of(sample).items() if name in (*COLUMN, "zoo")}

    def row(metric: str, value: float) -> Result:
        return Result.measured(
            sample.benchmark, sample.config, metric, value, n=1, device="cpu", variant="data", setting=setting
        )

    rows = [row(name, count) for name, count in finished.rows[sample.threshold].items()]
    if entries:
        rows.append(row("test_rows", len(entries[0].truth)))
        ceiling = noise_ceiling(entries[0].truth, data.test_examples) if entries[0].rankable else None
        if ceiling is not None:
            rows.append(row("noise_ceiling", ceiling))
    return rows


def entry_rows(entries: Sequence[Entry]) -> list[Result]:
    """Rows of the entries of one column. The leader has the highest mean τ by the paper's recipe, and reads weights."""
    if not entries:
        return []
    counts = resample_runs(entries[0].outcomes[0].runs)
    resamples = [bootstrap_taus([one.predicted for one in entry.outcomes], entry.truth, counts) for entry in entries]
    means = [float(np.mean(entry.taus())) for entry in entries]
    trials = [entry.trial for entry in entries]
    merits = [
        (trial.recipe == "paper", trial.model in SIX_MODELS, mean) for trial, mean in zip(trials, means, strict=True)
    ]
    leader = merits.index(max(merits))
    rows = []
    for entry, mean, own in zip(entries, means, resamples, strict=True):
        assert np.array_equal(entry.truth, entries[0].truth), "a column has one test set"
        rows.append(row_of(entry, "tau", mean, standard_error(entry.taus())))
        rows += interval_rows(entry, "tau", Interval.of(own))
        rows.append(row_of(entry, "tau_behind_leader", means[leader] - mean))
        rows += interval_rows(entry, "tau_behind_leader", Interval.of(resamples[leader] - own))
        r2 = [coefficient_of_determination(one.predicted, one.truth) for one in entry.outcomes]
        rows.append(row_of(entry, "r2", float(np.mean(r2)), standard_error(r2)))
        rows.append(row_of(entry, "constant_seeds", entry.constant()))
        for name in NOTED:
            values = [value for one in entry.outcomes if isinstance(value := one.notes[name], int | float)]
            if values:
                rows.append(row_of(entry, name, float(np.mean(values)), standard_error(values)))
    return rows


def interval_rows(entry: Entry, metric: str, interval: Interval | None) -> Iterable[Result]:
    if interval is not None:
        yield row_of(entry, f"{metric}_low", interval.low)
        yield row_of(entry, f"{metric}_high", interval.high)


def row_of(entry: Entry, metric: str, value: float, stderr: float | None = None) -> Result:
    trial = entry.trial
    row = Result.measured(
        trial.benchmark,
        trial.config,
        metric,
        value,
        stderr=stderr,
        n=len(entry.outcomes),
        device="cpu",
        model=trial.model,
        setting=setting_of(trial),
        packages=packages_of(trial),
    )
    return replace(row, device=str(entry.outcomes[0].notes["device"]))


def setting_of(trial: Trial) -> dict[str, Scalar | list[Scalar]]:
    """What identifies the entry besides model and config; what is not set is left out."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in trial.across_seeds().items()
        if value is not None and name not in ("benchmark", "config", "model")
    }


def packages_of(trial: Trial) -> list[str]:
    """Only those that had a part in it: the machine that only sums up may lack the library that fitted."""
    library = MODELS[trial.model].library
    wanted = ["torch", "numpy", *([library] if library else [])]
    names = [distribution_of(name) for name in wanted if util.find_spec(name) is not None]
    return [name for name in names if name is not None]


def distribution_of(module: str) -> str | None:
    """The distribution a module came with: ``xgboost`` may be ``xgboost-cpu``, ``sklearn`` is ``scikit-learn``."""
    for name in (module, f"{module}-cpu", {"sklearn": "scikit-learn"}.get(module, module)):
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        return name
    return None
