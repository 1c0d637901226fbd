"""How a neural predictor trains: for how long, at what learning rate, on inputs of what scale, to what target."""

import math
from dataclasses import dataclass
from typing import Protocol

PEAK_RATE, LAST_RATE = 1e-3, 1e-5
EPOCHS, WARMUP = 50, 10
PATIENCE, MAX_EPOCHS, DROP = 10, 400, 0.1


class Schedule(Protocol):
    """The learning rate of one predictor, epoch by epoch; it learns after each whether validation improved."""

    needs_validation: bool

    def rate(self) -> float | None:
        """The rate of the coming epoch; None when training is over."""
        ...

    def advance(self, improved: bool) -> None: ...


@dataclass
class PaperSchedule:
    """Linear warm-up over the first fifth of the epochs to 1e-3, then a cosine to 1e-5 (appendix:training-details).

    The rate changes between epochs. The paper has 50 epochs and so 10 of warm-up.
    """

    epochs: int = EPOCHS
    epoch: int = 0
    needs_validation: bool = False

    def rate(self) -> float | None:
        if self.epoch >= self.epochs:
            return None
        warmup = max(1, round(self.epochs * WARMUP / EPOCHS))
        if self.epoch < warmup:
            return PEAK_RATE * (self.epoch + 1) / warmup
        progress = (self.epoch - warmup + 1) / max(1, self.epochs - warmup)
        return LAST_RATE + (PEAK_RATE - LAST_RATE) * (1 + math.cos(math.pi * progress)) / 2

    def advance(self, improved: bool) -> None:
        self.epoch += 1


@dataclass
class PlateauSchedule:
    """The same warm-up, then the peak rate until validation has not improved for 10 epochs, then a tenth of it, …

    Training ends when the rate falls below the last rate of the paper, 1e-5, or after 400 epochs: every model gets as
    many epochs as it still learns from.
    """

    epoch: int = 0
    level: float = PEAK_RATE
    idle: int = 0
    needs_validation: bool = True

    def rate(self) -> float | None:
        if self.epoch >= MAX_EPOCHS or self.level < LAST_RATE * 0.99:
            return None
        return self.level * min(1.0, (self.epoch + 1) / WARMUP)

    def advance(self, improved: bool) -> None:
        self.epoch += 1
        self.idle = 0 if improved or self.epoch < WARMUP else self.idle + 1
        if self.idle >= PATIENCE:
            self.level *= DROP
            self.idle = 0


@dataclass(frozen=True)
class Recipe:
    """``converged`` trains until validation stops improving, ``scaled`` first brings what is read to unit size.

    ``place`` trains to predict an accuracy's place among the training accuracies, and maps the prediction back.
    """

    converged: bool = False
    scaled: bool = False
    place: bool = False
    weight_decay: float = 0.0

    def schedule(self, epochs: int) -> Schedule:
        return PlateauSchedule() if self.converged else PaperSchedule(epochs)


# The paper's recipe is a fixed number of epochs on the weights as they are. The other columns' recipes change one thing
# each; "gauge" is what Gauge-NFN is trained by.
RECIPES = {
    "paper": Recipe(),
    "converged": Recipe(converged=True),
    "scaled": Recipe(scaled=True),
    "place": Recipe(place=True),
    "gauge": Recipe(place=True, scaled=True, weight_decay=1e-2),
}
COLUMN_RECIPES = ("paper", "converged", "scaled", "place")
