"""Progress of a shard while it trains: lines on stderr, a progress bar on a terminal."""

import time
from collections.abc import Callable

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from torch import Tensor

from zoo.command import duration
from zoo.terminal import PlainConsole

Report = Callable[[int, int, str], None]
"""Called after each epoch with its number, how many there are, and a status line."""

_console = PlainConsole(stderr=True)


def say(line: str) -> None:
    _console.print(line, soft_wrap=True)


def epoch_bar() -> Progress:
    """Epochs done and the status line; silent where stderr is not a terminal."""
    return Progress(
        TextColumn("epoch"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.fields[status]}"),
        console=_console,
        disable=not _console.is_terminal,
    )


class EpochProgress:
    """How fast a population trains, by the epochs of this process alone: a resumed shard's rate is not flattered."""

    def __init__(self, runs: int, epochs: int, first_epoch: int) -> None:
        self.runs, self.epochs, self.first_epoch = runs, epochs, first_epoch
        self.start = time.monotonic()

    def describe(self, epoch: int, accuracy: Tensor, diverged: int) -> str:
        """After ``epoch`` epochs: model-epochs per second, the accuracies of the runs that are alive, the time left."""
        # the clock may be too coarse to see the epoch pass
        elapsed = max(time.monotonic() - self.start, 1e-9)
        accuracy = accuracy[~accuracy.isnan()]
        parts = [f"{self.runs * (epoch - self.first_epoch) / elapsed:,.3g} model-epochs/s"]
        if len(accuracy):
            parts.append(f"accuracy best {float(accuracy.max()):.3f} median {float(accuracy.median()):.3f}")
        if diverged:
            parts.append(f"{diverged} diverged")
        if epoch < self.epochs:
            left = elapsed / (epoch - self.first_epoch) * (self.epochs - epoch)
            parts.append(f"{duration(left)} left")
        return "  ".join(parts)
