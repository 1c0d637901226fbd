"""Trains one transformer by the protocol, with torch's own modules and optimizers: the definition of a run.

    python -m generation.single --optimizer adam --learning-rate 1e-3 --init-std 0.1 --dropout 0.1 --stop-after 3

Slow and plain on purpose: the trainer that makes the zoo trains thousands of runs at once and is tested against this.
"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import optim
from torch.nn import functional as F

from generation.data.batches import EpochBatches, TrainingInputs, epoch_batches, model_batch, train_subset
from generation.data.task_data import load_task_data
from generation.population.initialization import initial_weights
from generation.protocol import ADAM_BETAS, BEST, EPSILON, MOMENTUM, RMSPROP_ALPHA, Protocol, RunConfig
from generation.result import Checkpoint, Curves, RunResult
from zoo.command import command
from zoo.device import choose_device
from zoo.format.schema import OPTIMIZERS
from zoo.tasks import TaskData
from zoo.tasks.evaluation import Evaluation, measure
from zoo.transformer.model import ZooTransformer
from zoo.transformer.onednn import fast_small_products
from zoo.transformer.weights import TransformerWeights

EVALUATION_CHUNK = 1000


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


def make_model(config: RunConfig, device: torch.device) -> ZooTransformer:
    """The run's transformer with its initial weights and a dropout generator of its own."""
    generator = torch.Generator(device).manual_seed(config.seed)
    model = ZooTransformer(config.spec, config.dropout, generator)
    flat = initial_weights(config.spec, config.init_std, config.seed)
    model.load_state_dict(TransformerWeights.from_flat(config.spec, flat).state_dict())
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

    ``on_epoch`` hears the epoch's number (from 1), the mean loss of its batches and the evaluation after it.
    """
    device = torch.device(device)
    task = task.to(device)
    protocol = config.protocol
    epochs = protocol.epochs if stop_after is None else stop_after
    if not 1 <= epochs <= protocol.epochs:
        raise ValueError(f"can stop after 1 to {protocol.epochs} epochs, got {epochs}")
    model = make_model(config, device).to(dtype)
    optimizer = make_optimizer(config, model)
    inputs = TrainingInputs.prepare(task)
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
        model.load_state_dict(TransformerWeights.from_flat(config.spec, flat).state_dict())
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


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m generation.single", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=("mnist", "agnews"), default="mnist")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adam")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=1e-6)
    parser.add_argument("--init-std", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--train-fraction", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=100, help="length of the schedule (100, the paper's)")
    parser.add_argument("--stop-after", type=int, help="stop after this many epochs of the schedule")
    parser.add_argument("--data", type=Path, help="folder of the data; without it 5,000 digits, or AG News downloaded")
    parser.add_argument("--device", default="cpu")
    return parser.parse_args(arguments)


@command
def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    config = RunConfig(
        task=options.task,
        optimizer=options.optimizer,
        learning_rate=options.learning_rate,
        weight_decay=options.weight_decay,
        init_std=options.init_std,
        dropout=options.dropout,
        train_fraction=options.train_fraction,
        seed=options.seed,
        protocol=Protocol() if options.epochs == Protocol().epochs else Protocol.shortened(options.epochs),
    )
    device = choose_device(options.device)
    task = load_task_data(options.task, options.data, sample=options.data is None and options.task == "mnist")
    print(f"run {config.run_id}: {task.source}, {len(task.train):,} training and {len(task.test):,} test examples")

    def report(epoch: int, train_loss: float, evaluation: Evaluation) -> None:
        print(
            f"epoch {epoch:3d}  train loss {train_loss:.4f}  test loss {evaluation.loss:.4f}  "
            f"test accuracy {evaluation.accuracy:.4f}",
            flush=True,
        )

    result = train_single(config, task, device=device, stop_after=options.stop_after, on_epoch=report)
    if result.diverged:
        print("the run diverged")
    for label, checkpoint in result.checkpoints.items():
        print(f"{label:10s} epoch {checkpoint.epoch:3d}  test accuracy {checkpoint.test_accuracy:.4f}")


if __name__ == "__main__":
    main()
