"""The plots: predicted against true accuracy, τ by threshold, the accuracies of the data (fig:vis_agnews,
fig:dataset_acc_hist)."""

import math
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models.registry import MODELS
from benchmarks.tables import paper
from benchmarks.tables.result_index import ResultIndex, thresholds_of
from zoo.storage.atomic import write_atomically

COLORS = ("#4878a8", "#6aa56e", "#b0803a", "#c2b03d", "#8c6d9e", "#7f7f7f", "#c0504d")
BINS = 20


def new_figure(width: float, height: float) -> Any:
    """A figure without a window; without matplotlib, an error in one line."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError("plots need matplotlib: pip install 'small-transformer-zoo[benchmarks]'") from error
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Any, path: Path) -> Path:
    """Writes a PNG, without the software version, which would change the file from machine to machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=120, metadata={"Software": None})
    write_atomically(path, picture.getvalue())
    return path


def scatter(predictions: Mapping[str, tuple[np.ndarray, np.ndarray]], title: str, path: Path) -> Path:
    """Predicted against true accuracy on the test split, one panel per model: name → (predicted, truth)."""
    columns = min(4, len(predictions))
    lines = math.ceil(len(predictions) / columns)
    figure = new_figure(2.6 * columns, 2.8 * lines)
    panels = list(figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).flat)
    colors = dict(zip(MODELS, COLORS, strict=True))
    for panel, (name, (predicted, truth)) in zip(panels, predictions.items(), strict=False):
        panel.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=1, zorder=0)
        panel.scatter(truth, predicted, s=6, alpha=0.6, color=colors[name], linewidths=0)
        panel.set(title=MODELS[name].title, xlim=(0, 1), ylim=(0, 1), aspect="equal")
    for panel in panels[len(predictions) :]:
        panel.set_visible(False)
    figure.suptitle(title)
    figure.supxlabel("test accuracy")
    figure.supylabel("predicted")
    return save(figure, path)


def tau_by_threshold(index: ResultIndex, config: str, path: Path) -> Path:
    """τ of every model over the thresholds, with bootstrap intervals; the values of the paper as hollow circles."""
    figure = new_figure(7, 4.2)
    axis = figure.subplots()
    thresholds = thresholds_of(index)
    for number, ((name, benchmark_model), color) in enumerate(zip(MODELS.items(), COLORS, strict=True)):
        shift = (number - len(MODELS) / 2) * 0.4
        points = [(t, index.value("tau", name, threshold=t, recipe="paper")) for t in thresholds]
        known = [(100 * t + shift, tau) for t, tau in points if tau is not None]
        if not known:
            continue
        axis.plot(*zip(*known, strict=True), marker="o", markersize=4, color=color, label=benchmark_model.title)
        for t in thresholds:
            interval = index.interval("tau", name, threshold=t, recipe="paper")
            if interval is not None:
                axis.vlines(100 * t + shift, *interval, color=color, linewidth=1, alpha=0.6)
        printed = paper.KENDALL.get(config, {}).get(name, {}) if index.whole else {}
        axis.plot(
            [100 * t + shift for t in printed],
            [tau for tau, _ in printed.values()],
            linestyle="",
            marker="o",
            markersize=4,
            markerfacecolor="none",
            markeredgecolor=color,
        )
    title = f"{config}: filled ours, hollow the paper's" if index.whole else index.title(config)
    axis.set(title=title, xlabel="accuracy threshold, %", ylabel="Kendall's τ")
    axis.legend(fontsize=7)
    return save(figure, path)


def accuracy_histogram(accuracy: np.ndarray, title: str, path: Path, *, counted: str = "checkpoints") -> Path:
    """A histogram with a logarithmic axis for the counts."""
    figure = new_figure(5, 3.5)
    axis = figure.subplots()
    axis.hist(accuracy, bins=BINS, range=(0, 1), log=True, color=COLORS[0], edgecolor="white", linewidth=0.5)
    axis.set(title=title, xlabel="test accuracy", ylabel=counted, xlim=(0, 1))
    return save(figure, path)
