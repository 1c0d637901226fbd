"""The rows of a speed benchmark, printed and stored the moment they are measured: being cut off loses none of them."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks import results
from benchmarks.results import Result, Scalar
from zoo.command import duration


@dataclass(frozen=True)
class Record:
    """Where rows go: to the terminal and, unless it is a dry run, to the file of their benchmark."""

    dry_run: bool = False

    def keep(self, rows: Iterable[Result]) -> None:
        """Takes each row as it comes; ``rows`` may be a generator that is still measuring the next one."""
        for row in rows:
            if not self.dry_run:
                results.append([row])
            print(line_of(row), flush=True)


def line_of(row: Result) -> str:
    """Config, variant, metric, value ± standard error, and the setting."""
    spread = "" if row.stderr is None else f" ± {number(row.stderr)}"
    setting = ", ".join(f"{name} {text_of(value)}" for name, value in row.setting.items())
    value = f"{number(row.value)}{spread}"
    return f"{row.config:8s} {row.variant or '':26s} {row.metric:34s} {value:20s} {row.device}: {setting}"


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def text_of(value: Scalar | list[Scalar]) -> str:
    return number(value) if isinstance(value, float) else str(value)


def say(text: str) -> None:
    """What is being done, beside the rows."""
    print(text, file=sys.stderr, flush=True)


def say_seconds(seconds: float) -> None:
    """How long the samples that come now will take, where that is worth a line."""
    if seconds > 5:
        say(f"  about {duration(seconds)}")
