"""Markdown tables, and the texts of their cells."""

import itertools
import re
from collections.abc import Mapping, Sequence

from benchmarks.models.registry import BenchmarkModel, known_models
from benchmarks.results import Result, ResultIndex, Value

MISSING = "–"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others numbers."""
    lines = [" | ".join(headings), " | ".join(["---", *["---:"] * (len(headings) - 1)])]
    lines += [" | ".join(row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def with_data_notes(text: str, trained_on: Mapping[str, str | None]) -> str:
    """A table and a sentence about the configs whose transformers did not see all data of their task.

    ``trained_on`` gives the data of these configs, and None for the others.
    """
    short: dict[str, list[str]] = {}
    for config, note in trained_on.items():
        if note is not None:
            short.setdefault(note, []).append(config)
    notes = [
        f"The transformers of {' and '.join(configs)} were trained on {note}, the paper's on all of it."
        for note, configs in short.items()
    ]
    return "\n\n".join([text, *notes])


def for_terminal(text: str) -> str:
    """The same text with its tables aligned and without Markdown's marks, to be read in a terminal."""
    lines = []
    for is_table, group in itertools.groupby(text.split("\n"), lambda line: line.startswith("|")):
        part = list(group)
        lines += _aligned(part) if is_table else part
    return "\n".join(lines)


def _aligned(lines: Sequence[str]) -> list[str]:
    """The lines of a Markdown table in columns; a cell of several lines takes as many. A * marks what was bold."""
    rows = [re.sub(r"\*\*(.+?)\*\*", r"\1 *", line).strip("| ").split(" | ") for line in lines]
    cells = [[cell.split("<br>") for cell in row] for number, row in enumerate(rows) if number != 1]
    widths = [max(len(line) for row in cells for line in row[column]) for column in range(len(rows[0]))]
    printed = []
    for row in cells:
        for height in range(max(map(len, row))):
            texts = [cell[height] if height < len(cell) else "" for cell in row]
            numbers = [text.rjust(width) for text, width in zip(texts[1:], widths[1:], strict=True)]
            printed.append("  ".join([texts[0].ljust(widths[0]), *numbers]).rstrip())
    return printed


def number(value: float | None, form: str = ",.0f") -> str:
    return MISSING if value is None else f"{value:{form}}"


def threshold_title(threshold: float) -> str:
    return "no threshold" if threshold == 0 else f"≥ {threshold * 100:g}%"


def with_error(value: float, stderr: float | None) -> str:
    """0.905 ± 0.002, or without the error if there is none."""
    return f"{value:.3f}" if stderr is None else f"{value:.3f} ± {stderr:.3f}"


def tau_text(row: Result | None) -> str:
    return MISSING if row is None else with_error(row.value, row.stderr)


def interval_text(index: ResultIndex, metric: str, who: str, **setting: Value) -> str:
    """[0.907, 0.933], or nothing if it was not measured."""
    interval = index.interval(metric, who, **setting)
    return "" if interval is None else "[{:.3f}, {:.3f}]".format(*interval)


def tau_cell(
    index: ResultIndex, model: str, paper: tuple[float, float] | None = None, *, best: bool = False, **setting: Value
) -> str:
    """Our τ with its error, its interval, and the τ of the paper; in bold if it is the best."""
    ours = tau_text(index.find("tau", model, **setting))
    lines = [f"**{ours}**" if best else ours, interval_text(index, "tau", model, **setting)]
    return "<br>".join(filter(None, [*lines, f"paper {with_error(*paper)}" if paper else ""]))


def models_in(index: ResultIndex, **setting: Value) -> dict[str, BenchmarkModel]:
    """The models that have a τ here by the recipe of their main column, in the order of the tables."""
    models = known_models().items()
    return {name: model for name, model in models if index.find("tau", name, recipe=model.recipe, **setting)}
