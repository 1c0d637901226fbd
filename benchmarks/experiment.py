"""One run of a table command: computes what is missing, writes rows, tables and plots, names the models left out.

Before long fits it measures short ones and prints how long those of one data set will take.
"""

import importlib
import sys
import time
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import results
from benchmarks.data import MIN_ROWS, BenchmarkData
from benchmarks.execution import Outcomes, compute, fit, groups, to_fit
from benchmarks.models.registry import MODELS, known_models
from benchmarks.models.training import RECIPES
from benchmarks.options import EPOCHS, TableOptions
from benchmarks.results import Result, ResultIndex
from benchmarks.summary import summarize
from benchmarks.tables.markdown import for_terminal, with_data_notes
from benchmarks.trial import Trial, TrialStore
from zoo.command import duration, how_many, progress_bar
from zoo.device import choose_device
from zoo.reading.selection import Selection
from zoo.storage.atomic import write_atomically

_SOME_SKIPPED = 3  # the exit code when models were left out
_WORTH_A_PROBE = 50_000  # rows times epochs: less is over in a minute or two
_PROBE_ROWS, _PROBE_EPOCHS, _PROBE_FEATURES = 64, 2, 256
_CONVERGED_EPOCHS = 100  # of the predictors that train until validation stops improving; 97 in the committed rows


class Experiment:
    """What one command computes and writes, over all its configs."""

    def __init__(self, benchmark: str, options: TableOptions) -> None:
        self.benchmark, self.options = benchmark, options
        self.where = None if options.where is None else Selection.parse(options.where)
        self.device = choose_device(options.device)
        self.jobs = options.jobs or torch.get_num_threads()
        self.rows: list[Result] = []
        self.skipped: dict[str, str] = {}
        self.trained_on: dict[str, str | None] = {}
        """Config → the part of its task's data that its transformers were trained on, if not all."""

    def data(self, config: str, entry_range: float | None = None, checkpoint: str | None = None) -> BenchmarkData:
        return BenchmarkData.from_zoo(
            self.options.zoo,
            config,
            checkpoint=checkpoint or self.options.checkpoint,
            where=self.where,
            device=self.device,
            entry_range=entry_range,
        )

    def file(self, name: str) -> Path:
        """The path of a table or plot. A selection has its own file names and so does not replace the whole table."""
        path = self.options.out / name
        return path if self.where is None else path.with_suffix(f".{self.where.file_suffix}{path.suffix}")

    def trials(self, data: BenchmarkData, model: str, **what: Any) -> list[Trial]:
        """The trials of one entry of a table, one per seed; ``what`` distinguishes it from the other entries."""
        values = {"checkpoint": data.checkpoint, "where": self.where, "epochs": self.options.epochs, **what}
        seeds = range(1 if self.options.quick else self.options.seeds)
        return [
            Trial(self.benchmark, data.config, model, seed, data.fingerprint, **values).normalized() for seed in seeds
        ]

    def run(self, entries: Iterable[Sequence[Trial]], data: BenchmarkData) -> Outcomes:
        """Computes the trials of some entries on one data set and stores their rows."""
        self.trained_on[data.config] = data.trained_on
        trials = list(dict.fromkeys(trial for entry in entries for trial in entry))
        store = TrialStore(self.options.out)
        if self.options.estimate:
            fits = list(dict.fromkeys(trial.fit for trial in to_fit(trials, data, store)))
            _announce_time(fits, data, self.jobs, trials[0].threshold)
        with progress_bar() as bar:
            task = bar.add_task(data.config, total=len(trials))
            outcomes, skipped = compute(
                trials,
                data,
                store,
                jobs=self.jobs,
                advance=lambda text, count: bar.update(task, description=text, advance=count),
            )
        self.skipped |= skipped
        self.add(summarize(outcomes, data, trials))
        return outcomes

    def add(self, rows: Sequence[Result]) -> None:
        """Stores rows, and keeps them for the tables."""
        results.append_new(rows, self.options.out)
        self.rows += rows

    def index(self, config: str) -> ResultIndex:
        """The rows of a config, to make its table from."""
        return ResultIndex.latest(self.rows, config, self.where)

    def write(self, name: str, table: str, *configs: str) -> None:
        """Writes the table of some configs to a file and prints it, with a note on each config that saw less data."""
        path = self.file(name)
        text = with_data_notes(table, {config: self.trained_on.get(config) for config in configs})
        write_atomically(path, f"{text}\n".encode())
        print(f"{for_terminal(text)}\n")
        self.announce(path)

    def announce(self, path: Path) -> None:
        print(f"written: {path}", file=sys.stderr)

    def end(self) -> None:
        """If models were left out, prints which and exits with code 3."""
        for reason in self.skipped.values():
            print(f"skipped: {reason}", file=sys.stderr)
        if self.skipped:
            sys.exit(_SOME_SKIPPED)


