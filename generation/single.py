"""Trains one transformer by the protocol, slowly, and prints how it goes.

    python -m generation.single --optimizer adam --learning-rate 1e-3 --init-std 0.1 --dropout 0.1 --stop-after 3

``generation.reference`` does the work: it is the definition of a run.
"""

import argparse
from pathlib import Path

from generation.data.task_data import load_task_data
from generation.job import DATA_HELP, TASK_HELP
from generation.protocol import RunConfig
from generation.reference import train_single
from generation.task import named_task
from zoo.command import command, command_parser, positive
from zoo.device import choose_device
from zoo.format.hyperparameters import OPTIMIZERS
from zoo.tasks.evaluation import Evaluation


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("generation.single", __doc__)
    parser.add_argument("--task", default="mnist", help=TASK_HELP)
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adam", help="how to train")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="the highest of the schedule")
    parser.add_argument(
        "--weight-decay", type=float, default=1e-6, help="share of the weights that the optimizer takes away"
    )
    parser.add_argument("--init-std", type=float, default=0.1, help="standard deviation of the initial weights")
    parser.add_argument("--dropout", type=float, default=0.1, help="share of activations set to zero")
    parser.add_argument("--train-fraction", type=float, default=1.0, help="share of the training examples")
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights and of dropout")
    parser.add_argument(
        "--epochs", type=positive, help="length of the schedule (default: the task's, 100 in the paper)"
    )
    parser.add_argument("--stop-after", type=int, help="stop after this many epochs (default: the whole schedule)")
    parser.add_argument("--data", type=Path, help=f"{DATA_HELP[:-1]}, MNIST as 5,000 digits)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, or auto: the GPU where there is one")
    return parser.parse_args(arguments)


@command
def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    task = named_task(options.task)
    config = RunConfig(
        task=task.name,
        optimizer=options.optimizer,
        learning_rate=options.learning_rate,
        weight_decay=options.weight_decay,
        init_std=options.init_std,
        dropout=options.dropout,
        train_fraction=options.train_fraction,
        seed=options.seed,
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

    result = train_single(config, data, device=device, stop_after=options.stop_after, on_epoch=report)
    if result.diverged:
        print("the run diverged")
    for label, checkpoint in result.checkpoints.items():
        print(f"{label:10s} epoch {checkpoint.epoch:3d}  test accuracy {checkpoint.test_accuracy:.4f}")


if __name__ == "__main__":
    main()
