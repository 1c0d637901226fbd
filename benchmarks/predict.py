"""Ranks checkpoints by predicted accuracy, with a fitted predictor and without any test data.

python -m benchmarks.predict small-transformer-zoo --config mnist            the test split of a zoo
python -m benchmarks.predict small-transformer-zoo --config mnist --where "optimizer == 'adam'" --top 5
python -m benchmarks.predict one.safetensors two.pt folder/                  files of zoo.export, state_dicts of torch
python -m benchmarks.predict DIR --config mnist --predictor mine.safetensors one that benchmarks.pretrain fitted, or a
                                                                             folder of nfn.save_predictor

Without --predictor it is the one of this package whose transformers these are (nfn.load_pretrained). Where accuracies
were measured, Kendall's tau of the ranking is printed with its interval. A file of weights is read without executing
anything in it.
"""

import argparse
import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import nn

from benchmarks.data.ranked import RankedRows, files_in
from benchmarks.statistics.ranking import kendall_tau
from benchmarks.statistics.uncertainty import Interval, bootstrap_taus, resample_runs
from benchmarks.tables.markdown import MISSING, for_terminal, table
from nfn import load_predictor, load_pretrained
from nfn.predictors.conformal import LEVEL, ConformalInterval
from nfn.predictors.predictor import differences
from nfn.predictors.pretrained import pretrained_names
from nfn.training import READ_AT_ONCE
from zoo import TransformerSpec
from zoo.command import command, command_parser, how_many, positive
from zoo.format.manifest import MANIFEST_FILE
from zoo.format.published import PublishedZoo
from zoo.reading.checkpoint_file import SUFFIXES, CheckpointFile
from zoo.reading.locate import DEFAULT_NAME, find_folder
from zoo.reading.reader import open_zoo
from zoo.storage.atomic import write_atomically
from zoo.terminal import printable

SHOWN = 20


@dataclass(frozen=True)
class Ranker:
    """A fitted predictor by name; one of ``nfn.save_predictor`` has no interval."""

    name: str
    spec: TransformerSpec
    predictor: nn.Module
    interval: ConformalInterval | None
    card: dict[str, Any]

    @classmethod
    def load(cls, name: str) -> "Ranker":
        if name not in pretrained_names() and Path(name).is_dir():
            predictor = load_predictor(name)
            return cls(name, predictor.spec, predictor.float().eval(), None, {})
        pretrained = load_pretrained(name)
        return cls(name, pretrained.spec, pretrained.predictor, pretrained.interval, pretrained.card)

    @property
    def config(self) -> str | None:
        """The config that its card says it was fitted on."""
        data = self.card.get("data", {})
        if not isinstance(data, dict) or not isinstance(data.get("config"), str | None):
            raise ValueError(f"the card of {self.name} is damaged: data must be a table with the config, got {data!r}")
        return data.get("config")

    @torch.no_grad()
    def predict(self, rows: RankedRows) -> "Ranking":
        if rows.spec != self.spec:
            unlike = differences(self.spec, rows.spec)
            raise ValueError(f"{self.name} reads {self.spec.task} transformers, these are others: {unlike}")
        predicted = torch.cat([self.predictor(part) for part in rows.weights.split(READ_AT_ONCE)])
        low, high = (None, None) if self.interval is None else (end.numpy() for end in self.interval(predicted))
        return Ranking(rows, predicted.numpy(), low, high)


@dataclass(frozen=True)
class Ranking:
    """Checkpoints with their predictions and the ends of the intervals, where there are any."""

    rows: RankedRows
    predicted: Float[np.ndarray, " n"]
    low: Float[np.ndarray, " n"] | None
    high: Float[np.ndarray, " n"] | None

    def order(self) -> list[int]:
        """The best first."""
        return np.argsort(-self.predicted, kind="stable").tolist()

    def interval(self, row: int) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (float(self.low[row]), float(self.high[row]))

    def text(self, top: int) -> str:
        """The first rows as a table for a terminal."""
        cells = []
        for place, row in enumerate(self.order()[:top], start=1):
            interval, measured = self.interval(row), float(self.rows.measured[row])
            cells.append(
                [
                    f"{place}. {printable(self.rows.names[row]).replace('|', '¦')}",
                    f"{self.predicted[row]:.3f}",
                    MISSING if interval is None else f"[{interval[0]:.3f}, {interval[1]:.3f}]",
                    MISSING if math.isnan(measured) else f"{measured:.3f}",
                ]
            )
        return for_terminal(table(["checkpoint", "predicted", f"{LEVEL:.0%} interval", "measured"], cells))

    def verdict(self) -> str | None:
        """How good the ranking is, where at least two accuracies were measured."""
        known = np.flatnonzero(np.isfinite(self.rows.measured))
        predicted, truth = self.predicted[known], self.rows.measured[known]
        if math.isnan(tau := kendall_tau(predicted, truth)):
            return None
        runs = np.unique(self.rows.runs[known], return_inverse=True)[1]
        resamples = Interval.of(bootstrap_taus([predicted], truth, resample_runs(runs)))
        words = "" if resamples is None else f" [{resamples.low:.3f}, {resamples.high:.3f}]"
        line = f"Kendall's τ on {len(known):,} measured checkpoints of {len(np.unique(runs)):,} runs: {tau:.3f}{words}"
        if self.low is None or self.high is None:
            return line
        inside = (self.low[known] <= truth) & (truth <= self.high[known])
        return f"{line}; {inside.mean():.0%} of them are inside the interval"

    def csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["checkpoint", "predicted", "low", "high", "measured"])
        for row in self.order():
            measured = self.rows.measured[row]
            ends = self.interval(row) or ("", "")
            writer.writerow(
                [self.rows.names[row], float(self.predicted[row]), *ends, "" if math.isnan(measured) else measured]
            )
        return text.getvalue()


