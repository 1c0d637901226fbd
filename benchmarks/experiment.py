"""The options that all table commands share, and one run of them.

A run computes what is missing, writes rows, tables and plots, and names the models that were left out. Before long fits
it measures short ones and prints how long the table will take.
"""

import argparse
import importlib
import sys
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import results
from benchmarks.data import MIN_ROWS, BenchmarkData
from benchmarks.execution import Finished, compute, fit_neural, groups, to_fit
from benchmarks.models.registry import MODELS, BenchmarkModel, check_models, known_models
from benchmarks.models.training import EPOCHS, RECIPES
from benchmarks.results import Result, ResultIndex
from benchmarks.summary import summarize
from benchmarks.tables import for_terminal, with_data_notes
from benchmarks.trial import Trial, TrialStore
from zoo.command import command_parser, duration, how_many, progress_bar
from zoo.device import choose_device
from zoo.reading.locate import DEFAULT_NAME
from zoo.reading.selection import Selection
from zoo.storage.atomic import write_atomically

_SEEDS = 5
_SOME_SKIPPED = 3  # the exit code when models were left out
_WORTH_A_PROBE = 50_000  # rows times epochs: less is over in a minute or two
_PROBE_ROWS, _PROBE_EPOCHS, _PROBE_FEATURES = 64, 2, 256
_CONVERGED_EPOCHS = 100  # of the predictors that train until validation stops improving; 97 in the committed rows


@dataclass(frozen=True)
class TableOptions:
    """The models, data and device of a table, and where it is written."""

    zoo: str
    configs: tuple[str, ...]
    models: tuple[str, ...]
    thresholds: tuple[float, ...]
    seeds: int
    epochs: int
    recipes: tuple[str, ...]
    checkpoint: str | None
    where: Selection | None
    device: torch.device
    jobs: int
    out: Path
    estimate: bool = True
    """Whether to measure, before long fits, how long they will take."""

    def data(self, config: str, entry_range: float | None = None, checkpoint: str | None = None) -> BenchmarkData:
        return BenchmarkData.from_zoo(
            self.zoo,
            config,
            checkpoint=checkpoint or self.checkpoint,
            where=self.where,
            device=self.device,
            entry_range=entry_range,
        )

    def file(self, name: str) -> Path:
        """The path of a table or plot. A selection has its own file names and so does not replace the whole table."""
        path = self.out / name
        if self.where is None:
            return path
        return path.with_suffix(f".{self.where.file_suffix}{path.suffix}")

    def trials(self, benchmark: str, data: BenchmarkData, model: str, **what: Any) -> list[Trial]:
        """The trials of one entry of a table, one per seed; ``what`` distinguishes it from the other entries."""
        values = {"checkpoint": data.checkpoint, "where": self.where, "epochs": self.epochs, **what}
        return [Trial(benchmark, data.config, model, seed, data.fingerprint, **values) for seed in range(self.seeds)]


def table_parser(
    prog: str, description: str, *, configs: tuple[str, ...], models: tuple[str, ...], thresholds: tuple[float, ...]
) -> argparse.ArgumentParser:
    """A parser with the shared options. A command that gives a single model or threshold has no option for it.

    One that gives no configs uses all of the zoo.
    """
    parser = command_parser(prog, description)
    parser.add_argument("--zoo", default=DEFAULT_NAME, metavar="DIR", help="folder of the zoo, or its name on the hub")
    parser.add_argument(
        "--config",
        nargs="+",
        default=list(configs) or None,
        metavar="CONFIG",
        help="configs of the zoo" + ("" if configs else " (default: all)"),
    )
    if len(models) > 1:
        parser.add_argument(
            "--models",
            nargs="+",
            default=list(models),
            metavar="MODEL",
            help="which to fit; module:Class is a predictor of your own",
        )
    if len(thresholds) > 1:
        percent = ["none" if threshold == 0 else f"{threshold * 100:g}" for threshold in thresholds]
        parser.add_argument(
            "--thresholds",
            nargs="+",
            default=percent,
            metavar="T",
            help="least accuracy of the rows: none, or percentages",
        )
    parser.add_argument("--seeds", type=int, default=_SEEDS, help="seeds per model")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="epochs of neural predictors")
    parser.add_argument(
        "--checkpoint",
        metavar="LABEL",
        help="of each run: one of the config's, or all (default: the one nearest to 75 %% of the epochs)",
    )
    parser.add_argument(
        "--where",
        metavar="EXPRESSION",
        help='only these rows of each split, such as "train_fraction >= 0.8" (default: all)',
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, or auto: the GPU where there is one")
    parser.add_argument("--jobs", type=int, default=torch.get_num_threads(), help="threads of the tree models")
    parser.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="folder to write to")
    parser.add_argument(
        "--no-estimate",
        dest="estimate",
        action="store_false",
        help="begin at once, without measuring how long it takes",
    )
    parser.add_argument("--quick", action="store_true", help="one seed, the first threshold, only the paper's recipe")
    parser.set_defaults(all_models=models, all_thresholds=thresholds, recipes=("paper",))
    return parser


def read_options(parsed: argparse.Namespace) -> TableOptions:
    """The options, checked; ``--quick`` overrides the others."""
    for name in ("seeds", "epochs", "jobs"):
        if getattr(parsed, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(parsed, name)}")
    device = choose_device(parsed.device)
    texts = getattr(parsed, "thresholds", None)
    thresholds = tuple(map(_parse_threshold, texts)) if texts else parsed.all_thresholds
    return TableOptions(
        zoo=parsed.zoo,
        configs=tuple(dict.fromkeys(parsed.config or ())),
        models=check_models(getattr(parsed, "models", parsed.all_models)),
        thresholds=thresholds[:1] if parsed.quick else tuple(dict.fromkeys(thresholds)),
        seeds=1 if parsed.quick else parsed.seeds,
        epochs=parsed.epochs,
        recipes=("paper",) if parsed.quick else tuple(parsed.recipes),
        checkpoint=parsed.checkpoint,
        where=None if parsed.where is None else Selection.parse(parsed.where),
        device=device,
        jobs=parsed.jobs,
        out=parsed.out,
        estimate=parsed.estimate,
    )


