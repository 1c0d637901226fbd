"""One run of a table command: computes what is missing, writes rows, tables and plots, names the models left out.

The rows are means over seeds with their errors, intervals over test runs, and differences.
"""

import functools
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import results, statistics
from benchmarks.data import BenchmarkData, Outcome
from benchmarks.models.registry import known_models, weight_models
from benchmarks.options import SIX_MODELS, USUAL_MODELS, TableOptions
from benchmarks.results import Result, ResultIndex, usual_label_of
from benchmarks.tables import render_table, with_data_notes, write_table
from benchmarks.trial import Outcomes, Trial, TrialStore, compute, to_fit
from zoo.command import how_many, progress_bar
from zoo.device import choose_device
from zoo.reading.locate import choose_configs
from zoo.reading.selection import Selection

_SOME_SKIPPED = 3  # the exit code when models were left out
_USUAL_CONFIGS = {
    "ablation_components": ("mnist", "agnews"),
    "ablation_width": ("agnews",),
    "augmentation": ("agnews",),
}
"""Benchmark → the configs of the paper's table, where none is named and the zoo has several; of the others, mnist."""
_REFERENCES = ("hyperparameters", "current_label")


class Experiment:
    """What one command computes and writes, over all its configs."""

    def __init__(self, benchmark: str, options: TableOptions) -> None:
        self.benchmark, self.options = benchmark, options
        self.folds, self.split = getattr(options, "folds", None), getattr(options, "split", None)
        self.where = None if options.where is None else Selection.parse(options.where)
        self.device = choose_device(options.device)
        self.jobs = options.jobs or torch.get_num_threads()
        self.rows: list[Result] = []
        self.skipped: dict[str, str] = {}
        self.trained_on: dict[str, str | None] = {}
        """Config → the part of its task's data that its transformers were trained on, if not all."""

    @functools.cached_property
    def configs(self) -> tuple[str, ...]:
        """The configs that were named, or the zoo's only one, or the usual ones."""
        return choose_configs(self.options.zoo, self.options.config, _USUAL_CONFIGS.get(self.benchmark, ("mnist",)))

    def data(self, config: str, **what: Any) -> BenchmarkData:
        """The rows of a config; ``what`` has more arguments of ``BenchmarkData.from_zoo``, or replaces these."""
        chosen = {name: getattr(self.options, name) for name in ("checkpoint", "label", "label_checkpoint")}
        chosen |= {"where": self.where, "device": self.device} | what
        return BenchmarkData.from_zoo(self.options.zoo, config, **chosen)

    def parts(self, config: str) -> list[BenchmarkData]:
        """The rows of a config by the zoo's own splits; with folds, once for each of them."""
        if self.folds is None:
            return [self.data(config)]
        return [self.data(config, fold=(fold, self.folds), split=self.split or "all") for fold in range(self.folds)]

    def file(self, name: str) -> Path:
        """The path of a table or plot. A selection, folds or another label have their own: they do not replace the
        usual table."""
        path = self.options.out / name
        folds = f"{self.folds}-folds" if self.folds else None
        usual = {usual_label_of(config) for config in self.trained_on}
        label = self.options.label if self.options.label not in usual else None
        later = self.options.label_checkpoint and f"to-{self.options.label_checkpoint}"
        marks = filter(None, (label, later, folds, self.split, self.where and self.where.file_suffix))
        return path.with_suffix("".join(f".{mark}" for mark in marks) + path.suffix)

    def trials(self, data: BenchmarkData, model: str, **what: Any) -> list[Trial]:
        """The trials of one entry of a table, one per seed; ``what`` distinguishes it from the other entries.

        Unless it names a recipe, the model is trained by its own.
        """
        what = {"recipe": known_models()[model].recipe, "epochs": self.options.epochs} | what
        what |= {"folds": self.folds, "split": self.split, "where": self.where and self.where.expression}
        seeds = range(1 if self.options.quick else self.options.seeds)
        return [Trial.on(data, model, seed, self.benchmark, **what) for seed in seeds]

    def run(self, entries: Iterable[Sequence[Trial]], *parts: BenchmarkData) -> Outcomes:
        """Computes the trials of some entries on one data set, or on each fold of one, and stores their rows."""
        self.trained_on[parts[0].config] = parts[0].trained_on
        trials = list(dict.fromkeys(trial for entry in entries for trial in entry))
        folds = range(self.folds) if self.folds else (None,)
        work = [([replace(trial, fold=fold) for trial in trials], parts[fold or 0]) for fold in folds]
        store = TrialStore(self.options.out)
        fits = list(dict.fromkeys(trial.fit for part, data in work for trial in to_fit(part, data, store)))
        missing = dict.fromkeys(filter(None, (known_models()[trial.model].missing() for trial in fits)))
        if missing and getattr(self.options, "models", None) not in (SIX_MODELS, USUAL_MODELS):
            raise ValueError("; ".join(missing))  # before the first fit; models that were not named are left out
        as_quick = [fit for fit in fits if (fit.seed, fit.threshold) == (0, trials[0].threshold)]
        as_quick = [fit for fit in as_quick if fit.recipe in ("paper", known_models()[fit.model].recipe)]
        if not self.options.quick and len(as_quick) < len(fits):
            line = f"{fits[0].config}: {how_many(len(fits), 'trial')} to fit; --quick fits {len(as_quick)} of them"
            print(line, file=sys.stderr, flush=True)
        outcomes: Outcomes = {}
        with progress_bar() as bar:
            task = bar.add_task(parts[0].config, total=len(trials) * len(parts))

            def advance(text: str, count: int) -> None:
                bar.update(task, description=text, advance=count)

            for part, data in work:
                computed, skipped = compute(part, data, store, jobs=self.jobs, advance=advance)
                outcomes |= computed
                self.skipped |= skipped
        if self.folds:  # a trial that lacks a fold is left out, so that every run is tested
            groups = _grouped(outcomes, fold=None).items()
            outcomes = {trial: Outcome.pooled(found) for trial, found in groups if len(found) == self.folds}
        rows: list[Result] = []
        for column in dict.fromkeys(map(_column_of, trials)):
            in_column = [entry for entry in entries_of(outcomes) if _column_of(entry.trial) == column]
            rows += _data_rows(column, in_column, parts)
            rows += _entry_rows([entry for entry in in_column if entry.rankable])
        self.add(rows)
        return outcomes

    def add(self, rows: Sequence[Result]) -> None:
        """Stores rows, and keeps them for the tables."""
        results.append(rows, self.options.out)
        self.rows += rows

    def index(self, config: str) -> ResultIndex:
        """The rows of a config, to make its table from."""
        return ResultIndex(tuple(row for row in self.rows if row.config == config))

    def write(self, name: str, *configs: str) -> None:
        """Writes the table of some configs to a file and prints it, with a note on each config that saw less data."""
        path = self.file(name)
        table = render_table(self.benchmark, {config: self.index(config) for config in configs})
        text = with_data_notes(table, {config: self.trained_on.get(config) for config in configs})
        write_table(text, path)
        self.announce(path)

    def announce(self, path: Path) -> None:
        print(f"written: {path}", file=sys.stderr)

    def end(self) -> None:
        """If models were left out, prints which and exits with code 3."""
        for reason in self.skipped.values():
            print(f"skipped: {reason}", file=sys.stderr)
        if self.skipped:
            sys.exit(_SOME_SKIPPED)


