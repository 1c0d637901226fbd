"""One run of a table command: compute what is missing, write rows, tables and plots, say what was left out."""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import results
from benchmarks.data.benchmark_data import BenchmarkData
from benchmarks.experiments.execution import Finished, compute
from benchmarks.experiments.options import TableOptions
from benchmarks.experiments.summary import summarise
from benchmarks.experiments.trial import Trial
from benchmarks.experiments.trial_store import TrialStore
from benchmarks.results import Result
from zoo.command import progress_bar
from zoo.storage.atomic import write_atomically

SOME_SKIPPED = 3  # the exit code of a table with rows left out


@dataclass
class Experiment:
    """Gathers what one command computes and writes, over its configs."""

    options: TableOptions
    skipped: dict[str, str] = field(default_factory=dict)

    def run(
        self, trials: Sequence[Trial], data: BenchmarkData, extra: Callable[[Finished], Iterable[Result]] | None = None
    ) -> tuple[Finished, list[Result]]:
        """Computes the trials of one data set and appends their rows, with ``extra`` ones of the command's own."""
        trials = list(dict.fromkeys(trial.normalised() for trial in trials))
        with progress_bar() as bar:
            task = bar.add_task(data.config, total=len(trials))
            finished = compute(
                trials,
                data,
                TrialStore(self.options.out),
                jobs=self.options.jobs,
                advance=lambda text, count: bar.update(task, description=text, advance=count),
            )
        self.skipped |= finished.skipped
        rows = summarise(finished, data, trials) + list(extra(finished) if extra else ())
        results.append_news(rows, self.options.out)
        return finished, rows

    def write(self, name: str, text: str) -> None:
        """A table as a file, and on the screen."""
        path = self.options.file(name)
        write_atomically(path, f"{text}\n".encode())
        print(f"{text}\n")
        self.announce(path)

    def announce(self, path: Path) -> None:
        print(f"written: {path}", file=sys.stderr)

    def end(self) -> None:
        """Says what was left out and exits with a code of its own where that is anything."""
        for reason in self.skipped.values():
            print(f"skipped: {reason}", file=sys.stderr)
        if self.skipped:
            sys.exit(SOME_SKIPPED)
