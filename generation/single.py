"""Trains one transformer by the protocol, slowly, with torch's own modules and optimizers: the definition of a run.

    python -m generation.single --optimizer adam --learning-rate 1e-3 --init-std 0.1 --dropout 0.1 --stop-after 3

The trainer that makes the zoo trains thousands of runs at once and is tested against this, weight by weight.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from generation.options import DATA_HELP, TaskName
from zoo.checked import Count
from zoo.command import Command, Device, Option
from zoo.format.hyperparameters import Hyperparameters


@dataclass(frozen=True, kw_only=True)
class _Options(Hyperparameters):
    task: TaskName = "mnist"
    epochs: Annotated[Count | None, Option("length of the schedule (default: the task's, 100 in the paper)")] = None
    stop_after: Annotated[Count | None, Option("stop after this many epochs (default: the whole schedule)")] = None
    data: Annotated[Path | None, Option(f"{DATA_HELP[:-1]}, MNIST as 5,000 digits)")] = None
    device: Device = "cpu"


_command = Command(__name__, "generation.single", __doc__, _Options)

import math
from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, optim
from torch.nn import functional as F

from generation.data import EpochBatches, TrainingInputs, TrainingRows, epoch_batches, load_task_data, model_batch
from generation.population.engine import initial_weights
from generation.protocol import ADAM_BETAS, EPSILON, MOMENTUM, RMSPROP_ALPHA, RunConfig
from generation.task import named_task
from zoo.device import choose_device, fast_small_products
from zoo.format.schema import BEST, usual_label
from zoo.tasks.evaluation import Evaluation, measure
from zoo.tasks.examples import TaskData
from zoo.transformer.model import ZooTransformer
from zoo.transformer.spec import TransformerSpec
from zoo.transformer.weights import TransformerWeights

_EVALUATION_CHUNK = 1000


@dataclass(frozen=True)
class _Checkpoint:
    """Weights of a run after an epoch, and their measurements."""

    epoch: int
    weights: Float[Tensor, " d"]
    test_accuracy: float
    test_loss: float
    train_loss: float


@dataclass
class _RunResult:
    """A run: its checkpoints by label, none where it diverged, and its curves.

    A curve has one value per epoch: test accuracy and loss after it, mean loss of its batches during it.
    """

    test_accuracy: list[float] = field(default_factory=list)
    test_loss: list[float] = field(default_factory=list)
    train_loss: list[float] = field(default_factory=list)
    checkpoints: dict[str, _Checkpoint] = field(default_factory=dict)
    diverged: bool = False
    by_loss: bool = False

    @property
    def best_epoch(self) -> int:
        """The epoch, counted from 1, after which test accuracy was highest, or loss lowest; the first of equals, 0 for
        none."""
        merit = (-torch.tensor(self.test_loss)).tolist() if self.by_loss else self.test_accuracy  # losses in float32
        return 1 + merit.index(max(merit)) if merit else 0


def make_optimizer(config: RunConfig, model: ZooTransformer) -> optim.Optimizer:
    """The optimizer of a run; weight decay is the optimizer's own, added to the gradient."""
    make = {
        "sgd": optim.SGD,
        "sgd_momentum": partial(optim.SGD, momentum=MOMENTUM),
        "adam": partial(optim.Adam, betas=ADAM_BETAS, eps=EPSILON),
        "rmsprop": partial(optim.RMSprop, alpha=RMSPROP_ALPHA, eps=EPSILON),
    }[config.optimizer]
    return make(model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)


def make_model(spec: TransformerSpec, config: RunConfig, device: torch.device) -> ZooTransformer:
    """The run's transformer with its initial weights and a dropout generator of its own."""
    generator = torch.Generator(device).manual_seed(config.seed)
    model = ZooTransformer(spec, config.dropout, generator)
    flat = initial_weights(spec, config.init_std, config.seed)
    model.load_state_dict(TransformerWeights.from_flat(spec, flat).state_dict())
    return model.to(device)


@fast_small_products()
def _train_single(
    config: RunConfig,
    task: TaskData,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    stop_after: int | None = None,
    on_epoch: Callable[[int, float, Evaluation], None] | None = None,
) -> _RunResult:
    """Trains ``config`` on ``task``, for all epochs of its protocol or the first ``stop_after``.

    ``on_epoch`` is called with the epoch's number (from 1), the mean loss of its batches and the evaluation after it.
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
    training = TrainingRows.of(task, config.train_fraction)
    result = _RunResult(by_loss=task.spec.causal)
    snapshots: dict[str, tuple[int, torch.Tensor]] = {}

    for epoch in range(epochs):
        for group in optimizer.param_groups:
            group["lr"] = protocol.learning_rate(config.learning_rate, epoch)
        batches = epoch_batches(training.rows, protocol, epoch, training.per_epoch).to(device)
        train_loss = float(train_batches(model, optimizer, inputs, batches).double().mean())
        evaluation = measure(model, task, task.test, _EVALUATION_CHUNK)
        result.train_loss.append(train_loss)
        result.test_accuracy.append(evaluation.accuracy)
        result.test_loss.append(evaluation.loss)
        if on_epoch is not None:
            on_epoch(epoch + 1, train_loss, evaluation)

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
        result.checkpoints[label] = _Checkpoint(epoch, flat.cpu(), accuracy, test_loss, train_loss)
    return result


def train_batches(
    model: ZooTransformer, optimizer: optim.Optimizer, inputs: TrainingInputs, batches: EpochBatches
) -> torch.Tensor:
    """One step on each batch; the batches' losses."""
    model.train()
    dtype = next(model.parameters()).dtype
    losses = []
    for step in range(len(batches)):
        x, mask, labels = model_batch(inputs, batches, step)
        logits = model(x if model.spec.vocabulary else x.to(dtype), mask)
        loss = F.cross_entropy(logits.flatten(0, -2), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


@_command
def main(options: _Options) -> None:
    task = named_task(options.task)
    config = RunConfig(
        **options.hyperparameters(),
        task=task.name,
        protocol=task.protocol.lasting(options.epochs or task.protocol.epochs),
        task_sha256=task.grid.task_sha256,
    )
    device = choose_device(options.device)
    data = load_task_data(task.file, options.data, sample=True)
    print(f"run {config.run_id}: {data.source}, {len(data.train):,} training and {len(data.test):,} test examples")

    def report(epoch: int, train_loss: float, evaluation: Evaluation) -> None:
        print(
            f"epoch {epoch:3d}  train loss {train_loss:.4f}  test loss {evaluation.loss:.4f}  "
            f"test accuracy {evaluation.accuracy:.4f}",
            flush=True,
        )

    result = _train_single(config, data, device=device, stop_after=options.stop_after, on_epoch=report)
    if result.diverged:
        print("the run diverged")
    for label, checkpoint in result.checkpoints.items():
        name, _ = usual_label(data.spec)
        print(f"{label:10s} epoch {checkpoint.epoch:3d}  {name.replace('_', ' ')} {getattr(checkpoint, name):.4f}")


if __name__ == "__main__":
    main()
