"""Tables like those of the paper, made only from result rows: layouts are templates, the texts of cells are made here.

    render_table("kendall", {"mnist": index})       templates/tables/kendall.md.j2, from config → its rows
    render_table("speed", rows=rows)                other layouts take other values

A template can call every function of this module, without its underscore and also as a filter.
"""

import functools
import html
import inspect
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

import jinja2

from benchmarks import paper
from benchmarks.data import MIN_ROWS
from benchmarks.models.registry import MODELS, BenchmarkModel, known_models, weight_models
from benchmarks.options import SIX_MODELS
from benchmarks.results import Result, ResultIndex, Value
from zoo.checked import printable
from zoo.format.splits import SPLITS
from zoo.storage.atomic import write_atomically
from zoo.tasks.toml_text import toml_value
from zoo.terminal import plain_markdown
from zoo.transformer.spec import COMPONENTS

_MISSING = "–"
MODEL = "transformer_nfn"
"""The model of the ablations."""
_WIDTH, _NAMES, _HEADING, _GAP = 100, 30, 10, "  "
"""Columns of a terminal; of them at least these for names, and for the heading of a number."""
_LINK = re.compile(r"( · )?\[([^\[\]]+)\]\(\S+?\)")
_FEWEST_RUNS = 30  # with fewer, the interval of τ is wider than what predictors differ by
_LAYOUTS = Path(__file__).parent / "templates" / "tables"


def render_table(layout: str, indexes: Mapping[str, ResultIndex] | None = None, **values: Any) -> str:
    """The text of a layout: one table or more, and notes on them. Blank lines at its ends do not count."""
    text = environment().get_template(f"{layout}.md.j2").render(indexes=indexes, **values)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _heading(first: str, others: Iterable[str]) -> str:
    """The first two lines of a table; the first column is text, the others numbers."""
    others = list(others)
    return f"| {' | '.join([first, *others])} |\n| --- |{' ---: |' * len(others)}"


def with_data_notes(text: str, trained_on: Mapping[str, str | None]) -> str:
    """A table and a sentence about the configs whose transformers did not see all data of their task.

    ``trained_on`` gives the data of these configs, and None for the others.
    """
    for note in dict.fromkeys(filter(None, trained_on.values())):
        configs = " and ".join(config for config, own in trained_on.items() if own == note)
        text += f"\n\nThe transformers of {configs} were trained on {note}, those of the paper on all of them."
    return text


def write_table(text: str, path: Path) -> None:
    """Writes a table to a file, and prints it for a terminal."""
    write_atomically(path, f"{text}\n".encode())
    print(f"{for_terminal(text)}\n")


def for_terminal(text: str) -> str:
    """The same text for a terminal: 100 columns wide, without Markdown's marks and without empty columns of tables."""
    lines = []
    for is_table, group in itertools.groupby(text.split("\n"), lambda line: line.startswith("|")):
        part = list(group)
        plain = [re.sub(r"\*\*|`", "", line).replace("Bold is", "* is") for line in part]
        lines += _aligned(part) if is_table else [row for line in plain for row in wrap(line, _WIDTH) or [""]]
    return "\n".join(lines)


def _aligned(lines: Sequence[str]) -> list[str]:
    """The lines of a Markdown table in columns; those that do not fit beside each other follow in a table below.

    A cell of several lines takes as many, and a heading as many as its column is narrow.
    """
    cells = [line.split("|")[1:-1] for line in lines]
    heading, _, *body = [[[_without_marks(part) for part in cell.split("<br>")] for cell in row] for row in cells]
    first, *others = zip(heading, *body, strict=True)
    filled = [column for column in others if any(set(cell) - {"", _MISSING} for cell in column[1:])]
    columns = [(_lines_of(column[0], max(_HEADING, _width(column[1:]))), *column[1:]) for column in filled]
    room = _WIDTH - sum(_width(column) + len(_GAP) for column in columns)
    names = [_lines_of(cell, max(_NAMES, room)) for cell in first]
    printed = list[str]()
    while columns or not printed:
        beside, room = list[Sequence[list[str]]](), _WIDTH - _width(names)
        while columns and (not beside or _width(columns[0]) + len(_GAP) <= room):
            beside.append(columns.pop(0))
            room -= _width(beside[-1]) + len(_GAP)
        widths = [_width(names), *map(_width, beside)]
        printed += [""] if printed else []
        for row in zip(names, *beside, strict=True):
            for name, *numbers in itertools.zip_longest(*row, fillvalue=""):
                right = (number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True))
                printed.append(_GAP.join([name.ljust(widths[0]), *right]).rstrip())
    return printed


def _lines_of(cell: Sequence[str], width: int) -> list[str]:
    """The text of a cell in lines of this width; a longer word, such as a path, is not broken."""
    return wrap(" ".join(cell), width, break_long_words=False, break_on_hyphens=False)


def _width(cells: Iterable[Sequence[str]]) -> int:
    return max((len(line) for cell in cells for line in cell), default=0)


