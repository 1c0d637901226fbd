"""Renders the documents from their templates and the rows in benchmarks/results/, and draws the plots.

python -m benchmarks.report                    writes the documents and benchmarks/results/plots/
python -m benchmarks.report --check            writes nothing; exits with 1 where a document is out of date

The documents are README.md, benchmarks/README.md, benchmarks/RESULTS.md and generation/README.md. To change one, edit
its Jinja2 template in benchmarks/templates/ and run the first command. The leaderboard and its file in
benchmarks/results/ are made anew each time, from the submissions of the clone. A template can call:

    {{ tau("mnist", "gauge_nfn") }}                   0.921: Kendall's τ without a threshold, by the model's own recipe
    {{ tau("mnist", "mlp", threshold=0.8) }}          with another setting: threshold, recipe, where, ...
    {{ lead("mnist", "gauge_nfn") }}                  0.048: τ above hyperparameters only
    {{ with_interval(lead, "mnist", "gauge_nfn") }}   0.048 [0.026, 0.072]
    {{ tau("mnist", ["mlp", "statnn"]).max() }}       a list makes an array over its choices
    {{ value("census", "mnist", "shards", "runs") }}  a row of any benchmark, by its model or variant and its metric
    {{ runs("mnist")|length }}                        2,000: the final test accuracies or losses of the generated runs
    {{ table("kendall", "mnist") }}                   a layout of templates/tables/, here from the rows of kendall
    {{ table("kendall", "mnist")|apart("MNIST") }}    a link to benchmarks/results/tables/mnist.md, which has the table
    {{ data_note("agnews") }}                         what the readers of its tables must know about its data
    {{ title(ours) }}                                 Gauge-NFN: the best reader of weights on the front page

``_Contents.names`` has all names that a template can use. A float is written with three digits
(others: ``|digits(1)``), an integer as 2,000. A call that finds no row, or more than one, is an error that names the
line of the template.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from benchmarks.options import SIX_MODELS, Clone
from zoo.command import DEFAULT_NAME, Command, Option


@dataclass(frozen=True)
class _Options:
    check: Annotated[bool, Option("write nothing, exit with 1 where a document is out of date")] = False
    root: Clone = None
    results: Annotated[Path | None, Option("folder of the rows (default: that of the clone)", "DIR")] = None


_command = Command(__name__, "benchmarks.report", __doc__, _Options, lambda _: ("matplotlib", "scipy"))

import itertools
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial, wraps

import jinja2
import numpy as np
import pandas as pd

from benchmarks import paper, results
from benchmarks.census import census_table
from benchmarks.curves import READS
from benchmarks.leaderboard.submission import rank, submissions_in
from benchmarks.models.registry import MODELS
from benchmarks.plots import first_predictions, headline_plot, scatter, tau_by_rows, tau_by_threshold
from benchmarks.results import Result, ResultIndex, Value, usual_label_of
from benchmarks.tables import leader, render_table, with_data_notes
from nfn import load_pretrained
from nfn.predictors.storage import pretrained_names
from zoo.format.hyperparameters import HYPERPARAMETERS
from zoo.format.published import RUNS_FILE, PublishedZoo
from zoo.format.record import task_of
from zoo.format.schema import PUBLISHED_RUN_SCHEMA
from zoo.format.table_file import read_table
from zoo.plots import plot_histograms
from zoo.reading.selection import select
from zoo.storage.atomic import write_atomically
from zoo.tasks.identity import KNOWN

_DOCUMENTS = {
    "README.md": "README.md.j2",
    "benchmarks/README.md": "benchmarks.md.j2",
    "benchmarks/RESULTS.md": "results.md.j2",
    "generation/README.md": "generation.md.j2",
}
"""Document → its template."""
_RANKING = "benchmarks/results/leaderboard.json"
_TABLES = "benchmarks/results/tables"  # those that the text links to
_TEMPLATES = "benchmarks/templates"
_PLOTS = "plots"
_CONFIGS = ("mnist", "agnews")
_IN_BOTH = {"mnist": "train_fraction >= 0.8", "agnews": "train_fraction >= 0.9"}
"""Config → the part of its grid that was trained with either kind of seeds: three and two of its first four shards."""
_HEADLINE = dict.fromkeys(_CONFIGS) | {f"{config}-seeds": part for config, part in _IN_BOTH.items()}
_HEADLINE |= {"shakespeare-seeds": None}
"""Config of the front page → the part of it that its rows are of."""
_GENERATED = "generated"  # folder beside the rows: a published zoo without its weights
_RUN_COLUMNS = ("status", *HYPERPARAMETERS)
_PARTS = ("where", "label", "label_checkpoint", "checkpoint", "beside")
_UNSET = ("components", "channels", "entry_range", "tested_config", "tested_checkpoint", "rows")
_CLONE = Path(__file__).parent.parent
_INPUTS = "benchmarks.inputs:"
_OUT_OF_DATE = 1


def _render(root: Path, rows: Path, documents: Iterable[str] = tuple(_DOCUMENTS)) -> dict[str, str]:
    """Document → its text, from the templates of a clone and the rows in a folder; with its tables and its ranking."""
    rankings, tables = rankings_of(root), dict[str, str]()
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(root / _TEMPLATES),
        undefined=jinja2.StrictUndefined,
        finalize=_text,
        keep_trailing_newline=True,
        trim_blocks=True,
    )

    @jinja2.pass_context
    def in_own_file(context: jinja2.runtime.Context, text: str, title: str) -> str:
        """Puts a table into a file of its own, and returns a link to it."""
        document = next(document for document, template in _DOCUMENTS.items() if template == context.name)
        name = f"{_TABLES}/{re.sub(r'[^a-z0-9]+', '-', title.lower()).strip('-')}.md"
        if name in tables:
            raise ValueError(f"two tables are called {title!r}")
        made = f"<!-- Rendered by `python -m benchmarks.report` from {_TEMPLATES}/{context.name}: edit that file. -->"
        back = f"[{document}]({os.path.relpath(document, _TABLES)})"
        tables[name] = f"{made}\n\n# {title}\n\n{text.strip()}\n\nExplained in {back}.\n"
        return f"[Table: {title}]({os.path.relpath(name, Path(document).parent)})"

    environment.globals |= _Contents(rows, root).names()
    environment.globals["leaderboard"] = partial(render_table, "leaderboard", rankings=rankings)
    environment.filters |= {"digits": lambda number, digits: f"{number:.{digits}f}", "apart": in_own_file}
    texts = {document: _rendered(environment, document, root, rows) for document in documents} | tables
    if rankings or (root / _RANKING).exists():
        texts[_RANKING] = json.dumps({"zoos": rankings}, indent=1, ensure_ascii=False) + "\n"
    return texts


def rankings_of(root: Path) -> list[dict[str, Any]]:
    """The submissions of a clone, scored on its own zoo."""
    return rank(submissions_in(root / "benchmarks" / "submissions"), [str(root / DEFAULT_NAME)])


def _rendered(environment: jinja2.Environment, document: str, root: Path, rows: Path) -> str:
    """One document; a ValueError names the line of its template."""
    name = _DOCUMENTS[document]
    plots = Path(os.path.relpath((rows / _PLOTS).resolve(), (root / document).resolve().parent)).as_posix()
    try:
        return environment.get_template(name).render(plots=plots)
    except (jinja2.TemplateError, ValueError, TypeError, KeyError) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if Path(frame.filename).name == name]
        line = error.lineno if isinstance(error, jinja2.TemplateSyntaxError) else next(reversed(lines), 1)
        raise ValueError(f"{_TEMPLATES}/{name}, line {line}: {error}") from error


def _text(value: Any) -> Any:
    """How a template writes a number."""
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, np.ndarray):
        raise ValueError(f"an array of {value.size} numbers cannot be written: take its min(), max() or mean()")
    return value


def _over_lists(function: Callable[..., float]) -> Callable[..., Any]:
    """The function; where it is given lists, an array of its values for all combinations of their members."""

    @wraps(function)
    def call(*values: Any, **named: Any) -> Any:
        given = [*values, *named.values()]
        choices = itertools.product(*(value if isinstance(value, list) else [value] for value in given))
        found = [function(*one[: len(values)], **dict(zip(named, one[len(values) :], strict=True))) for one in choices]
        return np.array(found) if any(isinstance(value, list) for value in given) else found[0]

    return call


class _Contents:
    """Everything that a template can call: numbers first, then tables."""

    def __init__(self, folder: Path, root: Path = _CLONE) -> None:
        self.folder = folder
        self.index = cache(partial(_index_of, folder))
        self.final_runs = cache(partial(_final_runs, folder, root))

    def names(self) -> dict[str, Any]:
        kendall = partial(self.value, "kendall")
        numbers = {
            "value": self.value,
            "tau": kendall,
            "lead": partial(kendall, metric="tau_above_hyperparameters"),
            "within": partial(kendall, metric="tau_within"),
            "count": lambda config, split: round(kendall(config, "data", f"{split}_rows")),
            "moved": self.moved,
            # these rows have no label
            "barrier": partial(self.value, "merge", metric="barrier", label="test_accuracy"),
            "transfer": self.transfer,
            "curve": partial(self.value, "rows", metric="tau_extrapolated", rows=paper.TRAIN_ROWS),
            "paper": lambda of, who, threshold=0.0: paper.KENDALL[of][who][threshold][0],
            "below_paper": lambda of, who, at: paper.KENDALL[of][who][at][0] - kendall(of, who, threshold=at),
        }
        constants = {
            "both": _IN_BOTH,
            "zoos": list(_CONFIGS),
            "thresholds": list(paper.THRESHOLDS),
            "models_of_paper": list(SIX_MODELS),
            "ranges": [size for size in paper.RANGES if size],
            "widths": list(paper.WIDTHS),
            "widths_of_paper": [tau for tau, _ in paper.WIDTHS.values()],
            "ours": leader(*_headline_zoos(self.folder).values()),
        }
        tables = {
            "table": self.table,
            "headline": lambda: render_table("headline", _headline_zoos(self.folder)),
            "census": lambda: census_table(self.rows("census")),
            "accuracies": lambda: render_table("accuracies", runs=self.final_runs()),
            "speed": lambda: render_table("speed", rows=self.rows("speed.generation", "speed.nfn", "speed.loader")),
            "of_rows": lambda layout: render_table(layout, rows=self.rows(layout), reads=READS, models=MODELS),
            "inputs": self.inputs,
            "recipes": partial(self.table, "recipe", label="test_accuracy"),  # these rows have no label
            "pretrained": lambda: render_table("pretrained", named={n: load_pretrained(n) for n in pretrained_names()}),
            "data_note": self.data_note,
        }
        others = {"runs": self.runs, "with_interval": _with_interval, "spread": np.ptp, "median": np.median}
        others |= {"title": lambda name: MODELS[name].title}
        return {name: _over_lists(function) for name, function in numbers.items()} | constants | tables | others

    def value(
        self, benchmark: str, config: str, who: str, metric: str = "tau", *, end: str = "", **setting: Value
    ) -> float:
        """The value of the one row that fits. What the setting leaves out is not set, and the recipe is the model's.

        ``end`` is _low or _high for the ends of an interval.
        """
        parts: dict[str, Any] = {name: setting.pop(name) for name in _PARTS if name in setting}
        if benchmark == "kendall":
            parts.setdefault("where", _HEADLINE.get(config))
        recipe = MODELS[who].recipe if who in MODELS else "paper"
        plain: dict[str, Value] = {"threshold": 0.0, "recipe": recipe, "at_once": 1, **dict.fromkeys(_UNSET)}
        wanted = plain | {name: list(value) if isinstance(value, tuple) else value for name, value in setting.items()}
        found = [
            row.value
            for row in self.index(benchmark, config, **parts).measured(metric + end, who)
            if all(row.setting.get(name, plain.get(name)) == value for name, value in wanted.items())
        ]
        if len(found) != 1:
            what = [benchmark, config, who, metric + end, *(f"{name}={value}" for name, value in setting.items())]
            remedy = "name more settings" if found else "measure it first"
            raise ValueError(f"{len(found)} rows fit {' '.join(what)}, one should: {remedy}")
        return found[0]

    def transfer(
        self, config: str, who: str, metric: str = "tau", *, to: str = "", checkpoint: str = "epoch_75", **named: str
    ) -> float:
        """A number of a predictor fitted on one config, on unseen configurations of another config or checkpoint."""
        tested = {"tested_config": to or config, "tested_checkpoint": checkpoint, "tested_unseen": True}
        return self.value("transfer", config, who, metric, **named, **tested)

    def moved(self, config: str, who: str, entry_range: float) -> float:
        """How much τ gains where every split is doubled by moved checkpoints."""
        tau = partial(self.value, "augmentation", config, who)
        return tau(entry_range=entry_range) - tau()

    def runs(self, config: str, where: str | None = None) -> np.ndarray:
        """Final test accuracies of the generated runs, or losses of language models."""
        runs = self.final_runs()[config]
        return runs[usual_label_of(config)].to_numpy()[select(runs, where)]

    def rows(self, *benchmarks: str) -> list[Result]:
        return [row for name in benchmarks for row in results.read(name, self.folder)]

    def table(self, layout: str, *configs: str, benchmark: str = "", **parts: str | None) -> str:
        """A layout filled with the rows of some configs, or of all that have rows; nothing where none was measured.

        ``parts`` are those of ``_index_of``.
        """
        benchmark = benchmark or layout
        named = {config: self.index(benchmark, config, **parts) for config in configs}
        indexes = named or _indexes(self.rows(benchmark), **parts)
        return render_table(layout, indexes) if indexes else ""

    def inputs(self) -> str:
        """The ablation of synthetic inputs on every config that has it; nothing where none has."""
        rows = [row for row in self.rows("kendall") if "split" in row.setting]
        models = dict.fromkeys(row.model for row in rows if row.model and row.model.startswith(_INPUTS))
        if not models:
            return ""
        titles = {"response_nfn": "the usual inputs"} | {name: name.removeprefix(_INPUTS) for name in models}
        folds: Any = {row.config: row.setting["folds"] for row in rows if row.model in models}
        indexes = {config: ResultIndex.latest(rows, config, folds=count) for config, count in folds.items()}
        return render_table("inputs", indexes, titles=titles)

    def data_note(self, *configs: str) -> str:
        """A sentence about the configs whose transformers did not see all data of their task."""
        zoo = PublishedZoo.read(self.folder / _GENERATED)
        # configs with other seeds have the same data
        return with_data_notes("", {config: zoo.config(task_of(config)).data_note() for config in configs}).strip()


def _with_interval(number: Callable[..., float], *values: Any, sign: int = 1, **named: Any) -> str:
    """A number and its interval, such as 0.048 [0.026, 0.072]; ``sign=-1`` turns what is behind into what is ahead."""
    value, *ends = (sign * number(*values, end=end, **named) for end in ("", "_low", "_high"))
    return "{:.3f} [{:.3f}, {:.3f}]".format(value, *sorted(ends))


def _index_of(folder: Path, benchmark: str, config: str, **parts: Any) -> ResultIndex:
    """The rows of a table; a ValueError if there are none. ``parts`` are other arguments of ``ResultIndex.latest``."""
    index = ResultIndex.latest(results.read(benchmark, folder), config, **parts)
    if not index.rows:
        part = "".join(f" --{name.replace('_', '-')} {value!r}" for name, value in parts.items() if value)
        raise ValueError(f"{folder} has no rows of {benchmark} --config {config}{part}: measure them first")
    return index


def _indexes(rows: Sequence[Result], **parts: Any) -> dict[str, ResultIndex]:
    """Config → its rows, by its usual label unless ``parts`` has another, for every config that has some."""
    configs = dict.fromkeys(row.config for row in rows)
    indexes = {config: ResultIndex.latest(rows, config, **parts) for config in configs}
    return {config: index for config, index in indexes.items() if index.rows}


def _headline_zoos(folder: Path) -> dict[str, ResultIndex]:
    """Title → the rows of a zoo, for those of the front page's five that were measured."""
    zoos, rows = {}, results.read("kendall", folder)
    for config, part in _HEADLINE.items():
        task = task_of(config)
        title = KNOWN[task].title + ("" if config == task else ", a seed for each run")
        zoos[title] = ResultIndex.latest(rows, config, part)
    return {title: index for title, index in zoos.items() if index}


