"""How the runs of a zoo are trained, the presets, and what identifies a run."""

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from msgspec import Meta

from zoo.checked import NotNegative, check_fields
from zoo.format.hyperparameters import Hyperparameters
from zoo.format.recipe import epochs_of_checkpoints, hashed_configuration, run_id

MOMENTUM = 0.9
ADAM_BETAS = (0.9, 0.999)
RMSPROP_ALPHA = 0.99
EPSILON = 1e-8
_LATER = {"crop_padding": 2, "checkpoint_epochs": None}
"""Fields of a protocol that the first zoos' files do not have, and their values there."""
Epochs = Annotated[int, Meta(ge=1, le=10_000)]


@dataclass(frozen=True)
class Protocol:
    """The settings that all runs of a zoo share. The defaults are the paper's.

    Images are padded by ``crop_padding`` zeros on each side and cropped at random to their size. Checkpoints are taken
    after ``checkpoint_epochs``; None is the paper's choice, half, three quarters and all of the epochs.
    """

    epochs: Epochs = 100
    warmup_epochs: Epochs = 10
    batch_size: Annotated[int, Meta(ge=1, le=1 << 16)] = 128
    final_learning_rate: NotNegative = 1e-5
    crop_padding: Annotated[int, Meta(ge=0, le=8)] = 2
    checkpoint_epochs: Annotated[tuple[Epochs, ...], Meta(min_length=1, max_length=16)] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.warmup_epochs > self.epochs:
            raise ValueError(f"warm-up must take between 1 and all {self.epochs} epochs, got {self.warmup_epochs}")
        chosen = list(self.checkpoint_epochs or ())
        if chosen != sorted(set(chosen)) or max(chosen, default=1) > self.epochs:
            raise ValueError(f"checkpoints must be ascending epochs from 1 to {self.epochs}, got {chosen}")

    def lasting(self, epochs: int) -> "Protocol":
        """The same protocol in other epochs, with the paper's shares of warm-up (a tenth) and of checkpoints."""
        if epochs == self.epochs:
            return self
        return replace(self, epochs=epochs, warmup_epochs=max(1, epochs // 10), checkpoint_epochs=None)

    def learning_rate(self, peak: float, epoch: int) -> float:
        """The learning rate throughout ``epoch``, counted from 0.

        Linear warm-up over W epochs, lr·(e + 1)/W, then a cosine from lr to 1e-5 over the remaining E − W:
        lr_end + (lr − lr_end)·(1 + cos(π·(e − W)/(E − W)))/2.
        """
        if not 0 <= epoch < self.epochs:
            raise ValueError(f"epoch {epoch} does not exist: this protocol has {self.epochs}, numbered from 0")
        if epoch < self.warmup_epochs:
            return peak * (epoch + 1) / self.warmup_epochs
        progress = (epoch - self.warmup_epochs) / (self.epochs - self.warmup_epochs)
        return self.final_learning_rate + (peak - self.final_learning_rate) * (1 + math.cos(math.pi * progress)) / 2

    @property
    def checkpoints(self) -> dict[str, int]:
        """Label → number of epochs after which it is taken."""
        return epochs_of_checkpoints(vars(self))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready data. The later fields are left out at their defaults: the first runs keep their ids."""
        plain = {name: value for name, value in vars(self).items() if (name, value) not in _LATER.items()}
        if self.checkpoint_epochs is not None:
            plain["checkpoint_epochs"] = list(self.checkpoint_epochs)
        return plain


@dataclass(frozen=True)
class Preset:
    """How much of the paper's work a sweep does: all of it, fewer epochs, or a small demo."""

    name: str
    protocol: Protocol
    runs_per_shard: int | None = None  # None: all
    train_examples: int | None = None  # None: the whole training set
    train_windows: int | None = None  # of a text

    @property
    def summary(self) -> str:
        """The work of a shard, for a help text."""
        runs = "all runs" if self.runs_per_shard is None else f"{self.runs_per_shard} runs"
        examples = "" if self.train_examples is None else f" on {self.train_examples:,} examples"
        return f"{self.name}, {runs} of {self.protocol.epochs} epochs{examples}"


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("paper", Protocol(), runs_per_shard=500),
        Preset("lite", Protocol().lasting(20), runs_per_shard=500),
        Preset("demo", Protocol().lasting(6), runs_per_shard=8, train_examples=4000, train_windows=1000),
    )
}


@dataclass(frozen=True, kw_only=True)
class RunConfig(Hyperparameters):
    """One run: the task's name, its hyperparameters, and the protocol.

    ``run_id`` is a hash of all of it. The transformer's dimensions are those of the task's data, ``TaskData.spec``.
    """

    task: str
    protocol: Protocol = field(default_factory=Protocol)
    task_sha256: str | None = None  # of the task file, where it is not one of the paper's

    def to_dict(self) -> dict[str, Any]:
        """The configuration as plain JSON-ready data."""
        return hashed_configuration(self.hyperparameters(), self.task, self.protocol.to_dict(), self.task_sha256)

    @property
    def run_id(self) -> str:
        return run_id(self.to_dict())
