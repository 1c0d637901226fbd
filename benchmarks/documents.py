"""The documents: Jinja2 templates in benchmarks/templates/, filled with numbers and tables of the committed rows.

    {{ tau("mnist", "gauge_nfn") }}                   0.921: Kendall's τ without a threshold, by the model's own recipe
    {{ tau("mnist", "mlp", threshold=0.8) }}          with another setting: threshold, recipe, where, ...
    {{ lead("mnist", "gauge_nfn") }}                  0.048: τ above hyperparameters only
    {{ with_interval(lead, "mnist", "gauge_nfn") }}   0.048 [0.026, 0.072]
    {{ tau("mnist", ["mlp", "statnn"]).max() }}       a list makes an array over its choices
    {{ value("census", "mnist", "shards", "runs") }}  a row of any benchmark, by its model or variant and its metric
    {{ runs("mnist")|length }}                        2,000: the final test accuracies of the generated runs, an array
    {{ kendall_tables("mnist") }}                     a table

``_Contents.names`` has all names that a template can use. A float is written with three digits
(others: ``|digits(1)``), an integer as 2,000. A call that finds no row, or more than one, is an error that names the
line of the template.
"""

import itertools
import os
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache, partial, wraps
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd

from benchmarks import results
from benchmarks.census import census_table
from benchmarks.leaderboard.ranking import leaderboard_tables, read_ranking
from benchmarks.models.registry import MODELS
from benchmarks.options import SIX_MODELS
from benchmarks.results import ResultIndex, Value
from benchmarks.speed.measurements import speed_table
from benchmarks.tables import paper
from benchmarks.tables.ablation import augmentation_table, components_table, variants_table, width_table
from benchmarks.tables.generalization import ROWS_NOTE, TRANSFER_NOTE, rows_table, transfer_table
from benchmarks.tables.kendall import headline_table, kendall_tables, seeds_table
from benchmarks.tables.markdown import table, with_data_notes
from zoo.format.hyperparameters import HYPERPARAMETERS
from zoo.format.manifest import MANIFEST_FILE
from zoo.format.published import RUNS_FILE, PublishedZoo
from zoo.format.record import DISTINCT_SEEDS, config_name, task_of
from zoo.format.schema import PUBLISHED_RUN_SCHEMA
from zoo.format.table_file import read_table
from zoo.reading.selection import select
from zoo.tasks.identity import KNOWN

DOCUMENTS = {
    "README.md": "README.md.j2",
    "benchmarks/README.md": "benchmarks.md.j2",
    "benchmarks/RESULTS.md": "results.md.j2",
    "generation/README.md": "generation.md.j2",
}
"""Document → its template."""
TEMPLATES = "benchmarks/templates"
PLOTS = "plots"
CONFIGS = ("mnist", "agnews")
_IN_BOTH = {"mnist": "train_fraction >= 0.8", "agnews": "train_fraction >= 0.9"}
"""Config → the part of its grid that was trained with either kind of seeds: three and two of its first four shards."""
_WITH_SEEDS = {config: config_name(config, DISTINCT_SEEDS) for config in CONFIGS}
_GOOD = "test_accuracy >= 0.8"  # the last threshold of the paper's tables
_GENERATED = "generated"  # folder beside the rows: a published zoo without its weights
_RUN_COLUMNS = ("status", *HYPERPARAMETERS, "test_accuracy")
_ACCURACY_EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0)
_UNSET = ("components", "channels", "entry_range", "tested_config", "tested_checkpoint", "rows")


