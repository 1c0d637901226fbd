"""The picture of the front page: τ of every predictor with its interval, one panel per zoo.

Filled circles read weights and hollow ones do not, so the picture needs no color.
"""

from collections.abc import Mapping
from pathlib import Path

from benchmarks.models.registry import MODELS, SIX_MODELS
from benchmarks.tables.headline import HEADLINE_MODELS, NO_THRESHOLD
from benchmarks.tables.result_index import ResultIndex
from zoo.plots import new_figure, save

INK, LIGHT = "#1f3a5f", "#b8b8b8"


def headline_plot(zoos: Mapping[str, ResultIndex], path: Path) -> Path:
    """Title of a zoo → its rows."""
    figure = new_figure(9.5, 3.2)
    panels = figure.subplots(1, len(zoos), squeeze=False, sharex=True, sharey=True)[0]
    for panel, (title, index) in zip(panels, zoos.items(), strict=True):
        for place, name in enumerate(HEADLINE_MODELS):
            tau, interval = index.value("tau", name, **NO_THRESHOLD), index.interval("tau", name, **NO_THRESHOLD)
            if tau is None:
                continue
            if interval is not None:
                panel.hlines(place, *interval, color=INK, linewidth=1.5, zorder=1)
            reads_weights = name in SIX_MODELS
            face = INK if reads_weights else "white"
            panel.plot(tau, place, marker="o", markersize=7, color=INK, markerfacecolor=face, zorder=2)
            panel.annotate(
                f"{tau:.3f}",
                (tau, place),
                (0, 6),
                textcoords="offset points",
                ha="center",
                fontsize=8,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
            )
            if not reads_weights:
                panel.axvline(tau, color=LIGHT, linewidth=1, linestyle="--", zorder=0)
        panel.set_title(title, fontsize=10)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(len(HEADLINE_MODELS)), [MODELS[name].title for name in HEADLINE_MODELS])
    panels[0].set_ylim(len(HEADLINE_MODELS) - 0.4, -0.8)
    figure.supxlabel("Kendall's τ between predicted and true test accuracy, 95% interval over test runs", fontsize=9)
    return save(figure, path)
