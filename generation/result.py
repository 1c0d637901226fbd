"""What training a run yields."""

from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor

from generation.protocol import RunConfig


@dataclass(frozen=True)
class Checkpoint:
    """Weights of a run at one moment, and what was measured on these very weights."""

    epoch: int
    weights: Float[Tensor, " d"]
    test_accuracy: float
    test_loss: float
    train_loss: float


@dataclass
class Curves:
    """One value an epoch: test accuracy and loss after it, mean loss of its batches as they were trained on."""

    test_accuracy: list[float] = field(default_factory=list)
    test_loss: list[float] = field(default_factory=list)
    train_loss: list[float] = field(default_factory=list)

    @property
    def best_epoch(self) -> int:
        """The epoch, counted from 1, after which test accuracy was highest; the first of equals, 0 for none."""
        return 1 + self.test_accuracy.index(max(self.test_accuracy)) if self.test_accuracy else 0


@dataclass(frozen=True)
class RunResult:
    """A finished run: its checkpoints by label, none where it diverged, and its curves."""

    config: RunConfig
    diverged: bool
    curves: Curves
    checkpoints: dict[str, Checkpoint]