def _without_marks(text: str) -> str:
    """A line of a cell as plain text: a * marks what was bold, and a link is its first text."""
    text = re.sub(r"\*\*(.+?)\*\*", r"\1 *", text.strip()).replace("(bold)", "(*)")
    return printable(html.unescape(_LINK.sub(lambda found: "" if found[1] else found[2], text)))


def _number(value: float | None, form: str = ",.0f") -> str:
    return _MISSING if value is None else f"{value:{form}}"


def _threshold_title(threshold: float) -> str:
    return "no threshold" if threshold == 0 else f"≥ {threshold * 100:g}%"


def _with_error(value: float, stderr: float | None) -> str:
    """0.905 ± 0.002, or without the error if there is none."""
    return f"{value:.3f}" if stderr is None else f"{value:.3f} ± {stderr:.3f}"


def _tau_text(row: Result | None) -> str:
    return _MISSING if row is None else _with_error(row.value, row.stderr)


def _interval_text(interval: Sequence[float] | None) -> str:
    """[0.907, 0.933], or nothing if it was not measured."""
    return "" if interval is None else "[{:.3f}, {:.3f}]".format(*interval)


def with_interval(value: float | None, interval: Sequence[float] | None) -> str:
    """0.921 [0.907, 0.933], or without the interval if there is none."""
    return f"{_number(value, '.3f')} {_interval_text(interval)}".strip()


def _tau_cell(
    index: ResultIndex, model: str, paper: tuple[float, float] | None = None, *, best: bool = False, **setting: Value
) -> str:
    """Our τ with its error, its interval, and the τ of the paper; in bold if it is the best."""
    ours = _tau_text(index.find("tau", model, **setting))
    lines = [f"**{ours}**" if best else ours, _interval_text(index.interval("tau", model, **setting))]
    return "<br>".join(filter(None, [*lines, f"paper {_with_error(*paper)}" if paper else ""]))


def _models_in(index: ResultIndex, **setting: Value) -> dict[str, BenchmarkModel]:
    """The models that have a τ here by the recipe of their main column, in the order of the tables."""
    models = known_models().items()
    return {name: model for name, model in models if index.find("tau", name, recipe=model.recipe, **setting)}


def main_setting(name: str, threshold: float = 0.0) -> dict[str, float | str]:
    """The setting of a model's rows in the main columns: a threshold, and the recipe of that model."""
    return {"threshold": threshold, "recipe": known_models()[name].recipe}


def _counts(index: ResultIndex, threshold: float = 0.0) -> list[float | None]:
    """The number of rows in each split."""
    return [index.value(f"{split}_rows", "data", threshold=threshold) for split in SPLITS]


def leader(*indexes: ResultIndex, threshold: float = 0.0) -> str | None:
    """The best on average of the models that read weights alone and have a τ in all of these rows.

    None where there are too few test runs to tell.
    """
    if any(_few_runs(index, threshold) for index in indexes):
        return None
    means = {}
    for name in weight_models():
        taus = [index.value("tau", name, **main_setting(name, threshold)) for index in indexes]
        known = [tau for tau in taus if tau is not None]
        if known and len(known) == len(indexes):
            means[name] = sum(known) / len(known)
    return max(means, key=means.__getitem__, default=None)


def _few_runs(index: ResultIndex, threshold: float) -> int | None:
    """The number of test runs where it is too small to order predictors by τ. Older tables have counted rows alone."""
    counts = [index.value(f"test_{what}", "data", threshold=threshold) for what in ("runs", "rows")]
    count = next((round(count) for count in counts if count is not None), _FEWEST_RUNS)
    return count if count < _FEWEST_RUNS else None


def count_runs(index: ResultIndex) -> str:
    """How many runs the three splits have together."""
    counts = _counts(index)
    return _number(None if None in counts else sum(count or 0.0 for count in counts))


def _row_counts(index: ResultIndex, threshold: float) -> str:
    return " / ".join(map(_number, _counts(index, threshold)))


def headline_models(zoos: Mapping[str, ResultIndex]) -> list[str]:
    """The models that have a row in some zoo; the one that reads no weights is the one to beat, and comes first."""
    names = ("hyperparameters", *weight_models())
    return [name for name in names if any(index.find("tau", name, **main_setting(name)) for index in zoos.values())]


def _converged_text(index: ResultIndex, name: str, threshold: float) -> str:
    """τ of a model that was trained until validation stops improving, and its epochs."""
    setting = {"threshold": threshold, "recipe": "converged"}
    row, epochs = index.find("tau", name, **setting), index.value("epochs", name, **setting)
    return _MISSING if row is None else f"{_tau_text(row)} ({_number(epochs)} epochs)"


def _constant_models(index: ResultIndex) -> dict[str, list[float]]:
    """Which models predict a constant, at which thresholds. Trees do if two leaves of 50 rows cannot be made."""
    found = {
        name: [at for at in index.thresholds if index.value("constant_seeds", name, **main_setting(name, at))]
        for name in known_models()
    }
    return {name: thresholds for name, thresholds in found.items() if thresholds}