def _final_runs(folder: Path, root: Path) -> dict[str, pd.DataFrame]:
    """Config → its completed runs: hyperparameters, and the label that ranks them after the last epoch.

    They are read from the folder beside the rows; language models that are not there, from the zoo of the clone.
    """
    configs = {}
    for zoo in (root / DEFAULT_NAME, folder / _GENERATED):
        for path in zoo.glob(f"*/{RUNS_FILE}"):
            label = usual_label_of(path.parent.name)
            if zoo.name == _GENERATED or label == "test_loss":
                runs = read_table(path, PUBLISHED_RUN_SCHEMA).select([*_RUN_COLUMNS, label]).to_pandas()
                completed = runs[runs["status"] == "completed"].reset_index(drop=True)
                configs[path.parent.name] = completed.assign(**{label: completed[label].str[-1].astype(float)})
    return dict(sorted(configs.items()))


def write_documents(root: Path, rows: Path) -> Iterator[Path]:
    """Writes every document of a clone anew, when all are rendered, and deletes tables without a link."""
    texts = _render(root, rows)
    for document, text in texts.items():
        (root / document).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(root / document, text.encode())
        yield root / document
    for path in _unlinked(root, texts):
        path.unlink()


def _unlinked(root: Path, texts: Iterable[str]) -> list[Path]:
    """Files of tables that no document links to any more."""
    return sorted(set((root / _TABLES).glob("*.md")) - {root / document for document in texts})


