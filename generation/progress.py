"""What a user sees while a shard trains: lines on stderr, a progress bar on a terminal."""

from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

Report = Callable[[int, int, str], None]
"""Told after each epoch: its number, how many there are, and how it goes."""

console = Console(stderr=True)


def no_report(epoch: int, epochs: int, status: str) -> None:
    """For those who only want the shard."""


def say(line: str) -> None:
    console.print(line, soft_wrap=True, highlight=False, markup=False)


def epoch_bar() -> Progress:
    """Epochs done, how it goes, time left; silent where stderr is not a terminal."""
    return Progress(
        TextColumn("epoch"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.fields[status]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def describe_progress(accuracy: Tensor, diverged: int, models_per_second: float) -> str:
    accuracy = accuracy[~accuracy.isnan()]
    parts = [f"{models_per_second:.3g} models/s"]
    if len(accuracy):
        parts.append(f"accuracy best {float(accuracy.max()):.3f} median {float(accuracy.median()):.3f}")
    if diverged:
        parts.append(f"{diverged} diverged")
    return "  ".join(parts)
