"""Ranks checkpoints by predicted accuracy or loss, with a fitted predictor and without any test data.

python -m benchmarks.predict small-transformer-zoo --config mnist            the test split of a zoo
python -m benchmarks.predict one.safetensors two.pt folder/                  files of zoo.export, state_dicts of torch
python -m benchmarks.predict DIR --config mnist --predictor mine.safetensors one that benchmarks.pretrain fitted, or a
                                                                             folder of nfn.save_predictor

Without --predictor it is the one of this package whose transformers these are. Where they were measured, Kendall's tau
of the ranking is printed with its interval. A file of weights is read without executing anything in it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from zoo.checked import Count, printable
from zoo.command import Argument, Command, Option, how_many


@dataclass(frozen=True, kw_only=True)
class _Options:
    paths: Annotated[tuple[str, ...], Argument("a zoo, files of checkpoints, or folders of them", "PATH")]
    config: Annotated[
        str | None, Option("config of a zoo (default: the first that the predictor was fitted on, or the only one)")
    ] = None
    split: Annotated[str | None, Option("train, validation, test of a zoo, joined by +, or all (default: test)")] = None
    where: Annotated[str | None, Option("of a zoo: only these rows, e.g. \"optimizer == 'adam'\"", "EXPRESSION")] = None
    predictor: Annotated[str | None, Option("a name of this package, or a file or folder of your own", "NAME")] = None
    top: Annotated[Count, Option("how many rows to print", "N")] = 20
    out: Annotated[Path | None, Option("also write all rows to this CSV file", "FILE")] = None


_command = Command(__name__, "benchmarks.predict", __doc__, _Options, lambda _: ("scipy",))

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor, nn

from benchmarks.data import Checkpoints
from benchmarks.statistics import tau_with_interval
from benchmarks.tables import for_terminal, render_table, with_interval
from nfn import load_predictor, load_pretrained
from nfn.predictors.conformal import LEVEL, ConformalInterval
from nfn.predictors.predictor import differences
from nfn.predictors.storage import pretrained_names
from nfn.training import READ_AT_ONCE
from zoo import TransformerSpec, TransformerWeights
from zoo.format.manifest import MANIFEST_FILE
from zoo.format.published import PublishedZoo
from zoo.format.schema import GAP, direction_of
from zoo.reading.checkpoint_file import SUFFIXES, CheckpointFile
from zoo.reading.locate import find_folder
from zoo.reading.reader import open_zoo
from zoo.storage.atomic import write_atomically
from zoo.storage.untrusted import faults_named

_WRITTEN = ["checkpoint", "predicted", "low", "high", "measured"]


def _flat_of(spec: TransformerSpec, file: CheckpointFile) -> Float[Tensor, " d"]:
    state = {name: tensor.float() for name, tensor in file.state.items()}
    with faults_named(str(file.path)):
        return TransformerWeights.from_state_dict(spec, state).flat()


def _measured(metadata: Mapping[str, Any], label: str) -> float:
    """The label in the header of a file; NaN where there is none, or an accuracy that is none."""
    if label == GAP:
        return _measured(metadata, "test_loss") - _measured(metadata, "train_loss")
    try:
        value = float(metadata.get(label, "nan"))
    except ValueError:
        return math.nan
    return value if math.isfinite(value) and (label != "test_accuracy" or 0 <= value <= 1) else math.nan


def _files_in(path: Path) -> list[CheckpointFile]:
    """The checkpoint of a file, or those of all files in a folder, by name."""
    paths = sorted(each for each in path.iterdir() if each.suffix in SUFFIXES) if path.is_dir() else [path]
    if not paths:
        raise ValueError(f"{path} holds neither a zoo (manifest.json) nor files that end in {', '.join(SUFFIXES)}")
    return [CheckpointFile.read(each) for each in paths]


@dataclass(frozen=True)
class _Ranker:
    """A fitted predictor by name; one of ``nfn.save_predictor`` has no interval."""

    name: str
    spec: TransformerSpec
    predictor: nn.Module
    interval: ConformalInterval | None
    card: dict[str, Any]
    label: str = "test_accuracy"

    @classmethod
    def load(cls, name: str) -> "_Ranker":
        if name not in pretrained_names() and Path(name).is_dir():
            predictor = load_predictor(name)
            return cls(name, predictor.spec, predictor.float().eval(), None, {})
        pretrained = load_pretrained(name)
        return cls(name, pretrained.spec, pretrained.predictor, pretrained.interval, pretrained.card, pretrained.label)

    @property
    def configs(self) -> list[str]:
        """The configs that it was fitted on, by its card."""
        data = self.card.get("data", {})
        named = data.get("config", []) if isinstance(data, dict) else None
        configs = [named] if isinstance(named, str) else named
        if not isinstance(configs, list) or not all(isinstance(config, str) for config in configs):
            raise ValueError(f"the card of {self.name} is damaged: data must be a table with the config, got {data!r}")
        return configs

    @torch.no_grad()
    def rank(self, what: str, weights: Float[Tensor, "n d"], table: Mapping[str, Any]) -> tuple[str, pd.DataFrame]:
        """A title, which names what is predicted where that is not the accuracy, and the checkpoints, the best
        predictions first, with the ends of the intervals, NaN where there are none.

        ``table`` has the name of each (``checkpoint``), its ``run``, what a bootstrap draws (``unit``) if not that, and
        the label that was ``measured``, NaN where it is not known.
        """
        predicted = torch.cat([self.predictor(part) for part in weights.split(READ_AT_ONCE)])
        low, high = (torch.full_like(predicted, math.nan),) * 2 if self.interval is None else self.interval(predicted)
        numbers = {"predicted": predicted, "low": low, "high": high}
        ranking = pd.DataFrame(table).assign(**{name: tensor.double().numpy() for name, tensor in numbers.items()})
        ranking = ranking.sort_values("predicted", ascending=direction_of(self.label) < 0, kind="stable")
        return what if self.label == "test_accuracy" else f"{what} by {self.label.replace('_', ' ')}", ranking


def _verdict(ranking: pd.DataFrame) -> str:
    """Kendall's τ of the ranking, where at least two accuracies were measured."""
    known = ranking[np.isfinite(ranking["measured"])]
    predicted, truth, low, high = (known[name].to_numpy() for name in ("predicted", "measured", "low", "high"))
    units = np.unique(known.get("unit", known["run"]).to_numpy(dtype=str), return_inverse=True)[1]
    tau, interval = tau_with_interval(predicted, truth, units)
    if math.isnan(tau):
        return "nothing was measured, or it cannot be ranked"
    counts = f"{len(truth):,} measured checkpoints of {known['run'].nunique():,} runs"
    line = f"Kendall's τ on {counts}: {with_interval(tau, interval)}"
    if np.isnan(low).any():
        return line
    return f"{line}; {((low <= truth) & (truth <= high)).mean():.0%} of them are inside the interval"