def _draw(root: Path, folder: Path) -> Iterator[Path]:
    """Draws the plots of every config that has runs or rows. The scatter plots need trials, too."""
    plots = folder / _PLOTS
    for config, runs in _final_runs(folder, root).items():
        label = usual_label_of(config)
        path = plots / f"{label.removeprefix('test_')}.{config}.png"
        yield plot_histograms({f"{config}, after the last epoch": runs[label]}, path, counted="runs")
    of_tasks = [row for row in results.read("kendall", folder) if row.config in _CONFIGS]
    for config, index in _indexes(of_tasks).items():
        yield tau_by_threshold(index, config, plots / f"kendall.{config}.thresholds.png")
        if predictions := first_predictions(index, folder):
            yield scatter(predictions, f"{config}, test split", plots / f"kendall.{config}.scatter.png")
    for config, index in _indexes(results.read("rows", folder)).items():
        yield tau_by_rows(index, config, plots / f"rows.{config}.png")
    if zoos := _headline_zoos(folder):
        yield headline_plot(zoos, plots / "headline.png")


def find_clone(named: Path | None = None) -> Path:
    """The clone that was named, or that this code runs from, or the current folder: a wheel has no templates."""
    for folder in (named,) if named else (_CLONE, Path.cwd()):
        if all((folder / _TEMPLATES / template).is_file() for template in _DOCUMENTS.values()):
            return folder
    where = named or "this folder"
    raise ValueError(f"no {_TEMPLATES} in {where}: the report is of a clone of the repository, name it with --root")


@_command
def main(options: _Options) -> None:
    root = find_clone(options.root)
    rows = options.results or root / "benchmarks" / "results"
    if options.check:
        texts = _render(root, rows)
        faults = [f"{path.relative_to(root)} has no link: " for path in _unlinked(root, texts)]
        for document, text in texts.items():
            written = (root / document).read_text(encoding="utf-8") if (root / document).is_file() else ""
            if written != text:
                lines = itertools.zip_longest(written.split("\n"), text.split("\n"))
                line = next(number for number, (before, after) in enumerate(lines, start=1) if before != after)
                edit = f"edit {_TEMPLATES}/{_DOCUMENTS[document]}, then " if document in _DOCUMENTS else ""
                faults.append(f"{document}, line {line} is out of date: {edit}")
        for fault in faults:
            print(f"{fault}run python -m benchmarks.report", file=sys.stderr)
        if faults:
            sys.exit(_OUT_OF_DATE)
        print(f"{', '.join(_DOCUMENTS)}: up to date")
    else:
        for path in itertools.chain(_draw(root, rows), write_documents(root, rows)):
            print(f"written: {path}")
