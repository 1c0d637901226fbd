"""How well a fitted predictor of this package ranks runs that no fit has seen: it trains them, then predicts.

    python -m tests.fresh_runs --task mnist --data DIR --device cuda      132 configurations, trained twice
    python -m tests.fresh_runs --task shakespeare --count 2 --preset demo

The configurations are drawn from the grid's part of one train fraction. Each is trained with one seed that all share,
another one than the zoo's, and with a seed of its own. All checkpoints are ranked, as by ``nfn.load_pretrained``.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch

from benchmarks import results
from benchmarks.results import Result
from benchmarks.statistics import tau_with_interval
from generation.data import load_task_data, part_for
from generation.population.trainer import PopulationTrainer, make_engine
from generation.protocol import PRESETS, RunConfig
from generation.sweep import Draw, Sweep
from generation.task import named_task
from nfn import Pretrained, load_pretrained
from nfn.training import READ_AT_ONCE
from zoo.checked import Count
from zoo.command import Command, Device, DryRun, Option
from zoo.device import choose_device
from zoo.format.schema import direction_of

DRAW_SEED, SHARED = 77, 20_261
FRACTIONS = {"mnist": 0.9, "agnews": 0.9, "shakespeare": 0.5}


@dataclass(frozen=True)
class Options:
    task: Annotated[str, Option("which fitted predictor", choices=tuple(FRACTIONS))] = "mnist"
    count: Annotated[Count, Option("configurations")] = 132
    preset: Annotated[str, Option("of generation.run", choices=tuple(PRESETS))] = "paper"
    data: Annotated[Path | None, Option("folder of the task's data (default: downloaded)", "DIR")] = None
    embedding: Annotated[Path | None, Option("folder of the frozen embedding of AG News", "DIR")] = None
    device: Device = "auto"
    out: Annotated[Path, Option("folder of the rows", "DIR")] = results.FOLDER
    dry_run: DryRun = False


def drawn(options: Options) -> list[RunConfig]:
    where = f"train_fraction == {FRACTIONS[options.task]}"
    sweep = Sweep(named_task(options.task), PRESETS[options.preset], draw=Draw(options.count, DRAW_SEED, where))
    configs = [run for shard in sweep.shards for run in sweep.shard(shard)]
    own = np.random.default_rng(DRAW_SEED).choice(1 << 31, len(configs), replace=False).tolist()
    together = [replace(run, seed=SHARED) for run in configs]
    return together + [replace(run, seed=seed) for run, seed in zip(configs, own, strict=True)]


def train(options: Options, runs: list[RunConfig]) -> PopulationTrainer:
    task = load_task_data(named_task(options.task).file, options.data, embedding_folder=options.embedding)
    task = part_for(PRESETS[options.preset], task)
    trainer = PopulationTrainer(make_engine("auto", runs, task, choose_device(options.device)))
    while not trainer.finished:
        trainer.train_epoch()
    return trainer


def measured(options: Options, trainer: PopulationTrainer, fitted: Pretrained) -> Iterator[Result]:
    """τ, the mean distance and the share inside the interval, over all checkpoints of completed runs of one kind."""
    alive = trainer.state.alive.cpu().numpy()
    truth = trainer.measure_checkpoints()[fitted.label].cpu().numpy()  # [labels, runs]
    weights, fitted = trainer.state.checkpoints.float(), fitted.to(trainer.device)
    kinds = {"one other seed": slice(0, options.count), "a seed for each run": slice(options.count, None)}
    for kind, half in kinds.items():
        runs = np.flatnonzero(alive[half]) + (half.start or 0)
        parts = [fitted.predict(part) for part in weights[:, runs].flatten(0, 1).split(READ_AT_ONCE)]
        predicted, low, high = (torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True))
        true = truth[:, runs].ravel()
        sign = direction_of(fitted.label)
        tau, interval = tau_with_interval(sign * predicted, sign * true, np.tile(runs, len(truth)))
        numbers = {"tau": tau, "mean_absolute_error": np.abs(predicted - true).mean()}
        numbers |= {"share_inside_interval": ((low <= true) & (true <= high)).mean()}
        numbers |= {} if interval is None else {"tau_low": interval[0], "tau_high": interval[1]}
        setting = {"runs": len(runs), "preset": options.preset, "predictor": fitted.card["recipe"]["commit"]}
        what = {"n": len(true), "device": trainer.device, "variant": kind, "setting": setting}
        for metric, value in numbers.items():
            yield Result.measured("fresh", options.task, metric, float(value), **what)


@Command(__name__, "tests.fresh_runs", __doc__, Options, lambda _: ("scipy",))
def main(options: Options) -> None:
    fitted = load_pretrained(options.task)
    rows = list(measured(options, train(options, drawn(options)), fitted))
    for row in rows:
        print(f"{row.config}, {row.variant:20} {row.metric:22} {row.value:.4f}  n {row.n}")
    if not options.dry_run:
        results.append(rows, options.out)
