"""Trains a population: all runs of a shard step in lockstep on one device, each by the protocol.

An engine does the arithmetic of an epoch; what surrounds it is here: curves, snapshots, and the end of runs that
diverged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from generation.population.state import PopulationState, snapshot_labels
from generation.population.stopwatch import Stopwatch
from generation.population.torch_engine import TorchEngine
from generation.protocol import BEST, RunConfig
from zoo.tasks import Examples, TaskData


@runtime_checkable
class Engine(Protocol):
    """Trains and measures a population on one device."""

    @property
    def name(self) -> str: ...

    @property
    def precision(self) -> str: ...

    @property
    def exact_evaluation(self) -> bool:
        """Whether ``evaluate`` is float32 throughout, as the numbers stored beside a checkpoint are."""
        ...

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and moments."""
        ...

    @property
    def task(self) -> TaskData:
        """The data, on the device."""
        ...

    @property
    def subset(self) -> Tensor:
        """Rows of the training examples that are trained on."""
        ...

    def train_epoch(self, state: PopulationState) -> Float64[Tensor, " P"]:
        """The next epoch of every living run, in place; the mean loss of each over the epoch's batches."""
        ...

    def evaluate(
        self, weights: Float[Tensor, "P d"], alive: Bool[Tensor, " P"], examples: Examples
    ) -> tuple[Float64[Tensor, " P"], Float64[Tensor, " P"]]:
        """Accuracy and mean loss of every living run on ``examples``; NaN for the others."""
        ...


@dataclass(frozen=True)
class SnapshotMeasures:
    """What was measured on the snapshots themselves, [labels, P]: test numbers in float32."""

    test_accuracy: Float64[Tensor, "labels P"]
    test_loss: Float64[Tensor, "labels P"]
    train_loss: Float64[Tensor, "labels P"]


class PopulationTrainer:
    """A population and its state. ``train_epoch`` is the only thing that changes the state."""

    def __init__(
        self, configs: Sequence[RunConfig], task: TaskData, engine: Engine | None = None, **torch_options: Any
    ) -> None:
        """With no engine, one of torch with these options."""
        shared = {(config.task, config.train_fraction, config.protocol) for config in configs}
        if len(shared) != 1:
            raise ValueError(f"runs of one population share task, train fraction and protocol, got {len(shared)} kinds")
        self.configs = tuple(configs)
        self.protocol = configs[0].protocol
        self.engine: Engine = engine or TorchEngine(configs, task, **torch_options)
        self.device, self.task = self.engine.device, self.engine.task
        self.state = PopulationState.initial(configs, self.device, self.engine.dtype)
        self.engine_time = Stopwatch(self.device)

    @property
    def finished(self) -> bool:
        return self.state.epoch == self.protocol.epochs

    def train_epoch(self) -> None:
        """One epoch of training for every living run, then its evaluation and its snapshots."""
        with self.engine_time.running():
            train_loss = self.engine.train_epoch(self.state)
            accuracy, test_loss = self.engine.evaluate(self.state.weights, self.state.alive, self.task.test)
        self._record(train_loss, accuracy, test_loss)

    def _record(self, train_loss: Tensor, accuracy: Tensor, test_loss: Tensor) -> None:
        """Closes an epoch: curves, snapshots, and the end of runs that diverged in it."""
        state, epoch = self.state, self.state.epoch
        state.train_loss[:, epoch] = torch.where(state.alive, train_loss, torch.nan)
        state.test_accuracy[:, epoch] = accuracy
        state.test_loss[:, epoch] = test_loss
        state.alive &= train_loss.isfinite() & test_loss.isfinite() & state.weights.isfinite().all(dim=1)
        for index, label in enumerate(snapshot_labels(self.configs[0])):
            if label == BEST:
                earlier = state.test_accuracy[:, :epoch].nan_to_num(-1.0)
                best = earlier.amax(dim=1) if epoch else torch.full_like(accuracy, -1.0)
                better = state.alive & (accuracy > best)
                state.best_epoch = torch.where(better, epoch + 1, state.best_epoch)
                state.snapshots[index] = torch.where(better[:, None], state.weights, state.snapshots[index])
            elif self.protocol.checkpoints[label] == epoch + 1:
                state.snapshots[index] = state.weights
        state.epoch += 1

    def measure_snapshots(self) -> SnapshotMeasures:
        """Test accuracy and loss of every snapshot, and its mean loss on the examples its run was trained on,
        uncropped and without dropout."""
        trained_on = self.task.train[self.engine.subset.to(self.device)]
        with self.engine_time.running():
            trained = [self.engine.evaluate(weights, self.state.alive, trained_on) for weights in self.state.snapshots]
        test_accuracy, test_loss = self._curves_at_snapshots() if self.engine.exact_evaluation else self._test_exactly()
        return SnapshotMeasures(test_accuracy, test_loss, torch.stack([loss for _, loss in trained]))

    def _curves_at_snapshots(self) -> tuple[Tensor, Tensor]:
        checkpoints = self.protocol.checkpoints
        epochs = [
            self.state.best_epoch if label == BEST else torch.full_like(self.state.best_epoch, checkpoints[label])
            for label in snapshot_labels(self.configs[0])
        ]
        index = (torch.stack(epochs, dim=1) - 1).clamp(min=0)  # a run that diverged at once has no best epoch
        return self.state.test_accuracy.gather(1, index).T, self.state.test_loss.gather(1, index).T

    def _test_exactly(self) -> tuple[Tensor, Tensor]:
        exact = TorchEngine(self.configs, self.task, device=self.device, compiled=False)  # used too briefly to compile
        tested = [exact.evaluate(snapshot, self.state.alive, self.task.test) for snapshot in self.state.snapshots]
        return torch.stack([accuracy for accuracy, _ in tested]), torch.stack([loss for _, loss in tested])