@dataclass(frozen=True)
class Entry:
    """One entry of a table: the outcomes of the trials that differ only in their seed. ``trial`` is one of them."""

    trial: Trial
    outcomes: tuple[Outcome, ...]

    @property
    def predictions(self) -> list[np.ndarray]:
        return [outcome.predicted for outcome in self.outcomes]

    @property
    def first(self) -> Outcome:
        """That of the first seed, which has the same test rows as the others."""
        return self.outcomes[0]

    @property
    def rankable(self) -> bool:
        return not statistics.is_constant(self.first.truth, self.first.folds)

    def taus(self) -> list[float]:
        """One τ per seed; a constant prediction ranks nothing and counts as 0."""
        return [statistics.tau_or_zero(each, self.first.truth, self.first.folds) for each in self.predictions]

    def taus_within(self) -> np.ndarray | None:
        """τ within each configuration [seeds, configurations]; None where it is not defined.

        It is where the zoo has several runs of a configuration, each row is a run of its own (not one of several
        checkpoints, which differ in more than the seed), and some configuration can be ranked.
        """
        numbers, runs = self.first.configurations, self.first.runs
        if numbers is None or len(np.unique(runs)) < len(runs):
            return None
        taus = np.stack([statistics.taus_within(each, self.first.truth, numbers) for each in self.predictions])
        return taus if taus.size else None

    def rows(self, metric: str, values: Sequence[float], resampled: np.ndarray | None = None) -> list[Result]:
        """The mean of a metric, of all seeds together or of each, with its error and its interval."""
        model, device = self.trial.model, str(self.first.notes["device"])
        where = {"n": len(self.outcomes), "device": device, "packages": _packages_of(model)}
        what = {"model": model, "setting": self.trial.setting()} | where
        return Result.estimated(self.trial.benchmark, self.trial.config, metric, values, resampled, **what)


def _grouped(outcomes: Outcomes, **same: Any) -> dict[Trial, list[Outcome]]:
    """The outcomes of trials that differ in nothing but these values, by seed."""
    groups: dict[Trial, list[Outcome]] = {}
    for trial in sorted(outcomes, key=lambda trial: trial.seed):
        groups.setdefault(replace(trial, **same), []).append(outcomes[trial])
    return groups


