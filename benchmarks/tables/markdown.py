"""Markdown tables and numbers as text."""

from collections.abc import Sequence

from benchmarks.results import Result
from benchmarks.tables.result_index import ResultIndex, Value

MISSING = "–"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others numbers."""
    lines = [" | ".join(headings), " | ".join(["---", *["---:"] * (len(headings) - 1)])]
    lines += [" | ".join(row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


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
    return "no threshold" if threshold == 0 else f"≥ {threshold:.0%}"
