"""From finished trials to result rows: means over seeds with their errors, intervals over test runs, differences."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata, util

import numpy as np

from benchmarks.data.benchmark_data import BenchmarkData
from benchmarks.experiments.execution import Finished
from benchmarks.experiments.trial import Outcome, Trial
from benchmarks.models.registry import known_models, weight_models
from benchmarks.results import Result, installed_version
from benchmarks.statistics.ranking import kendall_tau
from benchmarks.statistics.uncertainty import (
    Interval,
    bootstrap_taus,
    coefficient_of_determination,
    noise_ceiling,
    resample_runs,
    standard_error,
)
from benchmarks.statistics.within import noise_ceiling_within, resampled_means, taus_within

# the notes of an outcome that become rows
AVERAGED_NOTES = (
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
COLUMN = ("threshold", "checkpoint", "entry_range", "where", "elsewhere", "rows")
OF_ONE_MODEL = ("recipe", "epochs", "components", "channels")
REFERENCE = "hyperparameters"


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

    def noise_ceiling_within(self, test_examples: int) -> float | None:
        numbers = self.outcomes[0].configurations
        return None if numbers is None else noise_ceiling_within(self.truth, numbers, test_examples)

    def constant_seeds(self) -> int:
        return sum(bool(np.ptp(outcome.predicted) == 0) for outcome in self.outcomes)

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
            packages=packages_of(self.trial),
        )
        return replace(row, device=str(self.outcomes[0].notes["device"]))


def entries_of(outcomes: Mapping[Trial, Outcome]) -> list[Entry]:
    groups: dict[Trial, list[Trial]] = {}
    for trial in outcomes:
        groups.setdefault(replace(trial, seed=0), []).append(trial)
    by_seed = (sorted(trials, key=lambda trial: trial.seed) for trials in groups.values())
    return [Entry(trials[0], tuple(outcomes[trial] for trial in trials)) for trials in by_seed]


def summarize(finished: Finished, data: BenchmarkData, trials: Sequence[Trial]) -> list[Result]:
    """All rows of a table: those of every entry, and those of the data in each column."""
    rows: list[Result] = []
    entries = entries_of(finished.outcomes)
    for column in dict.fromkeys(column_of(trial) for trial in trials):
        in_column = [entry for entry in entries if column_of(entry.trial) == column]
        sample = next(trial for trial in trials if column_of(trial) == column)
        rows += data_rows(sample, in_column, finished, data)
        rows += entry_rows([entry for entry in in_column if entry.rankable])
    return rows


def column_of(trial: Trial) -> tuple:
    return tuple(getattr(trial, name) for name in COLUMN)


def data_rows(sample: Trial, entries: Sequence[Entry], finished: Finished, data: BenchmarkData) -> list[Result]:
    """The number of rows in each split, and the noise ceiling of τ."""
    setting = {name: value for name, value in sample.setting().items() if name not in OF_ONE_MODEL}

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
        within = entries[0].taus_within()
        if within is not None:
            rows.append(row("configurations_within", within.shape[1]))
            ceiling = entries[0].noise_ceiling_within(data.test_examples)
            if ceiling is not None:
                rows.append(row("noise_ceiling_within", ceiling))
    return rows


def entry_rows(entries: Sequence[Entry]) -> list[Result]:
    """The rows of the entries in one column.

    Runs of one configuration are alike, so where there are several, the bootstrap draws configurations, not runs.
    The leader is the model with the highest mean τ among those that read weights alone, trained as for the main
    columns. Each is also compared with the predictor that reads hyperparameters only, on the same resamples.
    """
    if not entries:
        return []
    first = entries[0].outcomes[0]
    counts = resample_runs(first.runs if first.configurations is None else first.configurations)
    all_resamples = [
        bootstrap_taus([outcome.predicted for outcome in entry.outcomes], entry.truth, counts) for entry in entries
    ]
    means = [float(np.mean(entry.taus())) for entry in entries]
    models = known_models()
    merits = [
        (entry.trial.recipe == models[entry.trial.model].recipe, entry.trial.model in weight_models(), mean)
        for entry, mean in zip(entries, means, strict=True)
    ]
    leader = merits.index(max(merits))
    reference = next((place for place, entry in enumerate(entries) if entry.trial.model == REFERENCE), None)
    rows = []
    for entry, mean, resamples in zip(entries, means, all_resamples, strict=True):
        assert np.array_equal(entry.truth, entries[0].truth), "a column has one test set"
        rows.append(entry.row("tau", mean, standard_error(entry.taus())))
        rows += interval_rows(entry, "tau", Interval.of(resamples))
        rows += within_rows(entry)
        rows.append(entry.row("tau_behind_leader", means[leader] - mean))
        rows += interval_rows(entry, "tau_behind_leader", Interval.of(all_resamples[leader] - resamples))
        if reference is not None and entry is not entries[reference]:
            metric = f"tau_above_{REFERENCE}"
            rows.append(entry.row(metric, mean - means[reference]))
            rows += interval_rows(entry, metric, Interval.of(resamples - all_resamples[reference]))
        r2 = [coefficient_of_determination(outcome.predicted, outcome.truth) for outcome in entry.outcomes]
        rows.append(entry.row("r2", float(np.mean(r2)), standard_error(r2)))
        rows.append(entry.row("constant_seeds", entry.constant_seeds()))
        for name in AVERAGED_NOTES:
            values = [value for outcome in entry.outcomes if isinstance(value := outcome.notes[name], int | float)]
            if values:
                rows.append(entry.row(name, float(np.mean(values)), standard_error(values)))
    return rows


def within_rows(entry: Entry) -> Iterable[Result]:
    """τ within a configuration, its error over seeds, and its interval over configurations."""
    taus = entry.taus_within()
    if taus is not None:
        per_seed = taus.mean(axis=1).tolist()
        yield entry.row("tau_within", float(np.mean(per_seed)), standard_error(per_seed))
        yield from interval_rows(entry, "tau_within", Interval.of(resampled_means(taus.mean(axis=0))))


def interval_rows(entry: Entry, metric: str, interval: Interval | None) -> Iterable[Result]:
    if interval is not None:
        yield entry.row(f"{metric}_low", interval.low)
        yield entry.row(f"{metric}_high", interval.high)


def packages_of(trial: Trial) -> list[str]:
    """The packages that were used. The library that fitted may be missing on the machine that only summarizes."""
    models = [known_models()[name] for name in (trial.model, *known_models()[trial.model].parts)]
    wanted = ["torch", "numpy", *(model.library for model in models if model.library)]
    names = [distribution_of(name) for name in wanted if util.find_spec(name) is not None]
    return [name for name in names if name is not None]


def distribution_of(module: str) -> str | None:
    """The distribution a module came with: ``xgboost`` may be ``xgboost-cpu``, ``sklearn`` is ``scikit-learn``."""
    for name in (module, f"{module}-cpu", {"sklearn": "scikit-learn"}.get(module, module)):
        try:
            installed_version(name)
        except metadata.PackageNotFoundError:
            continue
        return name
    return None
