"""What a zoo holds: counts, the histogram of accuracy with a logarithmic count, and marginals per hyperparameter.

python -m zoo.describe small-transformer-zoo
python -m zoo.describe small-transformer-zoo --config mnist --where "checkpoint == 'epoch_75'" --png histogram.png
"""

import argparse
import math
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float, Integer
from rich.console import Console
from rich.table import Table

from zoo.command import command, command_parser
from zoo.format.published import PublishedZoo
from zoo.format.schema import CHECKPOINTS, HYPERPARAMETERS
from zoo.format.splits import SPLITS, split_of
from zoo.reading.locate import DEFAULT_NAME, find_folder
from zoo.reading.reader import ZooReader, open_zoo

BINS = 20
BAR_WIDTH = 50
THRESHOLDS = (0.2, 0.4, 0.6, 0.8)  # of the paper's tables


def histogram(accuracies: Float[np.ndarray, " n"], bins: int = BINS) -> Integer[np.ndarray, " bins"]:
    """Checkpoints in each of ``bins`` equal stretches of [0, 1]."""
    return np.histogram(accuracies, bins=bins, range=(0.0, 1.0))[0]


def counts_table(name: str, reader: ZooReader, rows: pd.DataFrame) -> Table:
    """Rows and runs of each split, and the share of checkpoints above each threshold of the paper."""
    table = Table(title=f"{name}: {len(rows):,} checkpoints of {len(set(rows['run_id'])):,} runs", title_justify="left")
    for heading in ("split", "rows", "runs", "mean accuracy", *(f"≥ {threshold:.0%}" for threshold in THRESHOLDS)):
        table.add_column(heading, justify="left" if heading == "split" else "right")
    splits = rows["run_id"].map(split_of)
    for split in (*SPLITS, "all"):
        part = rows if split == "all" else rows[splits == split]
        accuracy = part["test_accuracy"]
        shares = [f"{(accuracy >= threshold).mean():.1%}" if len(part) else "–" for threshold in THRESHOLDS]
        mean = f"{accuracy.mean():.4f}" if len(part) else "–"
        table.add_row(split, f"{len(part):,}", f"{len(set(part['run_id'])):,}", mean, *shares)
    statuses = reader.runs["status"].value_counts()
    table.caption = ", ".join(f"{count:,} runs {status}" for status, count in statuses.items())
    return table


def histogram_lines(counts: Integer[np.ndarray, " bins"]) -> list[str]:
    """The histogram as text; a bar's length is the logarithm of its count."""
    top = math.log10(1 + max(1, int(counts.max())))
    lines = []
    for index, count in enumerate(counts.tolist()):
        width = round(BAR_WIDTH * math.log10(1 + count) / top)
        lines.append(f"{index / len(counts):5.2f} {'█' * width or ('▏' if count else '')} {count:,}")
    return lines


def marginals_table(rows: pd.DataFrame) -> Table:
    """Number of checkpoints and their accuracy for each value of each hyperparameter."""
    table = Table(title="accuracy by hyperparameter", title_justify="left")
    for heading in ("hyperparameter", "value", "rows", "mean", "median", "min", "max"):
        table.add_column(heading, justify="left" if heading in ("hyperparameter", "value") else "right")
    for name in ("checkpoint", *(field.name for field in HYPERPARAMETERS)):
        groups = dict(iter(rows.groupby(name)["test_accuracy"]))
        if name == "seed" and len(groups) > len(THRESHOLDS):
            table.add_row(name, f"{len(groups):,} values", f"{len(rows):,}", "", "", "", "", end_section=True)
            continue
        order = [value for value in CHECKPOINTS if value in groups] if name == "checkpoint" else list(groups)
        for value in order:
            group = groups[value]
            numbers = (group.mean(), group.median(), group.min(), group.max())
            table.add_row(name, str(value), f"{len(group):,}", *(f"{number:.4f}" for number in numbers))
        table.add_section()
    return table


def save_png(accuracies: dict[str, np.ndarray], path: Path) -> None:
    """The paper's figure: one histogram per config, the count on a logarithmic axis."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError("a PNG needs matplotlib: pip install 'small-transformer-zoo[benchmarks]'") from error
    figure = Figure(figsize=(5 * len(accuracies), 3.5), layout="constrained")
    axes = figure.subplots(1, len(accuracies), squeeze=False)[0]
    for axis, (name, values) in zip(axes, accuracies.items(), strict=True):
        axis.hist(values, bins=BINS, range=(0, 1), log=True, color="#4878a8", edgecolor="white", linewidth=0.5)
        axis.set(
            title=f"{name}, {len(values):,} checkpoints", xlabel="test accuracy", ylabel="checkpoints", xlim=(0, 1)
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=150)


def parser() -> argparse.ArgumentParser:
    options = command_parser("zoo.describe", __doc__)
    options.add_argument("zoo", nargs="?", default=DEFAULT_NAME, metavar="DIR", help="folder (default: %(default)s)")
    options.add_argument("--config", metavar="CONFIG", help="only this config (default: all)")
    options.add_argument("--where", metavar="EXPRESSION", help="only these rows, e.g. \"checkpoint == 'epoch_75'\"")
    options.add_argument("--png", type=Path, metavar="FILE", help="also draw the histogram to this file")
    return options


@command
def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    folder = find_folder(options.zoo, options.config)
    configs = [options.config] if options.config else list(PublishedZoo.read(folder).configs)
    console = Console()
    accuracies = {}
    for config in configs:
        reader = open_zoo(folder, config, "all")
        rows = reader.metadata.iloc[reader.rows(options.where)]
        accuracies[config] = rows["test_accuracy"].to_numpy()
        console.print(counts_table(config, reader, rows))
        console.print("\ntest accuracy, bars on a logarithmic scale", highlight=False)
        for line in histogram_lines(histogram(accuracies[config])):
            console.print(line, markup=False, highlight=False)
        console.print()
        console.print(marginals_table(rows))
    if options.png:
        save_png(accuracies, options.png)
        console.print(f"histogram: {options.png}", highlight=False)


if __name__ == "__main__":
    main()
