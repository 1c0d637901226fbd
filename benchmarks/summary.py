"""From finished trials to result rows: means over seeds with their errors, intervals over test runs, differences."""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata

import numpy as np

from benchmarks.data import BenchmarkData, Outcome
from benchmarks.models.registry import known_models, weight_models
from benchmarks.results import Result
from benchmarks.statistics import (
    Interval,
    bootstrap_taus,
    coefficient_of_determination,
    kendall_tau,
    noise_ceiling,
    noise_ceiling_within,
    resample_runs,
    resampled_means,
    standard_error,
    taus_within,
)
from benchmarks.trial import Trial

# the notes of an outcome that become rows
_AVERAGED_NOTES = (
    "mean_change",
    "wall_seconds",
    "peak_memory_megabytes",
    "fitted_together",
    "parameters",
    "validation_tau",
    "epoch",
    "epochs",
)
# trials that agree in all of these have the same test rows
_COLUMN = ("threshold", "checkpoint", "entry_range", "where", "elsewhere", "rows")
_OF_ONE_MODEL = ("recipe", "epochs", "components", "channels")
_REFERENCE = "hyperparameters"


@dataclass(frozen=True)
class Entry:
    """One entry of a table: the outcomes of the trials that differ only in their seed. ``trial`` is the first."""

    trial: Trial
    outcomes: tuple[Outcome, ...]

    @property
    def truth(self) -> np.ndarray:
        return self.outcomes[0].truth

    @property
    def rankable(self) -> bool:
        return len(self.truth) >= 2 and bool(np.ptp(self.truth) > 0)

    def taus(self) -> list[float]:
        """One τ per seed; a constant prediction ranks nothing and counts as 0."""
        taus = [kendall_tau(outcome.predicted, outcome.truth) for outcome in self.outcomes]
        return [0.0 if math.isnan(tau) else tau for tau in taus]

    def taus_within(self) -> np.ndarray | None:
        """τ within each configuration [seeds, configurations]; None where it is not defined.

        It is where the zoo has several runs of a configuration, each row is a run of its own (not one of several
        checkpoints, which differ in more than the seed), and some configuration can be ranked.
        """
        numbers, runs = self.outcomes[0].configurations, self.outcomes[0].runs
        if numbers is None or len(np.unique(runs)) < len(runs):
            return None
        taus = np.stack([taus_within(outcome.predicted, outcome.truth, numbers) for outcome in self.outcomes])
        return taus if taus.size else None

    def resamples(self) -> np.ndarray:
        """How often each test row is in each resample of a bootstrap [b, n].

        Runs of one configuration are alike, so where there are several, it draws configurations, not runs.
        """
        first = self.outcomes[0]
        return resample_runs(first.runs if first.configurations is None else first.configurations)

    def row(self, metric: str, value: float, stderr: float | None = None) -> Result:
        row = Result.measured(
            self.trial.benchmark,
            self.trial.config,
            metric,
            value,
            stderr=stderr,
            n=len(self.outcomes),
            device="cpu",
            model=self.trial.model,
            setting=self.trial.setting(),
            packages=_packages_of(self.trial.model),
        )
        return replace(row, device=str(self.outcomes[0].notes["device"]))

    def interval_rows(self, metric: str, resampled: np.ndarray) -> Iterable[Result]:
        """The ends of the interval of a metric, where enough of its resampled values are defined."""
        interval = Interval.of(resampled)
        if interval is not None:
            yield self.row(f"{metric}_low", interval.low)
            yield self.row(f"{metric}_high", interval.high)


def entries_of(outcomes: Mapping[Trial, Outcome]) -> list[Entry]:
    groups: dict[Trial, list[Trial]] = {}
    for trial in outcomes:
        groups.setdefault(replace(trial, seed=0), []).append(trial)
    by_seed = (sorted(trials, key=lambda trial: trial.seed) for trials in groups.values())
    return [Entry(trials[0], tuple(outcomes[trial] for trial in trials)) for trials in by_seed]


def summarize(outcomes: Mapping[Trial, Outcome], data: BenchmarkData, trials: Sequence[Trial]) -> list[Result]:
    """All rows of a table: those of the data in each column, and those of every entry."""

    def column_of(trial: Trial) -> tuple:
        return tuple(getattr(trial, name) for name in _COLUMN)

    rows: list[Result] = []
    entries = entries_of(outcomes)
    columns: dict[tuple, Trial] = {}
    for trial in trials:
        columns.setdefault(column_of(trial), trial)
    for column, first in columns.items():
        in_column = [entry for entry in entries if column_of(entry.trial) == column]
        rows += _data_rows(first, in_column, data)
        rows += _entry_rows([entry for entry in in_column if entry.rankable])
    return rows


