"""Describes a zoo: every config on one line; in detail counts, a histogram and marginals per hyperparameter.

python -m zoo.describe small-transformer-zoo
python -m zoo.describe small-transformer-zoo --config mnist --where "checkpoint == 'epoch_75'" --png histogram.png
python -m zoo.describe small-transformer-zoo --plots DIR        histograms, learning curves and marginals as pictures,
                                                                of language models also what their heads look at
"""

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from zoo.command import DEFAULT_NAME, Argument, Command, Option


@dataclass(frozen=True)
class _Options:
    zoo: Annotated[str, Argument("folder of the zoo, or its name on the hub", "DIR")] = DEFAULT_NAME
    config: Annotated[str | None, Option("only this config, in detail (default: all)", "CONFIG")] = None
    details: Annotated[bool, Option("histogram and marginals of every config")] = False
    where: Annotated[str | None, Option("only these rows, e.g. \"checkpoint == 'epoch_75'\"", "EXPRESSION")] = None
    png: Annotated[Path | None, Option("also draw the histogram to this file", "FILE")] = None
    plots: Annotated[Path | None, Option("also draw histogram, learning curves and marginals", "DIR")] = None


_command = Command(
    __name__, "zoo.describe", __doc__, _Options, lambda options: ("matplotlib",) if options.png or options.plots else ()
)

import numpy as np
import pandas as pd
from jaxtyping import Integer
from rich.box import SIMPLE
from rich.table import Table

from zoo.format.hyperparameters import CONFIGURATION, HYPERPARAMETERS
from zoo.format.published import PublishedZoo
from zoo.format.schema import BEST, usual_label
from zoo.format.splits import SPLITS
from zoo.plots import BINS, plot_circuits, plot_curves, plot_histograms, plot_marginals, span_of
from zoo.reading.locate import find_folder
from zoo.reading.reader import ZooReader, open_zoo
from zoo.reading.selection import select
from zoo.terminal import PlainConsole
from zoo.transformer.weights import TransformerWeights

_BAR_WIDTH = 50
_SPARKS = " ▁▂▃▄▅▆▇█"
_THRESHOLDS = (0.2, 0.4, 0.6, 0.8)  # of the paper's tables
_WIDTH = 100  # where the output is not a terminal, which has its own
_MOST_VALUES = 20  # of a hyperparameter; of more, only their number is shown
_Selected = dict[str, tuple[ZooReader, pd.DataFrame]]
"""The reader of each config, and its chosen rows."""


def _counts_table(name: str, reader: ZooReader, rows: pd.DataFrame) -> Table:
    """Rows and runs of each split, and the share of accuracies above each threshold of the paper."""
    label, more = usual_label(reader.spec)
    thresholds = _THRESHOLDS if more else ()
    table = Table(title=f"{name}: {len(rows):,} checkpoints of {len(set(rows['run_id'])):,} runs", title_justify="left")
    measures = (f"mean {_short(label)}", *(f"≥ {threshold:.0%}" for threshold in thresholds)) if len(rows) else ()
    for heading in ("split", "rows", "runs", *measures):
        table.add_column(heading, justify="left" if heading == "split" else "right")
    splits = np.array(reader.details.splits_of(rows.__getitem__), dtype=str)
    for split in (*SPLITS, "all"):
        part = rows if split == "all" else rows[splits == split]
        values = part[label]
        cells = [f"{values.mean():.4f}", *(f"{(values >= threshold).mean():.1%}" for threshold in thresholds)]
        shown = cells if len(part) else ["–"] * len(cells)
        table.add_row(split, f"{len(part):,}", f"{len(set(part['run_id'])):,}", *shown[: len(measures)])
    statuses = reader.runs["status"].value_counts()
    table.caption = ", ".join(f"{count:,} runs {status}" for status, count in statuses.items())
    return table


def _short(label: str) -> str:
    return label.removeprefix("test_")


def _histogram_lines(counts: Integer[np.ndarray, " bins"], span: tuple[float, float] = (0.0, 1.0)) -> list[str]:
    """The histogram as text; a bar's length is the logarithm of its count."""
    top = math.log10(1 + max(1, int(counts.max())))
    lines = []
    for index, count in enumerate(counts.tolist()):
        width = round(_BAR_WIDTH * math.log10(1 + count) / top)
        start = span[0] + (span[1] - span[0]) * index / len(counts)
        lines.append(f"{start:5.2f} {'█' * width or ('▏' if count else '')} {count:,}")
    return lines


def _marginals_table(rows: pd.DataFrame, label: str) -> Table:
    """Number of checkpoints and their label for each value of each hyperparameter."""
    table = Table(title=f"{_short(label)} by hyperparameter", title_justify="left")
    for heading in ("hyperparameter", "value", "rows", "mean", "median", "min", "max"):
        table.add_column(heading, justify="left" if heading in ("hyperparameter", "value") else "right")
    for name in ("checkpoint", *HYPERPARAMETERS):
        groups: dict[Any, Any] = dict(iter(rows.groupby(name)[label]))
        if len(groups) > (len(_THRESHOLDS) if name == "seed" else _MOST_VALUES):
            groups = {f"{len(groups):,} values": rows[label]}
        order = sorted(groups, key=lambda label: (label == BEST, len(label), label)) if name == "checkpoint" else groups
        for value in order:
            group = groups[value]
            numbers = (group.mean(), group.median(), group.min(), group.max())
            text = f"{value:g}" if isinstance(value, float) else str(value)
            table.add_row(name, text, f"{len(group):,}", *(f"{number:.4f}" for number in numbers))
        table.add_section()
    return table


