"""Whether the fused engine trains the same zoo as torch in float32: the same configurations, trained both ways.

    python -m benchmarks.fidelity                       64 configurations of the grid, 100 epochs, a tenth of MNIST
    python -m benchmarks.fidelity --runs 16 --epochs 20 --examples 1280 --data DIR
    python -m benchmarks.fidelity --config shakespeare --epochs 10 --examples 15680

Compared are the distribution of accuracies and the accuracy of each configuration; of language models, losses. The
yardstick is how much these differ between two trainings by torch with other seeds.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from zoo.checked import Count
from zoo.command import Command, Device, DryRun, Option, progress_bar


@dataclass(frozen=True)
class _Options:
    config: Annotated[Literal["mnist", "agnews", "shakespeare"], Option("what to train on")] = "mnist"
    runs: Annotated[Count, Option("how many configurations, from the start of shard 0")] = 64
    epochs: Annotated[Count, Option("epochs per run")] = 100
    examples: Annotated[Count, Option("training examples")] = 6400
    data: Annotated[Path | None, Option("folder of the task's data (default: downloaded)", "DIR")] = None
    embedding: Annotated[Path | None, Option("folder of the embedding of AG News (default: trained)", "DIR")] = None
    device: Device = "auto"
    engine: Annotated[Literal["fused", "torch"], Option("engine to compare with torch in float32")] = "fused"
    dry_run: DryRun = False


_command = Command(__name__, "benchmarks.fidelity", __doc__, _Options, lambda _: ("scipy",))

import torch
from scipy.stats import ks_2samp
from torch import Tensor

from benchmarks import results
from benchmarks.results import Result
from generation.data import load_task_data, with_fewer_examples
from generation.population.torch_engine import TorchEngine
from generation.population.trainer import Engine, PopulationTrainer, make_engine
from generation.protocol import PRESETS, RunConfig
from generation.sweep import Sweep
from generation.task import named_task
from zoo.device import choose_device
from zoo.format.schema import usual_label
from zoo.tasks.examples import TaskData

_STABLE = 0.02  # a configuration is stable if the labels of torch's two seeds differ by at most this


def _agreement(first: Tensor, second: Tensor) -> dict[str, float]:
    """How two trainings of the same configurations compare, by the final test accuracies or losses [P] of each.

    The distance of the distributions is Kolmogorov-Smirnov: the largest difference between the shares of runs up to any
    accuracy.
    """
    distributions: Any = ks_2samp(first.numpy(), second.numpy(), method="asymp")
    means = {"mean_difference": (first - second).mean().item(), "mean_distance": (first - second).abs().mean().item()}
    return means | {"distribution_distance": float(distributions.statistic)}


def _compare(configs: list[RunConfig], task: TaskData, device: torch.device, engine: str) -> list[Result]:
    """Trains the configurations three times and measures how the results agree."""
    reseeded = [replace(run, seed=run.seed + 1) for run in configs]
    ours = _train(make_engine(engine, configs, task, device), task)
    reference = _train(TorchEngine(configs, task, device=device, precision="float32"), task)
    other_seeds = _train(TorchEngine(reseeded, task, device=device, precision="float32"), task)
    stable = (reference - other_seeds).abs() <= _STABLE
    setting = {"epochs": configs[0].protocol.epochs, "train_examples": len(task.train), "stable_within": _STABLE}

    def rows(variant: str, first: Tensor, second: Tensor) -> list[Result]:
        where = {"n": len(first), "device": device, "variant": variant, "setting": setting}
        measured = _agreement(first, second).items()
        return [Result.measured("fidelity", configs[0].task, metric, value, **where) for metric, value in measured]

    measured = rows(f"{engine} and float32", ours, reference) + rows("float32, two seeds", reference, other_seeds)
    if bool(stable.any()):
        measured += rows(f"{engine} and float32, stable", ours[stable], reference[stable])
    return measured


def _train(engine: Engine, task: TaskData) -> Tensor:
    """Final test accuracies, 0 for a run that diverged; of language models losses, those of guessing at random."""
    trainer = PopulationTrainer(engine)
    with progress_bar() as bar:
        for _ in bar.track(range(trainer.protocol.epochs), description=f"{engine.name}, {engine.precision}"):
            trainer.train_epoch()
    label, more = usual_label(task.spec)
    return getattr(trainer.state, label)[:, -1].nan_to_num(0.0 if more else math.log(task.spec.classes)).cpu()


@_command
def main(options: _Options) -> None:
    device = choose_device(options.device)
    named = named_task(options.config)
    task = load_task_data(named.file, options.data, embedding_folder=options.embedding)
    task = with_fewer_examples(task, options.examples)
    runs, protocol = Sweep(named, PRESETS["paper"]).shard(0)[: options.runs], named.protocol.lasting(options.epochs)
    configs = [replace(run, protocol=protocol, train_fraction=1.0) for run in runs]
    measured = _compare(configs, task, device, options.engine)
    for row in measured:
        print(f"{row.variant:28} {row.metric:24} {row.value:8.4f}  n {row.n}")
    if not options.dry_run:
        results.append(measured)
