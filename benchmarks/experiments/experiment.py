"""One run of a table command: compute what is missing, write rows, tables and plots, say what was left out."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import results
from benchmarks.data.benchmark_data import BenchmarkData
from benchmarks.experiments.estimate import WORTH_A_PROBE, FitTimes, row_epochs
from benchmarks.experiments.execution import Finished, compute, to_fit
from benchmarks.experiments.options import TableOptions
from benchmarks.experiments.summary import Entry, entries_of, summarize
from benchmarks.experiments.trial import Trial
from benchmarks.experiments.trial_store import TrialStore
from benchmarks.models.registry import known_models
from benchmarks.results import Result, ResultIndex
from benchmarks.tables.markdown import for_terminal, with_data_notes
from zoo.command import duration, how_many, progress_bar
from zoo.storage.atomic import write_atomically

SOME_SKIPPED = 3  # the exit code when models were left out


@dataclass
class Experiment:
    """Gathers what one command computes and writes, over all its configs."""

    options: TableOptions
    data_sets: int = 1
    """How many are to be run."""
    rows: list[Result] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    trained_on: dict[str, str | None] = field(default_factory=dict)
    """Config → what its data fall short by, if they do."""

    def run(
        self, trials: Sequence[Trial], data: BenchmarkData, extra: Callable[[Entry], Result] | None = None
    ) -> Finished:
        """Computes the trials on one data set and stores their rows, with one ``extra`` row per entry if given."""
        self.trained_on[data.config] = data.trained_on
        trials = list(dict.fromkeys(trial.normalized() for trial in trials))
        store = TrialStore(self.options.out)
        self.announce_time(list(dict.fromkeys(trial.fit for trial in to_fit(trials, data, store))), data)
        with progress_bar() as bar:
            task = bar.add_task(data.config, total=len(trials))
            finished = compute(
                trials,
                data,
                store,
                jobs=self.options.jobs,
                advance=lambda text, count: bar.update(task, description=text, advance=count),
            )
        self.skipped |= finished.skipped
        rows = summarize(finished, data, trials)
        if extra is not None:
            rows += [extra(entry) for entry in entries_of(finished.outcomes)]
        self.add(rows)
        return finished

    def add(self, rows: Sequence[Result]) -> None:
        """Stores rows, and keeps them for the tables."""
        results.append_new(rows, self.options.out)
        self.rows += rows

    def announce_time(self, trials: Sequence[Trial], data: BenchmarkData) -> None:
        """Says beforehand how long the fits of one data set will take, where it is more than a minute or two."""
        self.data_sets -= 1
        if not self.options.estimate or row_epochs(trials, data) < WORTH_A_PROBE:
            return
        times, first = FitTimes(data, self.options.jobs), self.options.thresholds[0]
        count = how_many(len(trials), "trial")
        line = f"{data.config}: {count} to fit, about {duration(times.total(trials))} on this machine"
        quick = [
            trial
            for trial in trials
            if (trial.seed, trial.threshold, trial.recipe) == (0, first, known_models()[trial.model].recipe)
        ]
        if len(quick) < len(trials):
            line += f"; --quick fits {len(quick)} of them, about {duration(times.total(quick))}"
        if self.data_sets > 0:
            line += f"; more data sets after this one: {self.data_sets}"
        print(line, file=sys.stderr, flush=True)

    def index(self, config: str) -> ResultIndex:
        """The rows of a config, to make its table from."""
        return ResultIndex.latest(self.rows, config, self.options.where)

    def write(self, name: str, table: str, *configs: str) -> None:
        """Writes the table of some configs to a file and prints it, each with what must be said about its data."""
        path = self.options.file(name)
        text = with_data_notes(table, {config: self.trained_on.get(config) for config in configs})
        write_atomically(path, f"{text}\n".encode())
        print(f"{for_terminal(text)}\n")
        self.announce(path)

    def announce(self, path: Path) -> None:
        print(f"written: {path}", file=sys.stderr)

    def end(self) -> None:
        """If models were left out, says which and exits with code 3."""
        for reason in self.skipped.values():
            print(f"skipped: {reason}", file=sys.stderr)
        if self.skipped:
            sys.exit(SOME_SKIPPED)