def entries_of(outcomes: Outcomes) -> list[Entry]:
    return [Entry(trial, tuple(found)) for trial, found in _grouped(outcomes, seed=0).items()]


def _column_of(trial: Trial) -> Trial:
    """The same for trials with the same test rows, whatever the model and how it is fitted."""
    return replace(trial, model="", seed=0, recipe="paper", epochs=None, components=None, channels=None)


def _data_rows(column: Trial, entries: Sequence[Entry], parts: Sequence[BenchmarkData]) -> list[Result]:
    """The number of rows in each split, of train and validation in the smallest of the folds, and the noise ceiling."""
    setting = {name: value for name, value in column.setting().items() if name != "recipe"}
    train_rows, validation_rows = map(min, zip(*(data.rows_at_least(column.threshold) for data in parts), strict=True))
    examples = parts[0].test_examples if column.label is None else None  # losses are no shares of examples
    values: dict[str, float | None] = {"train_rows": train_rows, "validation_rows": validation_rows}
    if column.label_checkpoint:
        values["left_out_runs"] = parts[0].left_out
    if entries:
        entry, first = entries[0], entries[0].first
        values["test_rows"], values["test_runs"] = len(first.truth), len(np.unique(first.runs))
        if examples and entry.rankable:
            values["noise_ceiling"] = statistics.noise_ceiling(first.truth, examples, folds=first.folds)
        within, configurations = entry.taus_within(), first.configurations
        if within is not None and configurations is not None:
            values["configurations_within"] = within.shape[1]
            if examples:
                values["noise_ceiling_within"] = statistics.noise_ceiling_within(first.truth, configurations, examples)
    where = {"n": 1, "device": torch.device("cpu"), "variant": "data", "setting": setting}
    found = {metric: value for metric, value in values.items() if value is not None}
    return [Result.measured(column.benchmark, column.config, *each, **where) for each in found.items()]


def _entry_rows(entries: Sequence[Entry]) -> list[Result]:
    """The rows of the entries in one column.

    The leader is the model with the highest mean τ among those that read weights alone, trained as for the main
    columns. Each is also compared with the predictor that reads hyperparameters only, and in a forecast with today's
    label, on the same resamples.
    """
    if not entries:
        return []
    tested = entries[0].first
    assert all(np.array_equal(entry.first.truth, tested.truth) for entry in entries), "a column has one test set"
    where = (tested.truth, statistics.resample_runs(tested.units), tested.folds, tested.units)
    all_resamples = [statistics.bootstrap_taus(entry.predictions, *where) for entry in entries]
    means = [float(np.mean(entry.taus())) for entry in entries]
    merits = [
        (trial.recipe == known_models()[trial.model].recipe, trial.model in weight_models(), mean)
        for trial, mean in zip((entry.trial for entry in entries), means, strict=True)
    ]
    leader = merits.index(max(merits))
    references = {entry.trial.model: place for place, entry in enumerate(entries) if entry.trial.model in _REFERENCES}
    rows = []
    for entry, mean, resamples in zip(entries, means, all_resamples, strict=True):
        rows += entry.rows("tau", entry.taus(), resamples)
        if (within := entry.taus_within()) is not None:
            resampled = statistics.resampled_means(within.mean(axis=0))
            rows += entry.rows("tau_within", within.mean(axis=1).tolist(), resampled)
        rows += entry.rows("tau_behind_leader", [means[leader] - mean], all_resamples[leader] - resamples)
        for model, place in references.items():
            if entry is not entries[place]:
                rows += entry.rows(f"tau_above_{model}", [mean - means[place]], resamples - all_resamples[place])
        r2 = [statistics.coefficient_of_determination(each, tested.truth) for each in entry.predictions]
        rows += entry.rows("r2", r2)
        constant = [statistics.is_constant(each, tested.folds) for each in entry.predictions]
        rows += entry.rows("constant_seeds", [sum(constant)])
        for name in entry.first.notes:  # those that are numbers
            values = [value for outcome in entry.outcomes if isinstance(value := outcome.notes.get(name), int | float)]
            rows += entry.rows(name, values) if values else []
    return rows


_distributions = functools.cache(metadata.packages_distributions)
"""The distributions that each module came with: ``sklearn`` is of ``scikit-learn``. Searched once per process."""


@functools.cache
def _packages_of(model: str) -> list[str]:
    """The distributions that were used. The library that fitted may be missing on the machine that only summarizes."""
    libraries = [known_models()[name].library for name in (model, *known_models()[model].parts)]
    modules = ("torch", "numpy", *filter(None, libraries))
    return [_distributions()[module][0] for module in modules if module in _distributions()]