def _data_rows(first: Trial, entries: Sequence[Entry], data: BenchmarkData) -> list[Result]:
    """The number of rows in each split, and the noise ceiling of τ."""
    setting = {name: value for name, value in first.setting().items() if name not in _OF_ONE_MODEL}
    train_rows, validation_rows = data.rows_at_least(first.threshold)
    values: dict[str, float | None] = {"train_rows": train_rows, "validation_rows": validation_rows}
    if entries:
        entry = entries[0]
        values["test_rows"] = len(entry.truth)
        values["noise_ceiling"] = noise_ceiling(entry.truth, data.test_examples) if entry.rankable else None
        within, configurations = entry.taus_within(), entry.outcomes[0].configurations
        if within is not None and configurations is not None:
            values["configurations_within"] = within.shape[1]
            values["noise_ceiling_within"] = noise_ceiling_within(entry.truth, configurations, data.test_examples)
    return [
        Result.measured(
            first.benchmark, first.config, metric, value, n=1, device="cpu", variant="data", setting=setting
        )
        for metric, value in values.items()
        if value is not None
    ]


def _entry_rows(entries: Sequence[Entry]) -> list[Result]:
    """The rows of the entries in one column.

    The leader is the model with the highest mean τ among those that read weights alone, trained as for the main
    columns. Each is also compared with the predictor that reads hyperparameters only, on the same resamples.
    """
    if not entries:
        return []
    counts = entries[0].resamples()
    all_resamples = [
        bootstrap_taus([outcome.predicted for outcome in entry.outcomes], entry.truth, counts) for entry in entries
    ]
    means = [float(np.mean(entry.taus())) for entry in entries]
    merits = [
        (trial.recipe == known_models()[trial.model].recipe, trial.model in weight_models(), mean)
        for trial, mean in zip((entry.trial for entry in entries), means, strict=True)
    ]
    leader = merits.index(max(merits))
    reference = next((number for number, entry in enumerate(entries) if entry.trial.model == _REFERENCE), None)
    rows = []
    for entry, mean, resamples in zip(entries, means, all_resamples, strict=True):
        assert np.array_equal(entry.truth, entries[0].truth), "a column has one test set"
        rows.append(entry.row("tau", mean, standard_error(entry.taus())))
        rows += entry.interval_rows("tau", resamples)
        within = entry.taus_within()
        if within is not None:
            per_seed = within.mean(axis=1).tolist()
            rows.append(entry.row("tau_within", float(np.mean(per_seed)), standard_error(per_seed)))
            rows += entry.interval_rows("tau_within", resampled_means(within.mean(axis=0)))
        rows.append(entry.row("tau_behind_leader", means[leader] - mean))
        rows += entry.interval_rows("tau_behind_leader", all_resamples[leader] - resamples)
        if reference is not None and entry is not entries[reference]:
            metric = f"tau_above_{_REFERENCE}"
            rows.append(entry.row(metric, mean - means[reference]))
            rows += entry.interval_rows(metric, resamples - all_resamples[reference])
        r2 = [coefficient_of_determination(outcome.predicted, outcome.truth) for outcome in entry.outcomes]
        rows.append(entry.row("r2", float(np.mean(r2)), standard_error(r2)))
        constant = sum(bool(np.ptp(outcome.predicted) == 0) for outcome in entry.outcomes)
        rows.append(entry.row("constant_seeds", constant))
        for name in _AVERAGED_NOTES:
            values = [value for outcome in entry.outcomes if isinstance(value := outcome.notes[name], int | float)]
            if values:
                rows.append(entry.row(name, float(np.mean(values)), standard_error(values)))
    return rows


_distributions = functools.cache(metadata.packages_distributions)
"""The distributions that each module came with: ``sklearn`` is of ``scikit-learn``. Searched once per process."""


@functools.cache
def _packages_of(model: str) -> list[str]:
    """The distributions that were used. The library that fitted may be missing on the machine that only summarizes."""
    libraries = [known_models()[name].library for name in (model, *known_models()[model].parts)]
    return [_distributions()[module][0] for module in ("torch", "numpy", *libraries) if module in _distributions()]
