"""One run trained slowly, by the protocol as it is written: what the fast trainer is compared with, weight by weight.

A step is that of ``generation.single``; curves, checkpoints, the best epoch and divergence are kept here on their own.
"""

import math
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from generation.data import TrainingInputs, TrainingRows, epoch_batches
from generation.protocol import RunConfig
from generation.single import make_model, make_optimizer, train_batches
from zoo.device import fast_small_products
from zoo.format.schema import BEST
from zoo.tasks.evaluation import measure
from zoo.tasks.examples import TaskData
from zoo.transformer.weights import TransformerWeights

_EVALUATION_CHUNK = 1000


@dataclass(frozen=True)
class Checkpoint:
    """Weights of a run after an epoch, and their measurements."""

    epoch: int
    weights: Float[Tensor, " d"]
    test_accuracy: float
    test_loss: float
    train_loss: float


@dataclass
class RunResult:
    """A run: its checkpoints by label, none where it diverged, and its curves.

    A curve has one value per epoch: test accuracy and loss after it, mean loss of its batches during it.
    """

    test_accuracy: list[float] = field(default_factory=list)
    test_loss: list[float] = field(default_factory=list)
    train_loss: list[float] = field(default_factory=list)
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)
    diverged: bool = False
    by_loss: bool = False

    @property
    def best_epoch(self) -> int:
        """The epoch, counted from 1, after which test accuracy was highest, or loss lowest; the first of equals, 0 for
        none."""
        merit = (-torch.tensor(self.test_loss)).tolist() if self.by_loss else self.test_accuracy  # losses in float32
        return 1 + merit.index(max(merit)) if merit else 0


@fast_small_products()
def train_single(
    config: RunConfig,
    task: TaskData,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> RunResult:
    """Trains ``config`` on ``task``."""
    device = torch.device(device)
    task = task.to(device)
    protocol = config.protocol
    model = make_model(task.spec, config, device).to(dtype)
    optimizer = make_optimizer(config, model)
    inputs = TrainingInputs.prepare(task, protocol.crop_padding)
    training = TrainingRows.of(task, config.train_fraction)
    result = RunResult(by_loss=task.spec.causal)
    snapshots: dict[str, tuple[int, torch.Tensor]] = {}

    for epoch in range(protocol.epochs):
        for group in optimizer.param_groups:
            group["lr"] = protocol.learning_rate(config.learning_rate, epoch)
        batches = epoch_batches(training, protocol, epoch).to(device)
        train_loss = float(train_batches(model, optimizer, inputs, batches).double().mean())
        evaluation = measure(model, task, task.test, _EVALUATION_CHUNK)
        result.train_loss.append(train_loss)
        result.test_accuracy.append(evaluation.accuracy)
        result.test_loss.append(evaluation.loss)

        flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        if not (math.isfinite(train_loss) and math.isfinite(evaluation.loss) and bool(flat.isfinite().all())):
            result.diverged = True
            return result
        if result.best_epoch == epoch + 1:
            snapshots[BEST] = (epoch + 1, flat)
        for label, at in protocol.checkpoints.items():
            if at == epoch + 1:
                snapshots[label] = (epoch + 1, flat)

    trained_on = task.train[training.measured(task).to(device)]
    for label, (epoch, flat) in snapshots.items():
        model.load_state_dict(TransformerWeights.from_flat(task.spec, flat).state_dict())
        train_loss = measure(model, task, trained_on, _EVALUATION_CHUNK).loss
        accuracy, test_loss = result.test_accuracy[epoch - 1], result.test_loss[epoch - 1]
        result.checkpoints[label] = Checkpoint(epoch, flat.cpu(), accuracy, test_loss, train_loss)
    return result