def _announce_time(trials: Sequence[Trial], data: BenchmarkData, jobs: int, first: float) -> None:
    """Prints how long the fits of one data set will take, where it is more than a minute or two.

    ``first`` is the threshold that ``--quick`` fits.
    """
    if _row_epochs(trials, data) < _WORTH_A_PROBE:
        return
    measured: dict[Hashable, float] = {}
    quick = [
        trial
        for trial in trials
        if (trial.seed, trial.threshold, trial.recipe) == (0, first, known_models()[trial.model].recipe)
    ]
    every, some = (duration(_seconds_of(chosen, data, jobs, measured)) for chosen in (trials, quick))
    line = f"{data.config}: {how_many(len(trials), 'trial')} to fit, about {every} on this machine"
    if len(quick) < len(trials):
        line += f"; --quick fits {len(quick)} of them, about {some}"
    print(line, file=sys.stderr, flush=True)


def _row_epochs(trials: Sequence[Trial], data: BenchmarkData) -> int:
    """The size of the work, whatever the machine: rows read in training. Other models count as one of 50 epochs."""
    return sum(len(data.train.at_least(trial.threshold)) * _epochs_of(trial) for trial in trials)


def _epochs_of(trial: Trial) -> int:
    return _CONVERGED_EPOCHS if RECIPES[trial.recipe].converged else trial.epochs or EPOCHS


def _seconds_of(trials: Sequence[Trial], data: BenchmarkData, jobs: int, measured: dict[Hashable, float]) -> float:
    """Estimated seconds of all fits; ``measured`` keeps those of one row (and epoch, of a neural predictor)."""
    total = 0.0
    for group in groups(trials, data):
        model = known_models()[group[0].model]
        counts = [data.rows_at_least(trial.threshold) for trial in group]
        if model.missing() is not None or min(map(min, counts)) < MIN_ROWS:
            continue
        key = (model.name, group[0].components, group[0].channels, len(group) if model.neural else 1)
        if key not in measured:
            measured[key] = _seconds_per_row(group, data, jobs)
        total += measured[key] * max(map(sum, counts)) * (_epochs_of(group[0]) if model.neural else len(group))
    return total


def _seconds_per_row(group: Sequence[Trial], data: BenchmarkData, jobs: int) -> float:
    """Neural predictors and models of the user's are fitted on a few rows, trees on a few of their features.

    Two neural fits differ by some epochs only: what they take to begin does not count.
    """
    model, features, parts = known_models()[group[0].model], 1.0, [data.train, data.validation]
    if model.neural or model.name not in MODELS:
        highest = max(trial.threshold for trial in group)
        parts = [rows.take(rows.at_least(highest)[:_PROBE_ROWS]) for rows in parts]
    elif model.reads_weights:
        features = max(1.0, data.train.weights.shape[1] / _PROBE_FEATURES)
        parts = [replace(rows, weights=rows.weights[:, :_PROBE_FEATURES]) for rows in parts]
    few = replace(data, train=parts[0], validation=parts[1])
    recipe = "paper" if RECIPES[group[0].recipe].converged else group[0].recipe
    rows = sum(map(len, parts))
    if not model.neural:
        importlib.import_module(model.library or "numpy")
        return _seconds([replace(group[0], threshold=0.0)], few, jobs) * features / rows

    def seconds(epochs: int) -> float:
        return _seconds([replace(trial, recipe=recipe, epochs=epochs) for trial in group], few, jobs)

    seconds(1)  # warms up
    return max(0.0, seconds(1 + _PROBE_EPOCHS) - seconds(1)) / (_PROBE_EPOCHS * rows)


def _seconds(trials: Sequence[Trial], data: BenchmarkData, jobs: int) -> float:
    start = time.perf_counter()
    fit(trials, data, jobs)
    return time.perf_counter() - start