def _overview_table(title: str, label: str, more: bool, selected: _Selected) -> Table:
    """One line per config: how much there is, and how good by this label."""
    low, high = span = span_of(pd.concat([rows[label] for _, rows in selected.values()]))
    spread = f"{_short(label)}, {low:.3g} to {high:.3g}"
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1), pad_edge=False)
    for heading in ("config", "runs", "checkpoints", "median", "best", spread):
        left = heading in ("config", spread)
        table.add_column(heading, justify="left" if left else "right", no_wrap=heading != "config", overflow="fold")
    for config, (reader, rows) in selected.items():
        values = rows[label].to_numpy()
        splits = reader.details.splits_of(rows.__getitem__)
        counts = " / ".join(f"{splits.count(split):,}" for split in SPLITS)
        best = (values.max if more else values.min)() if len(rows) else None
        numbers = ("–", "–") if best is None else (f"{np.median(values):.3f}", f"{best:.3f}")
        runs = f"{len(set(rows['run_id'])):,}"
        table.add_row(config, runs, counts, *numbers, _sparkline(np.histogram(values, BINS, span)[0]))
    return table


def _sparkline(counts: Integer[np.ndarray, " bins"]) -> str:
    """A histogram in one line; a bar's height is the logarithm of its count."""
    top = math.log10(1 + max(1, int(counts.max())))
    heights = [math.ceil((len(_SPARKS) - 1) * math.log10(1 + count) / top) for count in counts.tolist()]
    return "".join(_SPARKS[height] for height in heights)


def _print_details(console: PlainConsole, config: str, reader: ZooReader, rows: pd.DataFrame) -> None:
    console.print(_counts_table(config, reader, rows))
    if not len(rows):
        return
    label, _ = usual_label(reader.spec)
    span = span_of(rows[label])
    console.print(f"\n{label.replace('_', ' ')}, bars on a logarithmic scale")
    for line in _histogram_lines(np.histogram(rows[label], BINS, span)[0], span):
        console.print(line)
    console.print()
    console.print(_marginals_table(rows, label))


def _by_label(selected: _Selected) -> list[tuple[tuple[str, bool], _Selected]]:
    """The configs that are ranked by each label."""
    labels = {config: usual_label(reader.spec) for config, (reader, _) in selected.items()}
    return [
        (label, {config: selected[config] for config in selected if labels[config] == label})
        for label in dict.fromkeys(labels.values())
    ]


def _draw(selected: _Selected, histograms: Path | None, folder: Path | None) -> Iterator[Path]:
    """Draws the wanted pictures of the configs that have checkpoints: all runs of one may have diverged."""
    drawn = {config: (reader, rows) for config, (reader, rows) in selected.items() if len(rows)}
    if not drawn:
        return
    panels = {
        label: {f"{config}, {len(rows):,} checkpoints": rows[label] for config, (_, rows) in part.items()}
        for (label, _), part in _by_label(drawn)
    }
    if histograms is not None:
        yield plot_histograms({title: values for part in panels.values() for title, values in part.items()}, histograms)
    if folder is not None:
        for label, part in panels.items():
            yield plot_histograms(part, folder / f"{_short(label)}.png")
        for config, (reader, rows) in drawn.items():
            label, _ = usual_label(reader.spec)
            chosen = np.flatnonzero(np.isin(list(reader.runs["run_id"]), list(rows["run_id"])))
            if reader.details.protocol["epochs"] > 1:
                yield plot_curves(config, reader.runs.iloc[chosen], label, folder / f"curves.{config}.png")
            if reader.spec.causal:
                best = int(rows[label].argmin())
                row, title = reader.weights([int(rows.index[best])])[0], f"{config}, the model of the lowest loss"
                picture = folder / f"circuits.{config}.png"
                yield plot_circuits(title, TransformerWeights.from_flat(reader.spec, row), reader.characters, picture)
            if varied := [name for name in CONFIGURATION if len(set(rows[name])) > 1]:
                yield plot_marginals(config, rows, varied, label, folder / f"marginals.{config}.png")


@_command
def main(options: _Options) -> None:
    folder = find_folder(options.zoo, options.config)
    configs = [options.config] if options.config else list(PublishedZoo.read(folder).configs)
    readers = {config: open_zoo(folder, config, "all") for config in configs}
    selected = {
        config: (reader, reader.metadata.iloc[np.flatnonzero(select(reader.metadata, options.where))])
        for config, reader in readers.items()
    }
    if not any(len(rows) for _, rows in selected.values()):
        for reader in readers.values():
            reader.rows(options.where)  # an error that lists the values there are
    console = PlainConsole() if sys.stdout.isatty() else PlainConsole(width=_WIDTH)
    if options.details or options.config:
        for config, (reader, rows) in selected.items():
            _print_details(console, config, reader, rows)
    else:
        for label, part in _by_label(selected):
            console.print(_overview_table(str(folder), *label, part))
        console.print(
            f"checkpoints: {' / '.join(SPLITS)}; bars on a logarithmic scale; "
            "more with --details, --config CONFIG or --plots DIR",
        )
    for path in _draw(selected, options.png, options.plots):
        console.print(f"drawn: {path}", soft_wrap=True)
