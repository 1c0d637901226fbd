"""Trains a population: all runs of a shard step in lockstep on one device, each by the protocol.

An engine, torch or the fused CUDA kernels, does the arithmetic of an epoch; what surrounds it is here: curves,
checkpoints, and the end of runs that diverged.
"""

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float64
from torch import Tensor

from generation.fused.compiled import CudaKernels
from generation.fused.engine import FusedEngine
from generation.fused.variants import Variant, obstacle
from generation.options import ENGINES
from generation.population.engine import Engine, PopulationState
from generation.population.torch_engine import TorchEngine
from generation.protocol import RunConfig
from zoo.format.schema import usual_label
from zoo.tasks.examples import TaskData
from zoo.tasks.language import language_labels


def make_engine(
    name: str,
    configs: Sequence[RunConfig],
    task: TaskData,
    device: torch.device,
    models_per_pass: int | None = None,
    variant: Variant | None = None,
) -> Engine:
    """The engine by name. ``auto`` is the fused one where it can train and ``models_per_pass`` is not given.

    The fused engine takes its best variant, unless one is given.
    """
    if name not in ENGINES:
        raise ValueError(f"unknown engine {name!r}: one of {', '.join(ENGINES)}")
    if name == "fused" and models_per_pass is not None:
        raise ValueError("the fused engine trains all models at once: --models-per-pass is for --engine torch")
    if name == "fused" or (name == "auto" and device.type == "cuda" and models_per_pass is None):
        problem = obstacle(task.spec, configs, device, variant)
        if problem is None:
            return FusedEngine(configs, task, CudaKernels(task.spec, device, variant))
        if name == "fused":
            raise ValueError(f"the fused engine cannot train here: {problem}; use --engine torch")
        warnings.warn(f"torch trains, several times slower than the fused engine: {problem}", stacklevel=2)
    return TorchEngine(configs, task, device=device, models_per_pass=models_per_pass)


class PopulationTrainer:
    """A population and its state. ``train_epoch`` is the only thing that changes the state."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.configs, self.task, self.device = engine, engine.configs, engine.task, engine.device
        shared = {(config.task, config.train_fraction, config.protocol) for config in self.configs}
        if len(shared) != 1:
            raise ValueError(f"runs of one population share task, train fraction and protocol, got {len(shared)} kinds")
        self.protocol = self.configs[0].protocol
        self.state = PopulationState.initial(self.task.spec, self.configs, self.device, engine.dtype)
        self.engine_seconds = 0.0

    @property
    def finished(self) -> bool:
        return self.state.epoch == self.protocol.epochs

    @property
    def diverged(self) -> int:
        """How many runs have diverged so far."""
        return int((~self.state.alive).sum())

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Adds the time of the ``with`` to ``engine_seconds``, until the device is done."""
        start = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.engine_seconds += time.perf_counter() - start

    def train_epoch(self) -> None:
        """One epoch of training for every run that is alive, then its evaluation and its checkpoints."""
        with self._timed():
            train_loss, (accuracy, test_loss) = self.engine.train_and_test(self.state)
        self._record(train_loss, accuracy, test_loss)

    def _record(self, train_loss: Tensor, accuracy: Tensor, test_loss: Tensor) -> None:
        """Closes an epoch: curves, checkpoints, and the end of runs that diverged in it."""
        state, epoch = self.state, self.state.epoch
        state.train_loss[:, epoch] = torch.where(state.alive, train_loss, torch.nan)
        state.test_accuracy[:, epoch] = accuracy
        state.test_loss[:, epoch] = test_loss
        state.alive &= train_loss.isfinite() & test_loss.isfinite() & state.weights.isfinite().all(dim=1)
        for index, after in enumerate(self.protocol.checkpoints.values()):
            if after == epoch + 1:
                state.checkpoints[index] = state.weights
        name, more = usual_label(self.task.spec)
        # as the curve is stored: losses that are equal in float32 are equal
        curve = getattr(state, name).float()
        merit = curve if more else -curve
        earlier = merit[:, :epoch].nan_to_num(-torch.inf)
        best = earlier.amax(dim=1) if epoch else torch.full_like(accuracy, -torch.inf)
        better = state.alive & (merit[:, epoch] > best)
        state.best_epoch = torch.where(better, epoch + 1, state.best_epoch)
        state.checkpoints[-1] = torch.where(better[:, None], state.weights, state.checkpoints[-1])
        state.epoch += 1

    def measure_checkpoints(self) -> dict[str, Float64[Tensor, "labels P"]]:
        """By the names of their columns: test accuracy and loss of every checkpoint, in float32, and its mean loss on
        examples its run was trained on, uncropped and without dropout. Language models have more labels."""
        trained_on = self.task.train[self.engine.training_rows.measured(self.task).to(self.device)]
        alive, checkpoints = self.state.alive, self.state.checkpoints
        with self._timed():
            trained = [self.engine.evaluate(weights, alive, trained_on) for weights in checkpoints]
        tested = [self.engine.evaluate(weights, alive, self.task.test, exact=True) for weights in checkpoints]
        measures = {
            "test_accuracy": torch.stack([accuracy for accuracy, _ in tested]),
            "test_loss": torch.stack([loss for _, loss in tested]),
            "train_loss": torch.stack([loss for _, loss in trained]),
        }
        if self.task.spec.causal:
            labels = language_labels(self.task, checkpoints.flatten(0, 1).float())
            measures |= {name: values.view(checkpoints.shape[:2]) for name, values in labels.items()}
        return measures
