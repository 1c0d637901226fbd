"""What lies between two runs: loss along the straight line, plain and aligned, and models merged from several runs.

    python -m benchmarks.merge --zoo DIR --config shakespeare-repeats           runs of one configuration, other seeds
    python -m benchmarks.merge --zoo DIR --config mnist --data DATA             one seed, other configurations

The barrier is the highest loss on the line minus the mean of its ends; of accuracy, the mean of the ends minus the
lowest. Where configurations are repeated, the first 2, 4, 8 … runs of each are merged and compared with their best
member and with the mean of their probabilities.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from zoo.checked import Count, CountOrZero
from zoo.command import DEFAULT_NAME, Command, Device, DryRun, Option, ZooName, progress_bar


@dataclass(frozen=True)
class _Options:
    zoo: ZooName = DEFAULT_NAME
    config: Annotated[str, Option("config of the zoo")] = "shakespeare-repeats"
    checkpoint: Annotated[str | None, Option("of each run (default: the last one that most have)", "LABEL")] = None
    where: Annotated[str | None, Option("only these rows, e.g. \"optimizer == 'adam'\"", "EXPRESSION")] = None
    pairs: Annotated[Count, Option("how many pairs of runs")] = 200
    points: Annotated[Count, Option("points on the line between the ends")] = 9
    examples: Annotated[Count, Option("test examples that losses are measured on")] = 1000
    steps: Annotated[CountOrZero, Option("gradient steps of the ways that compare answers")] = 100
    data: Annotated[Path | None, Option("folder of the task's data (default: downloaded)", "DIR")] = None
    device: Device = "auto"
    out: Annotated[Path, Option("folder to write to", "DIR")] = Path("results")
    dry_run: DryRun = False


_command = Command(__name__, "benchmarks.merge", __doc__, _Options, lambda _: ("matplotlib", "scipy"))

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import combinations

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.benchmark import timer

import nfn
from benchmarks import results
from benchmarks.results import Result
from benchmarks.statistics import resampled_means
from benchmarks.tables import for_terminal, render_table
from zoo.device import choose_device
from zoo.format.hyperparameters import CONFIGURATION
from zoo.format.schema import BEST
from zoo.plots import new_figure, save
from zoo.reading.locate import find_folder
from zoo.reading.reader import ZooReader, open_zoo
from zoo.tasks.evaluation import load_task
from zoo.tasks.examples import Examples, TaskData
from zoo.transformer.population import population_logits, population_losses, prepare_inputs
from zoo.transformer.weights import TransformerWeights

_PAIRS_AT_ONCE, _TILE, _BATCH = 32, 100, 32
_PAPER = ("heads", "query_key", "value_output", "units")
_Align = Callable[[TransformerWeights, TransformerWeights, Tensor], TransformerWeights]
"""One run, the other one, and inputs made up by the latter → the first brought to the second."""


def _rows_of(reader: ZooReader, options: _Options) -> pd.DataFrame:
    """The chosen checkpoint of each run; by default the one that most have, of several the last of the protocol."""
    available, chosen = reader.details.checkpoints, reader.metadata.iloc[reader.rows(options.where)]
    if options.checkpoint not in (None, *available):
        raise ValueError(f"{options.config} has no checkpoint {options.checkpoint!r}: it has {', '.join(available)}")
    counts = chosen["checkpoint"].value_counts()
    latest_first = [name for name in reversed(available) if name != BEST] or [BEST]
    checkpoint = options.checkpoint or max(latest_first, key=lambda name: counts.get(name, 0))
    rows = chosen[chosen["checkpoint"] == checkpoint]
    if len(rows) < 2:
        raise ValueError(f"a line has two ends: {options.config} has {len(rows)} such checkpoints")
    return rows


def _draw(groups: list[list[int]], count: int) -> list[tuple[int, int]]:
    """Pairs of rows of one group each, as many of each group as possible."""
    random, share = np.random.default_rng(0), -(-count // len(groups))
    drawn: list[tuple[int, int]] = []
    for group in groups:
        if len(group) < 100:
            pairs = list(combinations(group, 2))
        else:
            pairs = [tuple(random.choice(group, 2, replace=False).tolist()) for _ in range(share)]
        drawn += [pairs[number] for number in random.permutation(len(pairs))[:share]]
    return drawn[:count]


def _ways(task: TaskData, steps: int) -> Mapping[str, _Align]:
    """How the first of two runs is brought to the second."""
    random = torch.Generator().manual_seed(0)

    def batch_loss(weights: TransformerWeights) -> Float[Tensor, " b"]:
        chosen = torch.randint(len(task.train), (_BATCH,), generator=random).to(task.train.inputs.device)
        examples = task.train[chosen]
        return population_losses(_answers(task, examples, weights.flat()), examples.labels)

    return {
        "plain": lambda u, v, made_up: u,
        "permutations": lambda u, v, made_up: nfn.align(u, v, parts=("heads", "units"), features=True).weights,
        "paper": lambda u, v, made_up: nfn.align(u, v, parts=_PAPER, features=True).weights,
        "whole": lambda u, v, made_up: nfn.align(u, v).weights,
        "answers": lambda u, v, made_up: nfn.align(u, v, inputs=made_up, steps=steps).weights,
        "data": lambda u, v, made_up: nfn.align(u, v, inputs=made_up, loss=batch_loss, steps=steps).weights,
    }


def _answers(task: TaskData, examples: Examples, flat: Float[Tensor, "b d"]) -> Float[Tensor, "b n *t classes"]:
    x, mask = task.model_inputs(examples.inputs)
    return population_logits(task.spec, flat.float(), prepare_inputs(task.spec, x), mask)


@torch.no_grad()
def _measure(
    task: TaskData, test: Examples, flat: Float[Tensor, "b d"], *, ensemble: bool = False
) -> Float[Tensor, "2 models"]:
    """Mean loss and accuracy of each model; as an ensemble, those of the mean of their probabilities."""
    tiles = [test[slice(start, start + _TILE)] for start in range(0, len(test), _TILE)]
    sums = []
    for tile in tiles:
        logits = _answers(task, tile, flat)
        if ensemble:  # logits up to a constant, which a softmax does not see
            logits = logits.log_softmax(-1).logsumexp(0, keepdim=True)
        right = (logits.argmax(-1) == tile.labels).float().flatten(1).mean(1)
        sums.append(torch.stack([population_losses(logits, tile.labels), right]) * len(tile))
    return torch.stack(sums).sum(0) / len(test)


def _merged_losses(
    reader: ZooReader, task: TaskData, test: Examples, groups: list[list[int]], ways: Mapping[str, _Align]
) -> Iterator[tuple[int, dict[str, list[float]]]]:
    """How many runs are merged, and the losses of the merged, of the best member and of the ensemble in each group.

    All runs of a group are brought to its first one, which stays as it is.
    """
    least = min((len(group) for group in groups), default=0)
    counts = [size for size in (2, 4, 8, 16) if size <= least]
    if not counts:
        return
    members = torch.stack([reader.weights(group[: counts[-1]]) for group in groups]).to(test.inputs.device)
    first, others = members[:, :1], members[:, 1:]
    flat = (others.flatten(0, 1), first.expand_as(others).flatten(0, 1), first[:, 0])
    u, v, writers = (TransformerWeights.from_flat(reader.spec, each) for each in flat)
    made_up, size = nfn.made_up_inputs(writers), others.shape[:2]
    aligned = {
        way: torch.cat([first, align(u, v, made_up).flat().unflatten(0, size)], 1) for way, align in ways.items()
    }
    for count in counts:
        apart = [members[number, :count] for number in range(len(groups))]
        losses = {
            "best member": [float(_measure(task, test, each)[0].min()) for each in apart],
            "ensemble": [float(_measure(task, test, each, ensemble=True)[0]) for each in apart],
        }
        for way, found in aligned.items():
            losses[way] = _measure(task, test, found[:, :count].mean(1))[0].tolist()
        yield count, losses


def _plot(config: str, shares: np.ndarray, lines: Mapping[str, np.ndarray], path: Path) -> Path:
    """The mean loss on the line, one curve per way."""
    figure = new_figure(6.0, 4.0)
    axis = figure.subplots()
    for way, (losses, _) in lines.items():
        axis.plot(shares, losses.mean(0), marker="o", markersize=3, label=way)
    axis.set(title=f"{config}, {next(iter(lines.values())).shape[1]} pairs", xlabel="from one run to the other")
    axis.set_ylabel("test loss")
    axis.legend(fontsize=8)
    return save(figure, path)


@_command
def main(options: _Options) -> None:
    device = choose_device(options.device)
    folder = find_folder(options.zoo, options.config)
    reader = open_zoo(folder, options.config, "all")
    details = reader.details
    task = load_task(details.definition(Path.cwd()), options.data, lambda: folder / details.task).to(device)
    test = task.test[slice(0, options.examples)]
    rows = _rows_of(reader, options)
    groups = [list(group) for _, group in rows.groupby(list(CONFIGURATION), sort=False).groups.items()]
    repeated = [group for group in groups if len(group) > 1]
    pairs = _draw(repeated or [list(rows.index)], options.pairs)
    ways = _ways(task, options.steps)
    shares = np.linspace(0, 1, options.points + 2)
    lines = {way: np.zeros((2, len(pairs), len(shares))) for way in ways}  # losses and accuracies
    seconds: dict[str, list[float]] = {way: [] for way in ways}  # per pair
    with progress_bar() as bar:
        shown = bar.add_task("pairs", total=len(pairs) * len(ways))
        for start in range(0, len(pairs), _PAIRS_AT_ONCE):
            part = pairs[start : start + _PAIRS_AT_ONCE]
            ends = (reader.weights(list(side)).to(device) for side in zip(*part, strict=True))
            first, second = (TransformerWeights.from_flat(reader.spec, end) for end in ends)
            made_up = nfn.made_up_inputs(second)
            for way, align in ways.items():
                began = timer()  # when a GPU has finished
                aligned = align(first, second, made_up)
                seconds[way].append((timer() - began) / len(part))
                on_line = [_measure(task, test, nfn.interpolate(aligned, second, float(t)).flat()) for t in shares]
                lines[way][:, start : start + len(part)] = torch.stack(on_line, dim=2).cpu().numpy()
                bar.advance(shown, len(part))
    setting = {"checkpoint": rows["checkpoint"].iloc[0], "examples": len(test)}
    setting |= {"points": options.points, "steps": options.steps}
    setting |= {"where": options.where} if options.where else {}
    estimated, measured = partial(Result.estimated, "merge", options.config, device=device), list[Result]()
    # the pairs of a configuration are alike, and share runs
    units = rows.groupby(list(CONFIGURATION)).ngroup()[[row for row, _ in pairs]].to_numpy()
    for way, (losses, accuracies) in lines.items():
        what = {"n": len(pairs), "variant": way, "setting": setting}
        for metric, values in (("barrier", losses), ("accuracy_barrier", -accuracies)):
            barriers = values.max(1) - (values[:, 0] + values[:, -1]) / 2
            resampled = resampled_means(barriers, units if len(repeated) > 1 else None)
            measured += estimated(metric, [barriers.mean()], resampled, **what)
        measured += estimated("loss_of_ends", [losses[:, [0, -1]].mean()], **what)
        measured += estimated("seconds_per_100_pairs", [100 * float(np.median(seconds[way]))], **what)
    for count, merged in _merged_losses(reader, task, test, repeated, ways):
        what = {"n": len(repeated), "setting": setting | {"members": count}}
        for way, found in merged.items():
            measured += estimated("merged_loss", [float(np.mean(found))], variant=way, **what)
    text = render_table("merge", rows=measured)
    print(for_terminal(text))
    if not options.dry_run:
        results.append(measured, options.out)
        print(f"drawn: {_plot(options.config, shares, lines, options.out / f'merge.{options.config}.png')}")