def _zoo_ranking(path: str, options: _Options) -> tuple[str, pd.DataFrame]:
    """A title and the ranking of the chosen rows of a zoo, by the fitted predictor of its config, its task, or any."""
    ranker = None if options.predictor is None else _Ranker.load(options.predictor)
    folder = find_folder(path, options.config)
    configs = PublishedZoo.read(folder).configs
    fitted_on = [config for config in (ranker.configs if ranker else ()) if config in configs]
    config = options.config or next(iter(fitted_on or configs))
    if not options.config and not fitted_on and len(configs) > 1:
        raise ValueError(f"{path} has several configs: choose one of {', '.join(configs)} with --config")
    reader = open_zoo(folder, config, options.split or "test")
    if ranker is None:
        names = [name for name in pretrained_names() if load_pretrained(name).spec == reader.spec]
        if not names:
            raise ValueError(f"no fitted predictor of this package reads {reader.config}: name one with --predictor")
        ranker = _Ranker.load(max(names, key=lambda name: (name == reader.config, name == reader.spec.task)))
    elif ranker.spec != reader.spec:
        unlike = differences(ranker.spec, reader.spec)
        raise ValueError(f"{ranker.name} reads {ranker.spec.task} transformers, these are others: {unlike}")
    rows = Checkpoints.read(reader, "all", torch.device("cpu"), options.where, ranker.label)
    names = rows.metadata["run_id"].astype(str) + " " + rows.metadata["checkpoint"].astype(str)
    measured = direction_of(ranker.label) * rows.truth().astype(np.float64)
    units = rows.units(repeats=reader.details.repeats is not None)
    columns = {"checkpoint": names, "run": rows.runs, "unit": units, "measured": measured}
    return ranker.rank(f"{path}, {reader.config}, {reader.split}", rows.weights, columns)