def render(root: Path, rows: Path, documents: Iterable[str] = tuple(DOCUMENTS)) -> dict[str, str]:
    """Document → its text, from the templates of a clone and the rows in a folder."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(root / TEMPLATES),
        undefined=jinja2.StrictUndefined,
        finalize=_text,
        keep_trailing_newline=True,
        trim_blocks=True,
    )
    environment.globals |= _Contents(rows).names()
    environment.filters["digits"] = lambda number, digits: f"{number:.{digits}f}"
    return {document: _rendered(environment, document, root, rows) for document in documents}


def _rendered(environment: jinja2.Environment, document: str, root: Path, rows: Path) -> str:
    """One document; a ValueError names the line of its template."""
    name = DOCUMENTS[document]
    plots = Path(os.path.relpath((rows / PLOTS).resolve(), (root / document).resolve().parent)).as_posix()
    try:
        return environment.get_template(name).render(plots=plots)
    except (jinja2.TemplateError, ValueError, TypeError, KeyError) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if Path(frame.filename).name == name]
        line = error.lineno if isinstance(error, jinja2.TemplateSyntaxError) else next(reversed(lines), 1)
        raise ValueError(f"{TEMPLATES}/{name}, line {line}: {error}") from error


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
        split = len(values)
        found = [function(*one[:split], **dict(zip(named, one[split:], strict=True))) for one in choices]
        return np.array(found) if any(isinstance(value, list) for value in given) else found[0]

    return call


class _Contents:
    """Everything that a template can call: numbers first, then tables."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index = cache(partial(_index_of, folder))
        self.final_runs = cache(partial(final_runs, folder))

    def names(self) -> dict[str, Any]:
        kendall = partial(self.value, "kendall")
        numbers = {
            "value": self.value,
            "tau": kendall,
            "lead": partial(kendall, metric="tau_above_hyperparameters"),
            "behind": partial(kendall, metric="tau_behind_leader"),
            "within": partial(kendall, metric="tau_within"),
            "count": lambda config, split: round(kendall(config, "data", f"{split}_rows")),
            "moved": self.moved,
            "transfer": self.transfer,
            "curve": partial(self.value, "rows", metric="tau_extrapolated", rows=paper.TRAIN_ROWS),
            "paper": _of_paper,
            "below_paper": lambda config, who, at: _of_paper(config, who, at) - kendall(config, who, threshold=at),
        }
        constants = {
            "both": _IN_BOTH,
            "zoos": list(CONFIGS),
            "thresholds": list(paper.THRESHOLDS),
            "models_of_paper": list(SIX_MODELS),
            "ranges": [size for size in paper.RANGES if size],
            "widths": list(paper.WIDTHS),
            "widths_of_paper": [tau for tau, _ in paper.WIDTHS.values()],
        }
        tables = {
            "headline": self.headline,
            "kendall_tables": self.kendall_tables,
            "seeds_tables": self.seeds_tables,
            "components_tables": self.components_tables,
            "width_tables": partial(self.one_by_one, "ablation_width", width_table),
            "augmentation_tables": partial(self.one_by_one, "augmentation", augmentation_table),
            "transfer_tables": partial(self.of_all_configs, "transfer", transfer_table, TRANSFER_NOTE),
            "rows_tables": partial(self.of_all_configs, "rows", rows_table, ROWS_NOTE),
            "leaderboard": self.leaderboard,
            "census": lambda: census_table(results.read("census", self.folder)),
            "accuracies": lambda: _accuracies_table({name: self.runs(name) for name in self.final_runs()}),
            "speed": self.speed,
            "fidelity": self.fidelity,
        }
        others = {"runs": self.runs, "with_interval": _with_interval, "spread": np.ptp}
        return {name: _over_lists(function) for name, function in numbers.items()} | constants | tables | others

    def value(
        self,
        benchmark: str,
        config: str,
        who: str,
        metric: str = "tau",
        *,
        end: str = "",
        where: str | None = None,
        **setting: Value,
    ) -> float:
        """The value of the one row that fits. What the setting leaves out is not set, and the recipe is the model's.

        ``end`` is _low or _high for the ends of an interval.
        """
        if benchmark == "kendall" and where is None:
            where = next((_IN_BOTH[task] for task, name in _WITH_SEEDS.items() if name == config), None)
        recipe = MODELS[who].recipe if who in MODELS else "paper"
        plain: dict[str, Value] = {"threshold": 0.0, "recipe": recipe, **dict.fromkeys(_UNSET)}
        wanted = plain | {name: list(value) if isinstance(value, tuple) else value for name, value in setting.items()}
        found = [
            row.value
            for row in self.index(benchmark, config, where).measured(metric + end, who)
            if all(row.setting.get(name, plain.get(name)) == value for name, value in wanted.items())
        ]
        if len(found) != 1:
            what = [benchmark, config, who, metric + end, *(f"{name}={value}" for name, value in setting.items())]
            remedy = "name more settings" if found else "measure it first"
            raise ValueError(f"{len(found)} rows fit {' '.join(what)}, one should: {remedy}")
        return found[0]

    def transfer(
        self, config: str, who: str, metric: str = "tau", *, to: str = "", checkpoint: str = "epoch_75", end: str = ""
    ) -> float:
        """A number of a predictor fitted on one config, on unseen configurations of another config or checkpoint."""
        tested = {"tested_config": to or config, "tested_checkpoint": checkpoint, "tested_unseen": True}
        return self.value("transfer", config, who, metric, end=end, **tested)

    def moved(self, config: str, who: str, entry_range: float) -> float:
        """How much τ gains where every split is doubled by moved checkpoints."""
        tau = partial(self.value, "augmentation", config, who)
        return tau(entry_range=entry_range) - tau()

    def runs(self, config: str, where: str | None = None) -> np.ndarray:
        """Final test accuracies of the generated runs."""
        runs = self.final_runs()[config]
        return runs["test_accuracy"].to_numpy()[select(runs, where)]

    def noted(self, text: str, *configs: str) -> str:
        """A table, and what its reader must know about the data of its configs."""
        notes = {}
        if (self.folder / _GENERATED / MANIFEST_FILE).is_file():
            zoo = PublishedZoo.read(self.folder / _GENERATED)
            notes = {name: config.data_note() for name, config in zoo.configs.items()}
        # configs with other seeds have the same data
        return with_data_notes(text, {config: notes.get(task_of(config)) for config in configs})

    def headline(self) -> str:
        return self.noted(headline_table(headline_zoos(self.folder)), *CONFIGS, *_WITH_SEEDS.values())

    def kendall_tables(self, config: str, where: str | None = None) -> str:
        return self.noted(kendall_tables(without_variants(self.index("kendall", config, where)), config), config)

    def seeds_tables(self, config: str) -> str:
        """The same configurations of both zoos of a task, then the whole table of the second."""
        distinct_config = _WITH_SEEDS[config]
        shared, distinct = (
            without_variants(self.index("kendall", name, _IN_BOTH[config])) for name in (config, distinct_config)
        )
        tables = [seeds_table(shared, distinct, config), kendall_tables(distinct, distinct_config)]
        return self.noted("\n\n".join(tables), config, distinct_config)

    def components_tables(self) -> str:
        """The table of all rows; then, for AG News, that of the good ones and that of Transformer-NFN's variants."""
        whole = {config: self.index("ablation_components", config) for config in CONFIGS}
        good = {"agnews": self.index("ablation_components", "agnews", _GOOD)}
        variants = variants_table(self.index("kendall", "agnews"), "agnews")
        return self.noted("\n\n".join([components_table(whole), components_table(good), variants]), *CONFIGS)

    def one_by_one(self, benchmark: str, layout: Callable[[ResultIndex, str], str]) -> str:
        """The tables of both tasks, that of the paper first."""
        configs = ("agnews", "mnist")
        return "\n\n".join(self.noted(layout(self.index(benchmark, config), config), config) for config in configs)

    def of_all_configs(self, benchmark: str, layout: Callable[[ResultIndex, str], str], note: str) -> str:
        """The tables of every config that has rows, then the note that they share."""
        indexes = all_configs(benchmark, self.folder)
        tables = [layout(index, config) for config, index in indexes.items()]
        return self.noted("\n\n".join([*tables, note]), *indexes)

    def leaderboard(self, top: int | None = None) -> str:
        """All rankings, or the best of each."""
        rankings = [ranking | {"entries": ranking["entries"][:top]} for ranking in read_ranking(self.folder)]
        return leaderboard_tables(rankings)

    def speed(self) -> str:
        names = ("generation", "nfn", "loader")
        return speed_table([row for name in names for row in results.read(f"speed.{name}", self.folder)])

    def fidelity(self) -> str:
        from benchmarks.fidelity import fidelity_table  # which imports the generator

        return fidelity_table(results.read("fidelity", self.folder))


