"""Trains one transformer by the protocol, slowly, with torch's own modules and optimizers: the definition of a run.

    python -m generation.single --optimizer adam --learning-rate 1e-3 --init-std 0.1 --dropout 0.1 --stop-after 3

The engines that make the zoo train thousands of runs at once and are tested against this, weight by weight.
"""

from dataclasses import dataclass
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

from functools import partial

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor, optim
from torch.nn import functional as F

from generation.data import EpochBatches, TrainingInputs, epoch_batches, load_task_data, model_batch
from generation.population.engine import Engine, Measured, PopulationState, initial_weights
from generation.population.trainer import PopulationTrainer
from generation.protocol import ADAM_BETAS, EPSILON, MOMENTUM, RMSPROP_ALPHA, RunConfig
from generation.task import named_task
from zoo.device import choose_device, fast_small_products
from zoo.format.schema import BEST, usual_label
from zoo.tasks.evaluation import measure
from zoo.tasks.examples import Examples, TaskData
from zoo.transformer.model import ZooTransformer
from zoo.transformer.spec import TransformerSpec
from zoo.transformer.weights import TransformerWeights

_EVALUATION_CHUNK = 1000


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


class _SingleEngine(Engine):
    """Trains one run with torch's own modules and optimizers."""

    name, precision, dtype = "single", "float32", torch.float32

    def __init__(self, config: RunConfig, task: TaskData, device: torch.device) -> None:
        super().__init__([config], task, device)
        self.model = make_model(self.spec, config, device)
        self.optimizer = make_optimizer(config, self.model)

    @fast_small_products()
    def train_epoch(self, state: PopulationState) -> Float64[Tensor, " P"]:
        for group in self.optimizer.param_groups:
            group["lr"] = self.protocol.learning_rate(self.configs[0].learning_rate, state.epoch)
        batches = epoch_batches(self.training_rows, self.protocol, state.epoch).to(self.device)
        losses = train_batches(self.model, self.optimizer, self.inputs, batches)
        state.weights[0] = torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])
        return losses.double().mean(dim=0, keepdim=True)

    def evaluate(
        self, weights: Float[Tensor, "P d"], alive: Bool[Tensor, " P"], examples: Examples, *, exact: bool = False
    ) -> Measured:
        state = TransformerWeights.from_flat(self.spec, weights[0], check_finite=False).state_dict()
        self.model.load_state_dict(state)
        measured = measure(self.model, self.task, examples, _EVALUATION_CHUNK)
        accuracy, loss = (torch.tensor([value], dtype=torch.float64, device=self.device) for value in measured)
        return accuracy, loss


@_command
def main(options: _Options) -> None:
    task = named_task(options.task)
    config = RunConfig(
        **options.hyperparameters(),
        task=task.file.name,
        protocol=task.protocol.lasting(options.epochs or task.protocol.epochs),
        task_sha256=task.sha256,
    )
    epochs, device = options.stop_after or config.protocol.epochs, choose_device(options.device)
    if epochs > config.protocol.epochs:
        raise ValueError(f"can stop after 1 to {config.protocol.epochs} epochs, got {epochs}")
    data = load_task_data(task.file, options.data, sample=True)
    print(f"run {config.run_id}: {data.source}, {len(data.train):,} training and {len(data.test):,} test examples")
    trainer = PopulationTrainer(_SingleEngine(config, data, device))
    state = trainer.state
    while state.epoch < epochs and not trainer.diverged:
        trainer.train_epoch()
        train_loss, test_loss, accuracy = (
            float(curve[0, state.epoch - 1]) for curve in (state.train_loss, state.test_loss, state.test_accuracy)
        )
        print(
            f"epoch {state.epoch:3d}  train loss {train_loss:.4f}  test loss {test_loss:.4f}  "
            f"test accuracy {accuracy:.4f}",
            flush=True,
        )
    if trainer.diverged:
        print("the run diverged")
        return
    name, _ = usual_label(data.spec)
    for label, epoch in (config.protocol.checkpoints | {BEST: int(state.best_epoch)}).items():
        if epoch <= state.epoch:
            value = float(getattr(state, name)[0, epoch - 1])
            print(f"{label:10s} epoch {epoch:3d}  {name.replace('_', ' ')} {value:.4f}")
