"""Markdown tables and numbers as text."""

import itertools
import re
from collections.abc import Sequence

from benchmarks.results import Result
from benchmarks.tables.result_index import ResultIndex, Value

MISSING = "–"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others numbers."""
    lines = [" | ".join(headings), " | ".join(["---", *["---:"] * (len(headings) - 1)])]
    lines += [" | ".join(row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def for_terminal(text: str) -> str:
    """The same text with its tables aligned and without Markdown's marks, for someone who reads it in a terminal."""
    parts = []
    for is_table, group in itertools.groupby(text.split("\n"), lambda line: line.startswith("|")):
        lines = list(group)
        parts += aligned(lines) if is_table else lines
    return "\n".join(parts)


def aligned(lines: Sequence[str]) -> list[str]:
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


def with_error(value: float, stderr: float | None) -> str:
    """0.905 ± 0.002, or without the error if there is none."""
    return f"{value:.3f}" if stderr is None else f"{value:.3f} ± {stderr:.3f}"


def tau_text(row: Result | None) -> str:
    return MISSING if row is None else with_error(row.value, row.stderr)


def tau_cell(
    index: ResultIndex, model: str, paper: tuple[float, float] | None, *, best: bool = False, **setting: Value
) -> str:
    """Our τ with its error, its interval, and the τ of the paper; in bold if it is the best."""
    ours = tau_text(index.find("tau", model, **setting))
    interval = index.interval("tau", model, **setting)
    lines = [f"**{ours}**" if best else ours]
    if interval is not None:
        lines.append(f"[{interval[0]:.3f}, {interval[1]:.3f}]")
    if paper is not None:
        lines.append(f"paper {with_error(*paper)}")
    return "<br>".join(lines)


def number(value: float | None, form: str = ",.0f") -> str:
    return MISSING if value is None else f"{value:{form}}"


def threshold_title(threshold: float) -> str:
    return "no threshold" if threshold == 0 else f"≥ {threshold * 100:g}%"