def _of_paper(config: str, who: str, threshold: float = 0.0) -> float:
    return paper.KENDALL[config][who][threshold][0]


def _with_interval(number: Callable[..., float], *values: Any, sign: int = 1, **named: Any) -> str:
    """A number and its interval, such as 0.048 [0.026, 0.072]; ``sign=-1`` turns what is behind into what is ahead."""
    value, *ends = (sign * number(*values, end=end, **named) for end in ("", "_low", "_high"))
    return "{:.3f} [{:.3f}, {:.3f}]".format(value, *sorted(ends))


def _index_of(folder: Path, benchmark: str, config: str, where: str | None = None) -> ResultIndex:
    """The rows of a table; a ValueError if there are none."""
    index = ResultIndex.latest(results.read(benchmark, folder), config, where)
    if not index.rows:
        part = f" --where {where!r}" if where else ""
        raise ValueError(f"{folder} has no rows of {benchmark} --config {config}{part}: measure them first")
    return index


def all_configs(benchmark: str, folder: Path) -> dict[str, ResultIndex]:
    """Config → its rows, for every config that has some."""
    configs = dict.fromkeys(row.config for row in results.read(benchmark, folder) if row.setting.get("where") is None)
    return {config: _index_of(folder, benchmark, config) for config in configs}


