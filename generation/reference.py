"""The definition of a run: one transformer trained by the protocol, with torch's own modules and optimizers.

Slow and plain on purpose. The trainer that makes the zoo trains thousands of runs at once and is tested against this,
weight by weight.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, optim
from torch.nn import functional as F

from generation.data.batches import EpochBatches, TrainingInputs, epoch_batches, model_batch, train_subset
from generation.population.initialization import initial_weights
from generation.protocol import ADAM_BETAS, EPSILON, MOMENTUM, RMSPROP_ALPHA, RunConfig
from zoo.device import fast_small_products
from zoo.format.schema import BEST
from zoo.tasks.evaluation import Evaluation, measure
from zoo.tasks.examples import TaskData
from zoo.transformer.model import ZooTransformer
from zoo.transformer.spec import TransformerSpec
from zoo.transformer.weights import TransformerWeights

EVALUATION_CHUNK = 1000


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
    """One value per epoch: test accuracy and loss after it, mean loss of its batches during it."""

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


def make_optimizer(config: RunConfig, model: ZooTransformer) -> optim.Optimizer:
    """The optimizer of a run; weight decay is the optimizer's own, added to the gradient."""
    parameters, lr, decay = model.parameters(), config.learning_rate, config.weight_decay
    match config.optimizer:
        case "sgd":
            return optim.SGD(parameters, lr=lr, weight_decay=decay)
        case "sgd_momentum":
            return optim.SGD(parameters, lr=lr, weight_decay=decay, momentum=MOMENTUM)
        case "adam":
            return optim.Adam(parameters, lr=lr, weight_decay=decay, betas=ADAM_BETAS, eps=EPSILON)
        case "rmsprop":
            return optim.RMSprop(parameters, lr=lr, weight_decay=decay, alpha=RMSPROP_ALPHA, eps=EPSILON)
    raise AssertionError(config.optimizer)


def make_model(spec: TransformerSpec, config: RunConfig, device: torch.device) -> ZooTransformer:
    """The run's transformer with its initial weights and a dropout generator of its own."""
    generator = torch.Generator(device).manual_seed(config.seed)
    model = ZooTransformer(spec, config.dropout, generator)
    flat = initial_weights(spec, config.init_std, config.seed)
    model.load_state_dict(TransformerWeights.from_flat(spec, flat).state_dict())
    return model.to(device)


@fast_small_products()
def train_single(
    config: RunConfig,
    task: TaskData,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    stop_after: int | None = None,
    on_epoch: Callable[[int, float, Evaluation], None] | None = None,
) -> RunResult:
    """Trains ``config`` on ``task``, for all epochs of its protocol or the first ``stop_after``.

    ``on_epoch`` is told the epoch's number (from 1), the mean loss of its batches and the evaluation after it.
    """
    device = torch.device(device)
    task = task.to(device)
    protocol = config.protocol
    epochs = protocol.epochs if stop_after is None else stop_after
    if not 1 <= epochs <= protocol.epochs:
        raise ValueError(f"can stop after 1 to {protocol.epochs} epochs, got {epochs}")
    model = make_model(task.spec, config, device).to(dtype)
    optimizer = make_optimizer(config, model)
    inputs = TrainingInputs.prepare(task, protocol.crop_padding)
    subset = train_subset(len(task.train), config.train_fraction).to(device)
    curves = Curves()
    snapshots: dict[str, tuple[int, torch.Tensor]] = {}

    for epoch in range(epochs):
        for group in optimizer.param_groups:
            group["lr"] = protocol.learning_rate(config.learning_rate, epoch)
        batches = epoch_batches(subset.cpu(), protocol, epoch).to(device)
        train_loss = float(train_batches(model, optimizer, inputs, batches).double().mean())
        evaluation = measure(model, task, task.test, EVALUATION_CHUNK)
        curves.train_loss.append(train_loss)
        curves.test_accuracy.append(evaluation.accuracy)
        curves.test_loss.append(evaluation.loss)
        if on_epoch is not None:
            on_epoch(epoch + 1, train_loss, evaluation)

        flat = flatten(model)
        if not (math.isfinite(train_loss) and math.isfinite(evaluation.loss) and bool(flat.isfinite().all())):
            return RunResult(config, diverged=True, curves=curves, checkpoints={})
        if curves.best_epoch == epoch + 1:
            snapshots[BEST] = (epoch + 1, flat)
        for label, at in protocol.checkpoints.items():
            if at == epoch + 1:
                snapshots[label] = (epoch + 1, flat)

    trained_on = task.train[subset]
    checkpoints = {}
    for label, (epoch, flat) in snapshots.items():
        model.load_state_dict(TransformerWeights.from_flat(task.spec, flat).state_dict())
        train_loss = measure(model, task, trained_on, EVALUATION_CHUNK).loss
        accuracy, test_loss = curves.test_accuracy[epoch - 1], curves.test_loss[epoch - 1]
        checkpoints[label] = Checkpoint(epoch, flat.cpu(), accuracy, test_loss, train_loss)
    return RunResult(config, diverged=False, curves=curves, checkpoints=checkpoints)


def train_batches(
    model: ZooTransformer, optimizer: optim.Optimizer, inputs: TrainingInputs, batches: EpochBatches
) -> torch.Tensor:
    """One step on each batch; the batches' losses."""
    model.train()
    dtype = model.classifier.fc1.weight.dtype
    losses = []
    for step in range(len(batches)):
        x, mask, labels = model_batch(inputs, batches, step)
        loss = F.cross_entropy(model(x.to(dtype), mask), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def flatten(model: ZooTransformer) -> torch.Tensor:
    """The model's weights as a new flat vector."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