def _parse_threshold(text: str) -> float:
    """``none`` or a percentage."""
    try:
        percent = 0.0 if text == "none" else float(text.rstrip("%"))
    except ValueError:
        percent = -1.0
    if not 0 <= percent < 100:
        raise ValueError(f"a threshold is none or a percentage of at least 0 and below 100, got {text!r}")
    return percent / 100


@dataclass
class Experiment:
    """Gathers what one command computes and writes, over all its configs."""

    options: TableOptions
    data_sets: int = 1
    """How many are to be run."""
    rows: list[Result] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    trained_on: dict[str, str | None] = field(default_factory=dict)
    """Config → the part of its task's data that its transformers were trained on, if not all."""

    def run(self, trials: Sequence[Trial], data: BenchmarkData) -> Finished:
        """Computes the trials on one data set and stores their rows."""
        self.trained_on[data.config] = data.trained_on
        trials = list(dict.fromkeys(trial.normalized() for trial in trials))
        store = TrialStore(self.options.out)
        self._announce_time(list(dict.fromkeys(trial.fit for trial in to_fit(trials, data, store))), data)
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
        self.add(summarize(finished.outcomes, data, trials))
        return finished

    def add(self, rows: Sequence[Result]) -> None:
        """Stores rows, and keeps them for the tables."""
        results.append_new(rows, self.options.out)
        self.rows += rows

    def _announce_time(self, trials: Sequence[Trial], data: BenchmarkData) -> None:
        """Prints beforehand how long the fits of one data set will take, where it is more than a minute or two."""
        self.data_sets -= 1
        if not self.options.estimate or _row_epochs(trials, data) < _WORTH_A_PROBE:
            return
        times, first = _FitTimes(data, self.options.jobs), self.options.thresholds[0]
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
        """Writes the table of some configs to a file and prints it, with a note on each config that saw less data."""
        path = self.options.file(name)
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


def _row_epochs(trials: Sequence[Trial], data: BenchmarkData) -> int:
    """The size of the work, whatever the machine: rows read in training. Other models count as one of 50 epochs."""
    return sum(len(data.train.at_least(trial.threshold)) * _epochs_of(trial) for trial in trials)


def _epochs_of(trial: Trial) -> int:
    return _CONVERGED_EPOCHS if RECIPES[trial.recipe].converged else trial.epochs or EPOCHS


@dataclass
class _FitTimes:
    """Estimated seconds of fits, from a short fit of each model."""

    data: BenchmarkData
    jobs: int
    measured: dict[Hashable, float] = field(default_factory=dict)
    """Seconds per row (and epoch, of a neural predictor), measured once."""

    def total(self, trials: Sequence[Trial]) -> float:
        return sum(self.of(group) for group in groups(trials, self.data))

    def of(self, group: Sequence[Trial]) -> float:
        """The seconds of trials that are fitted in one go; 0 where they cannot be fitted."""
        model = known_models()[group[0].model]
        counts = [self.data.rows_at_least(trial.threshold) for trial in group]
        if model.missing() is not None or min(map(min, counts)) < MIN_ROWS:
            return 0.0
        key = (model.name, group[0].components, group[0].channels, len(group) if model.neural else 1)
        if key not in self.measured:
            self.measured[key] = self._of_a_neural_row(group) if model.neural else self._of_another_row(model)
        rows = max(map(sum, counts))
        return self.measured[key] * rows * (_epochs_of(group[0]) if model.neural else len(group))

    def _of_a_neural_row(self, group: Sequence[Trial]) -> float:
        """Two fits on a few rows differ by some epochs only: what they take to begin does not count."""
        few = self._few_rows(max(trial.threshold for trial in group))
        recipe = "paper" if RECIPES[group[0].recipe].converged else group[0].recipe

        def seconds(epochs: int) -> float:
            trials = [replace(trial, recipe=recipe, epochs=epochs) for trial in group]
            return _seconds(lambda: fit_neural(trials, few))

        seconds(1)  # warms up
        rows = len(few.train) + len(few.validation)
        return max(0.0, seconds(1 + _PROBE_EPOCHS) - seconds(1)) / (_PROBE_EPOCHS * rows)

    def _of_another_row(self, model: BenchmarkModel) -> float:
        """Trees are fitted on a few features, as their time grows with these; a model of the user's on a few rows."""
        data, features, fit = self.data, 1.0, model.fit
        assert fit is not None
        if model.library is not None:
            importlib.import_module(model.library)
        if model.name not in MODELS:
            data = self._few_rows(0.0)
        elif model.reads_weights:
            features = max(1.0, data.train.weights.shape[1] / _PROBE_FEATURES)
            narrow = (
                replace(rows, weights=rows.weights[:, :_PROBE_FEATURES]) for rows in (data.train, data.validation)
            )
            data = replace(data, **dict(zip(("train", "validation"), narrow, strict=True)))
        seconds = _seconds(lambda: fit(data.train, data.validation, [0], self.jobs))
        return seconds * features / (len(data.train) + len(data.validation))

    def _few_rows(self, threshold: float) -> BenchmarkData:
        train, validation = (
            rows.take(rows.at_least(threshold)[:_PROBE_ROWS]) for rows in (self.data.train, self.data.validation)
        )
        return replace(self.data, train=train, validation=validation)


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