def fitting_name(spec: TransformerSpec, config: str | None = None) -> str | None:
    """The fitted predictor of this package for these transformers: that of the config, else of the task, else any."""
    names = [name for name in pretrained_names() if load_pretrained(name).spec == spec]
    return next((name for name in (config, spec.task) if name in names), names[0] if names else None)


def zoo_ranking(path: str, options: argparse.Namespace) -> tuple[str, Ranking]:
    """A title and the ranking of the chosen rows of a zoo."""
    given = None if options.predictor is None else Ranker.load(options.predictor)
    folder = find_folder(path, options.config)
    configs = PublishedZoo.read(folder).configs
    config = options.config or (given.config if given else None)
    if config is None and len(configs) > 1:
        raise ValueError(f"{path} has several configs: choose one of {', '.join(configs)} with --config")
    reader = open_zoo(folder, config or next(iter(configs)), options.split or "test")
    name = None if given else fitting_name(reader.spec, reader.config)
    if given is None and name is None:
        raise ValueError(f"no fitted predictor of this package reads {reader.config}: name one with --predictor")
    ranker = given or Ranker.load(str(name))
    return f"{path}, {reader.config}, {reader.split}", ranker.predict(RankedRows.of_zoo(reader, options.where))


def file_rankings(files: Sequence[CheckpointFile], predictor: str | None) -> list[tuple[str, Ranking]]:
    """One ranking for each predictor that some of the files need."""
    names = [predictor] if predictor else pretrained_names()
    rankers = {name: Ranker.load(name) for name in names}
    by_name: dict[str, list[CheckpointFile]] = {}
    for file in files:
        misfits = {name: file.misfit(ranker.spec) for name, ranker in rankers.items()}
        fitting = [name for name, misfit in misfits.items() if misfit is None]
        if not fitting:
            told = "; ".join(f"for {name}, {misfit}" for name, misfit in misfits.items())
            raise ValueError(f"{file.path} is of no transformer that a fitted predictor reads: {told}")
        preferred = next((name for name in fitting if name == rankers[name].spec.task), fitting[0])
        by_name.setdefault(preferred, []).append(file)
    return [
        (f"{len(chosen):,} files", rankers[name].predict(RankedRows.of_files(rankers[name].spec, chosen)))
        for name, chosen in by_name.items()
    ]


def is_zoo(path: str) -> bool:
    """Whether it names a zoo; what is neither a file nor a folder may be one on the hub, unless it ends like a file."""
    if Path(path).exists():
        return (Path(path) / MANIFEST_FILE).is_file()
    return Path(path).suffix not in SUFFIXES


@command
def main(arguments: list[str] | None = None) -> None:
    parser = command_parser("benchmarks.predict", __doc__)
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help=f"zoo such as {DEFAULT_NAME}, files of checkpoints, or folders of them"
    )
    parser.add_argument("--config", help="config of a zoo (default: that of the predictor, or the only one)")
    parser.add_argument("--split", help="of a zoo: train, validation, test, joined by +, or all (default: test)")
    parser.add_argument("--where", metavar="EXPRESSION", help="of a zoo: only these rows, e.g. \"optimizer == 'adam'\"")
    parser.add_argument("--predictor", metavar="NAME", help="a name of this package, or a file or folder of your own")
    parser.add_argument("--top", type=positive, default=SHOWN, metavar="N", help="how many rows to print")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write all rows to this CSV file")
    options = parser.parse_args(arguments)
    zoos = [path for path in options.paths if is_zoo(path)]
    files = [file for path in options.paths if path not in zoos for file in files_in(Path(path))]
    if not zoos and (options.where or options.config or options.split):
        raise ValueError("--config, --split and --where choose rows of a zoo: the paths are files of checkpoints")
    rankings = [zoo_ranking(path, options) for path in zoos]
    rankings += file_rankings(files, options.predictor) if files else []
    if options.out is not None and len(rankings) > 1:
        raise ValueError(f"--out takes one ranking: these paths have {len(rankings)}, of different predictors or zoos")
    for title, ranking in rankings:
        rows = len(ranking.predicted)
        first = f", the best {options.top} first" if rows > options.top else ", the best first" if rows > 1 else ""
        print(f"{printable(title)}: {how_many(rows, 'checkpoint')}{first}\n")
        print(ranking.text(options.top))
        print(f"\n{ranking.verdict() or 'no accuracies were measured, or they cannot be ranked'}")
        if options.out is not None:
            write_atomically(options.out, ranking.csv().encode())
            print(f"written: {options.out}")


if __name__ == "__main__":
    main()