def _too_few_rows(index: ResultIndex) -> list[float]:
    """Thresholds where no model has τ because of the rows: too few to fit, or to rank those of the test split.

    Elsewhere a missing τ means that a model could not be computed, which is reported otherwise.
    """
    found = []
    for threshold in index.thresholds:
        known = [count for count in _counts(index, threshold) if count is not None]
        enough = not known or (len(known) < len(SPLITS) and min(known) >= MIN_ROWS)
        if not enough and all(index.value("tau", name, threshold=threshold) is None for name in known_models()):
            found.append(threshold)
    return found


def _component_cell(index: ResultIndex, config: str, components: tuple[str, ...]) -> str:
    """τ of some components. Result rows of all components together have no ``components`` in their setting."""
    settings = [row.setting.get("components") for row in index.rows]
    tried = {name for names in settings if isinstance(names, list | tuple) for name in names}
    everything = tuple(name for name in COMPONENTS if name in tried) or COMPONENTS
    printed = paper.COMPONENTS.get(config, {}).get(components) if index.whole else None
    return _tau_cell(index, MODEL, printed, components=None if components == everything else components)


def _lead_of_nfn(index: ResultIndex, entry_range: float | None) -> str:
    """How far Transformer-NFN is above the best of the paper's others."""
    taus = {name: index.value("tau", name, entry_range=entry_range) for name in SIX_MODELS}
    ours = taus.pop(MODEL)
    known = [tau for tau in taus.values() if tau is not None]
    return _MISSING if ours is None or not known else f"{ours - max(known):.3f}"


def sizes_of(index: ResultIndex) -> dict[int | None, int]:
    """How many rows were trained on, ascending, by the setting that the result rows have; None stands for all."""
    sizes = [row.setting.get("rows") for row in index.rows if row.metric == "tau"]
    counts: dict[int | None, int] = {size: size for size in sorted({size for size in sizes if isinstance(size, int)})}
    every = index.value("train_rows", "data", rows=None)
    return counts | ({None: round(every)} if None in sizes and every is not None else {})


def end_of_curves(index: ResultIndex) -> int | None:
    """The number of rows that the curves go on to; None if none was fitted."""
    ends = [row.setting.get("rows") for row in index.rows if row.metric == "tau_extrapolated"]
    return next((end for end in reversed(ends) if isinstance(end, int)), None)


def curve_of(index: ResultIndex, name: str, end: int) -> tuple[float, ...] | None:
    """τ∞, a and b of τ(n) = τ∞ − a·n^(−b)."""
    found = [index.find(f"curve_{part}", name, rows=end) for part in ("limit", "scale", "exponent")]
    return tuple(row.value for row in found if row) if all(found) else None


def tau_of_paper(index: ResultIndex, config: str, name: str, end: int) -> tuple[float, float] | None:
    """The paper's τ, to show beside a curve that goes on to as many rows."""
    return paper.KENDALL.get(config, {}).get(name, {}).get(0.0) if index.whole and end == paper.TRAIN_ROWS else None


def _tested_elsewhere(index: ResultIndex) -> list[tuple[dict[str, Value], dict[str, Value], list[float | None]]]:
    """The other test splits: the setting of rows on unseen configurations, that on all, and how many rows both have."""
    settings = [row.setting for row in index.rows if "tested_config" in row.setting]
    tested = dict.fromkeys((str(one["tested_config"]), str(one["tested_checkpoint"])) for one in settings)
    columns = []
    for config, checkpoint in tested:
        there: dict[str, Value] = {"tested_config": config, "tested_checkpoint": checkpoint}
        unseen, every = (there | {"tested_unseen": flag} for flag in (True, False))
        columns.append((unseen, every, [index.value("test_rows", "data", **setting) for setting in (unseen, every)]))
    return columns


def _last_measured(
    rows: Sequence[Result], metric: str, variant: str, device: str, config: str = "mnist", **setting: Any
) -> list[Result]:
    """The rows of a metric and variant on such a device, the last one first."""
    return [
        row
        for row in reversed(rows)
        if (row.metric, row.variant, row.config) == (metric, variant, config)
        and device in row.device
        and setting.items() <= row.setting.items()
    ]


@functools.cache
def environment() -> jinja2.Environment:
    """Of the layouts in templates/tables/, and of the card of a fitted predictor."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_LAYOUTS), undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    own = (each for each in globals().values() if inspect.isfunction(each) and each.__module__ == __name__)
    functions = {each.__name__.removeprefix("_"): each for each in (*own, known_models, plain_markdown)}
    trees = [name for name, model in MODELS.items() if not model.neural]
    made.filters |= functions | {"toml": toml_value}
    made.globals |= functions | {"paper": paper, "MODELS": MODELS, "SIX_MODELS": SIX_MODELS, "TREES": trees}
    made.globals |= {"MODEL": MODEL, "MISSING": _MISSING, "SPLITS": SPLITS}
    return made
