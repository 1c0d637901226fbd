"""Whether the fused engine trains the same zoo as torch in float32: the same configurations both ways, to the end.

    python -m benchmarks.fidelity                       64 configurations of the grid, 100 epochs, a tenth of MNIST
    python -m benchmarks.fidelity --runs 16 --epochs 20 --examples 1280 --data DIR

No two ways of rounding give the same weights after thousands of steps, so what is compared is what a zoo is made of:
the distribution of accuracies, and each configuration's accuracy. What to expect of the latter is measured too: torch
is trained a second time with other seeds, and the spread between its two trainings is the yardstick.
"""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import results
from benchmarks.results import Result
from generation.data.batches import random_subset
from generation.data.task_data import load_task_data
from generation.engines import make_engine
from generation.population.torch_engine import TorchEngine
from generation.population.trainer import Engine, PopulationTrainer
from generation.protocol import Protocol, RunConfig
from generation.sweep import PRESETS, Sweep
from zoo.command import command, command_parser, progress_bar
from zoo.device import choose_device
from zoo.tasks import TaskData

STABLE = 0.02  # a configuration is stable where the twin's two seeds differ by at most this accuracy


@dataclass(frozen=True)
class Agreement:
    """How two trainings of the same configurations compare, final test accuracies [P] of each."""

    first: Tensor
    second: Tensor

    @property
    def mean_difference(self) -> float:
        return float((self.first - self.second).mean())

    @property
    def mean_distance(self) -> float:
        return float((self.first - self.second).abs().mean())

    @property
    def distribution_distance(self) -> float:
        """Kolmogorov and Smirnov's: the largest difference between the shares of runs below any accuracy."""
        values = torch.cat([self.first, self.second])
        below = [(accuracy[None] <= values[:, None]).double().mean(dim=1) for accuracy in (self.first, self.second)]
        return float((below[0] - below[1]).abs().max())

    def among(self, rows: Tensor) -> "Agreement":
        return Agreement(self.first[rows], self.second[rows])


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("benchmarks.fidelity", __doc__)
    parser.add_argument("--config", choices=("mnist", "agnews"), default="mnist")
    parser.add_argument("--runs", type=int, default=64, help="configurations, the first of shard 0 (64)")
    parser.add_argument("--epochs", type=int, default=100, help="epochs a run (100)")
    parser.add_argument("--examples", type=int, default=6400, help="training examples (6,400)")
    parser.add_argument("--data", type=Path, help="folder of the task's data")
    parser.add_argument("--embedding", type=Path, help="folder of AG News' frozen embedding")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--engine", choices=("fused", "torch"), default="fused", help="what is compared with the twin")
    parser.add_argument("--dry-run", action="store_true", help="print the rows, store none")
    return parser.parse_args(arguments)


@command
def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    device = choose_device(options.device)
    task = load_task_data(options.config, options.data, embedding_folder=options.embedding)
    rows = random_subset(len(task.train), min(options.examples, len(task.train)))
    task = TaskData(task.spec, task.train[rows], task.test, f"{len(rows)} examples of {task.source}", task.embedding)
    protocol = Protocol.shortened(options.epochs)
    sweep = Sweep(options.config, PRESETS["paper"])
    configs = [replace(run, protocol=protocol, train_fraction=1.0) for run in sweep.shard(0)[: options.runs]]
    rows_out = compare(configs, task, options.config, device, options.engine)
    for row in rows_out:
        print(f"{row.variant:28} {row.metric:24} {row.value:8.4f}  n {row.n}")
    if not options.dry_run:
        results.append(rows_out)


def compare(
    configs: list[RunConfig], task: TaskData, config_name: str, device: torch.device, engine: str
) -> list[Result]:
    """Trains the configurations three times and says how the results agree."""
    reseeded = [replace(run, seed=run.seed + 1) for run in configs]
    ours = train(make_engine(engine, configs, task, device), configs, task)
    twin = train(TorchEngine(configs, task, device=device, precision="float32"), configs, task)
    other = train(TorchEngine(reseeded, task, device=device, precision="float32"), reseeded, task)
    stable = (twin - other).abs() <= STABLE
    setting = {
        "epochs": configs[0].protocol.epochs,
        "train_examples": len(task.train),
        "stable_within": STABLE,
    }

    def rows(variant: str, agreement: Agreement) -> list[Result]:
        metrics = ("mean_difference", "mean_distance", "distribution_distance")
        return [
            Result.measured(
                "fidelity",
                config_name,
                metric,
                getattr(agreement, metric),
                n=len(agreement.first),
                device=device,
                variant=variant,
                setting=setting,
            )
            for metric in metrics
        ]

    found = rows(f"{engine} and float32", Agreement(ours, twin)) + rows("float32, two seeds", Agreement(twin, other))
    if bool(stable.any()):
        found += rows(f"{engine} and float32, stable", Agreement(ours, twin).among(stable))
    return found


def train(engine: Engine, configs: list[RunConfig], task: TaskData) -> Tensor:
    """Final test accuracies; 0 for a run that diverged."""
    trainer = PopulationTrainer(engine)
    with progress_bar() as bar:
        row = bar.add_task(f"{engine.name}, {engine.precision}", total=trainer.protocol.epochs)
        while not trainer.finished:
            trainer.train_epoch()
            bar.update(row, completed=trainer.state.epoch)
    return trainer.state.test_accuracy[:, -1].nan_to_num(0.0).cpu()


if __name__ == "__main__":
    main()