def _file_rankings(files: Sequence[CheckpointFile], predictor: str | None) -> list[tuple[str, pd.DataFrame]]:
    """One ranking for each predictor that some of the files need."""
    rankers = {name: _Ranker.load(name) for name in ([predictor] if predictor else pretrained_names())}
    by_name: dict[str, list[CheckpointFile]] = {}
    for file in files:
        misfits = {name: file.misfit(ranker.spec) for name, ranker in rankers.items()}
        fitting = [name for name, misfit in misfits.items() if misfit is None]
        if not fitting:
            reasons = "; ".join(f"for {name}, {misfit}" for name, misfit in misfits.items())
            raise ValueError(f"{file.path} fits no fitted predictor: {reasons}")
        preferred = next((name for name in fitting if name == rankers[name].spec.task), fitting[0])
        by_name.setdefault(preferred, []).append(file)
    rankings = []
    for ranker, chosen in ((rankers[name], chosen) for name, chosen in by_name.items()):
        weights = torch.stack([_flat_of(ranker.spec, file) for file in chosen])
        columns = {
            "checkpoint": [str(file.path) for file in chosen],
            "run": [str(file.metadata.get("run_id", file.path)) for file in chosen],
            "measured": [_measured(file.metadata, ranker.label) for file in chosen],
        }
        rankings.append(ranker.rank(f"{len(chosen):,} files", weights, columns))
    return rankings


def _is_zoo(path: Path) -> bool:
    """Whether it names a zoo; a path that does not exist may be one on the hub, unless it ends like a file."""
    return (path / MANIFEST_FILE).is_file() if path.exists() else path.suffix not in SUFFIXES


@_command
def main(options: _Options) -> None:
    zoos = [path for path in options.paths if _is_zoo(Path(path))]
    files = [file for path in options.paths if path not in zoos for file in _files_in(Path(path))]
    if not zoos and (options.where or options.config or options.split):
        raise ValueError("--config, --split and --where choose rows of a zoo: the paths are files of checkpoints")
    rankings = [_zoo_ranking(path, options) for path in zoos]
    rankings += _file_rankings(files, options.predictor) if files else []
    if options.out is not None and len(rankings) > 1:
        raise ValueError(f"--out takes one ranking: these paths have {len(rankings)}, of different predictors or zoos")
    for title, ranking in rankings:
        count = len(ranking)
        first = f", the best {options.top} first" if count > options.top else ", the best first" if count > 1 else ""
        print(f"{printable(title)}: {how_many(count, 'checkpoint')}{first}\n")
        best = ranking.head(options.top).astype(object)
        rows = best.where(best.notna(), None).to_dict("records")
        print(for_terminal(render_table("ranking", rows=rows, level=f"{LEVEL:.0%}")))
        print(f"\n{for_terminal(_verdict(ranking))}")
        if options.out is not None:
            write_atomically(options.out, ranking[_WRITTEN].to_csv(index=False, lineterminator="\n").encode())
            print(f"written: {options.out}")