def without_variants(index: ResultIndex) -> ResultIndex:
    """All rows but those of variants, which are shown beside the model that they change."""
    variants = {name for name, model in MODELS.items() if model.variant_of}
    return replace(index, rows=tuple(row for row in index.rows if row.model not in variants))


def headline_zoos(folder: Path) -> dict[str, ResultIndex]:
    """Title → the rows of a zoo, for those of the front page's four that were measured."""
    rows = results.read("kendall", folder)
    zoos = {KNOWN[config].title: ResultIndex.latest(rows, config) for config in CONFIGS}
    zoos |= {
        f"{KNOWN[config].title}, a seed for each run": ResultIndex.latest(rows, _WITH_SEEDS[config], part)
        for config, part in _IN_BOTH.items()
    }
    return {title: without_variants(index) for title, index in zoos.items() if index}


def final_runs(folder: Path) -> dict[str, pd.DataFrame]:
    """Config → its completed runs: hyperparameters, and test accuracy after the last epoch.

    Their curves are kept beside the result rows, without the weights.
    """
    configs = {}
    for path in sorted((folder / _GENERATED).glob(f"*/{RUNS_FILE}")):
        runs = read_table(path, PUBLISHED_RUN_SCHEMA).select(list(_RUN_COLUMNS)).to_pandas()
        completed = runs[runs["status"] == "completed"].reset_index(drop=True)
        final = [float(curve[-1]) for curve in completed["test_accuracy"]]
        configs[path.parent.name] = completed.assign(test_accuracy=final)
    return configs


def _accuracies_table(accuracies: Mapping[str, np.ndarray]) -> str:
    """fig:dataset_acc_hist in numbers, from name → final test accuracies of its runs."""
    lines = []
    for name, values in accuracies.items():
        shares = np.histogram(values, _ACCURACY_EDGES)[0] / len(values)
        ends = (f"{np.median(values):.3f}", f"{values.max():.3f}")
        lines.append([name, f"{len(values):,}", *(f"{share:.1%}" for share in shares), *ends])
    intervals = [f"{low:.0%} to {high:.0%}" for low, high in itertools.pairwise(_ACCURACY_EDGES)]
    return table(["test accuracy after the last epoch", "runs", *intervals, "median", "best"], lines)
