"""The command-line options that all table commands share."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.data.benchmark_data import BenchmarkData
from benchmarks.experiments.trial import Trial
from benchmarks.models.own import check_models
from benchmarks.models.schedule import EPOCHS
from zoo.command import command_parser
from zoo.device import choose_device
from zoo.reading.locate import DEFAULT_NAME
from zoo.reading.selection import Selection

SEEDS = 5


@dataclass(frozen=True)
class TableOptions:
    """What to compute, on what data, on which device, and where to write it."""

    zoo: str
    configs: tuple[str, ...]
    models: tuple[str, ...]
    thresholds: tuple[float, ...]
    seeds: int
    epochs: int
    recipes: tuple[str, ...]
    checkpoint: str | None
    where: Selection | None
    device: torch.device
    jobs: int
    out: Path
    estimate: bool = True
    """Whether to measure, before long fits, how long they will take."""

    def data(self, config: str, entry_range: float | None = None, checkpoint: str | None = None) -> BenchmarkData:
        return BenchmarkData.from_zoo(
            self.zoo,
            config,
            checkpoint=checkpoint or self.checkpoint,
            where=self.where,
            device=self.device,
            entry_range=entry_range,
        )

    def file(self, name: str) -> Path:
        """The path of a table or plot. A selection has its own file names and so does not replace the whole table."""
        path = self.out / name
        if self.where is None:
            return path
        return path.with_suffix(f".{self.where.file_suffix}{path.suffix}")

    def trials(self, benchmark: str, data: BenchmarkData, model: str, **what: Any) -> list[Trial]:
        """The trials of one entry of a table, one per seed; ``what`` distinguishes it from the other entries."""
        values = {"checkpoint": data.checkpoint, "where": self.where, "epochs": self.epochs, **what}
        return [Trial(benchmark, data.config, model, seed, data.fingerprint, **values) for seed in range(self.seeds)]


def table_parser(
    prog: str, description: str, *, configs: tuple[str, ...], models: tuple[str, ...], thresholds: tuple[float, ...]
) -> argparse.ArgumentParser:
    """A parser with the shared options. A command that gives a single model or threshold has no option for it.

    One that gives no configs uses all of the zoo.
    """
    parser = command_parser(prog, description)
    parser.add_argument("--zoo", default=DEFAULT_NAME, metavar="DIR", help="folder of the zoo, or its name on the hub")
    parser.add_argument(
        "--config",
        nargs="+",
        default=list(configs) or None,
        metavar="CONFIG",
        help="configs of the zoo" + ("" if configs else " (default: all)"),
    )
    if len(models) > 1:
        parser.add_argument(
            "--models",
            nargs="+",
            default=list(models),
            metavar="MODEL",
            help="which to fit; module:Class is a predictor of your own",
        )
    if len(thresholds) > 1:
        percent = [threshold_text(threshold) for threshold in thresholds]
        parser.add_argument(
            "--thresholds",
            nargs="+",
            default=percent,
            metavar="T",
            help="least accuracy of the rows: none, or percentages",
        )
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds per model")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="epochs of neural predictors")
    parser.add_argument(
        "--checkpoint",
        metavar="LABEL",
        help="of each run: one of the config's, or all (default: the one nearest to 75 %% of the epochs)",
    )
    parser.add_argument(
        "--where",
        metavar="EXPRESSION",
        help='only these rows of each split, such as "train_fraction >= 0.8" (default: all)',
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, or auto: the GPU where there is one")
    parser.add_argument("--jobs", type=int, default=torch.get_num_threads(), help="threads of the tree models")
    parser.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="folder to write to")
    parser.add_argument(
        "--no-estimate",
        dest="estimate",
        action="store_false",
        help="begin at once, without measuring how long it takes",
    )
    parser.add_argument("--quick", action="store_true", help="one seed, the first threshold, only the paper's recipe")
    parser.set_defaults(all_models=models, all_thresholds=thresholds, recipes=("paper",))
    return parser


def read_options(parsed: argparse.Namespace) -> TableOptions:
    """The options, checked; ``--quick`` overrides the others."""
    for name in ("seeds", "epochs", "jobs"):
        if getattr(parsed, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(parsed, name)}")
    device = choose_device(parsed.device)
    texts = getattr(parsed, "thresholds", None)
    thresholds = tuple(map(parse_threshold, texts)) if texts else parsed.all_thresholds
    return TableOptions(
        zoo=parsed.zoo,
        configs=tuple(dict.fromkeys(parsed.config or ())),
        models=check_models(getattr(parsed, "models", parsed.all_models)),
        thresholds=thresholds[:1] if parsed.quick else tuple(dict.fromkeys(thresholds)),
        seeds=1 if parsed.quick else parsed.seeds,
        epochs=parsed.epochs,
        recipes=("paper",) if parsed.quick else tuple(parsed.recipes),
        checkpoint=parsed.checkpoint,
        where=None if parsed.where is None else Selection.parse(parsed.where),
        device=device,
        jobs=parsed.jobs,
        out=parsed.out,
        estimate=parsed.estimate,
    )


def parse_threshold(text: str) -> float:
    """``none`` or a percentage."""
    try:
        percent = 0.0 if text == "none" else float(text.rstrip("%"))
    except ValueError:
        percent = -1.0
    if not 0 <= percent < 100:
        raise ValueError(f"a threshold is none or a percentage of at least 0 and below 100, got {text!r}")
    return percent / 100


def threshold_text(threshold: float) -> str:
    return "none" if threshold == 0 else f"{threshold * 100:g}"
