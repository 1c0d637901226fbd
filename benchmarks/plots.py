"""The plots of the tables: predicted against true accuracy (fig:vis_agnews), τ by threshold, by rows and by zoo."""

import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from benchmarks import paper
from benchmarks.data import Outcome
from benchmarks.models.registry import MODELS, known_models, weight_models
from benchmarks.results import ResultIndex, Value
from benchmarks.statistics import kendall_tau
from benchmarks.tables import curve_of, end_of_curves, headline_models, main_setting, sizes_of, tau_of_paper
from benchmarks.trial import Trial, TrialStore
from zoo.format.schema import direction_of
from zoo.plots import new_figure, save

_COLORS = (
    *("#4878a8", "#6aa56e", "#b0803a", "#c2b03d", "#8c6d9e", "#7f7f7f", "#5aa9a3", "#d98cb3", "#c0504d", "#2f2f2f"),
    *("#acb82e", "#9b2eb8", "#2eb873", "#b84a2e", "#2e3ab8", "#62b82e", "#b82e8a", "#2eb2b8", "#b8952e", "#6d2eb8"),
    *("#2eb844", "#b82e3f", "#2e68b8", "#90b82e", "#b72eb8", "#2eb88f", "#b8672e", "#3f2eb8", "#45b82e", "#b82e6e"),
)
_INK, _LIGHT = "#1f3a5f", "#b8b8b8"
_BEYOND = 1.01  # where the stretched axis would be infinite
_ACCURACY_TICKS = (0.1, 0.5, 0.8, 0.9, 0.95, 1.0)
_TITLE_WIDTH = 34  # letters above a panel
_CLOSE = 1.3  # times the number of training rows of the label before


def _stretched(accuracy: np.ndarray) -> np.ndarray:
    """−log₁₀(1.01 − a): most runs of a zoo lie above 0.9, and on a straight axis in one corner."""
    return -np.log10(np.clip(_BEYOND - accuracy, 1e-3, None))


def first_predictions(index: ResultIndex, folder: Path) -> dict[str, Outcome]:
    """The outcome of each model with its first seed at the lowest threshold, from the finished trials."""
    store = TrialStore(folder)
    rows = {name: index.find("tau", name, **main_setting(name, index.thresholds[0])) for name in known_models()}
    trials = {name: Trial.of_row(row, seed=0) for name, row in rows.items() if row is not None}
    found = store.find(list(trials.values()))
    return {name: found[trial] for name, trial in trials.items() if trial in found}


def scatter(outcomes: Mapping[str, Outcome], title: str, path: Path, label: str = "test_accuracy") -> Path:
    """Predicted against true accuracies, or another label, one panel per model."""
    columns = min(4, len(outcomes))
    lines = math.ceil(len(outcomes) / columns)
    figure = new_figure(2.7 * columns, 2.9 * lines)
    models = known_models()
    colors = {name: _COLORS[number % len(_COLORS)] for number, name in enumerate(models)}
    accuracies = label == "test_accuracy"
    scaled = _stretched if accuracies else lambda goodness: direction_of(label) * goodness
    values = np.concatenate([scaled(side) for each in outcomes.values() for side in (each.truth, each.predicted)])
    ends = _stretched(np.array([0.0, 1.0])) if accuracies else np.array([values.min(), values.max()])
    for place, (name, outcome) in enumerate(outcomes.items(), start=1):
        panel = figure.add_subplot(lines, columns, place)
        panel.plot(ends, ends, color="#bbbbbb", linewidth=1, zorder=0)
        truth, predicted = scaled(outcome.truth), scaled(outcome.predicted)
        panel.scatter(truth, predicted, s=6, alpha=0.6, color=colors[name], linewidths=0)
        for axis in (panel.xaxis, panel.yaxis) if accuracies else ():
            axis.set_ticks(_stretched(np.array(_ACCURACY_TICKS)), [f"{tick:g}" for tick in _ACCURACY_TICKS], fontsize=7)
        tau = kendall_tau(outcome.predicted, outcome.truth, outcome.folds)
        panel.set_title(fill(f"{models[name].title}, τ {tau:.3f}", _TITLE_WIDTH), fontsize=9)
        panel.set(xlabel=label.replace("_", " "), ylabel="predicted", xlim=ends, ylim=ends, aspect="equal")
    figure.suptitle(title)
    return save(figure, path)


def tau_by_threshold(index: ResultIndex, config: str, path: Path) -> Path:
    """τ of every model over the thresholds, with bootstrap intervals; the values of the paper as hollow circles."""
    figure = new_figure(8.5, 4.2)
    axis = figure.subplots()
    for number, name in enumerate(known_models()):
        color, shift = _COLORS[number % len(_COLORS)], (number - len(MODELS) / 2) * 0.4
        settings = {100 * threshold + shift: main_setting(name, threshold) for threshold in index.thresholds}
        if _points(axis, index, name, color, settings, "o-"):
            printed = paper.KENDALL.get(config, {}).get(name, {}) if index.whole else {}
            _hollow(axis, color, {100 * threshold + shift: tau for threshold, (tau, _) in printed.items()})
    title = f"{config}: filled ours, hollow the paper's" if index.whole else index.title(config)
    return _save_taus(figure, axis, path, title=title, xlabel="accuracy threshold, %")


def tau_by_rows(index: ResultIndex, config: str, path: Path) -> Path:
    """τ of every model over the training rows, with bootstrap intervals and the curve through them (dashed).

    A bar at the end of a curve is the interval of its τ there, a hollow circle the paper's τ.
    """
    figure = new_figure(8.5, 4.2)
    axis = figure.subplots()
    sizes, end = sizes_of(index), end_of_curves(index)
    for number, (name, model) in enumerate(known_models().items()):
        color, shift = _COLORS[number % len(_COLORS)], 1.015 ** (number - len(MODELS) / 2)
        settings = {count * shift: {"recipe": model.recipe, "rows": size} for size, count in sizes.items()}
        drawn = _points(axis, index, name, color, settings, "o")
        curve = curve_of(index, name, end) if drawn and end is not None else None
        if end is None or curve is None:
            continue
        limit, scale, exponent = curve
        along = np.geomspace(drawn[0], end * shift)
        axis.plot(along, limit - scale * along**-exponent, "--", linewidth=1, color=color)
        if interval := index.interval("tau_extrapolated", name, rows=end):
            axis.vlines(end * shift, *interval, color=color, linewidth=2, alpha=0.4)
        if printed := tau_of_paper(index, config, name, end):
            _hollow(axis, color, {end * shift: printed[0]}, size=5)
    axis.set_xscale("log")
    ticks = [*sizes.values(), *([] if end is None else [end])]
    # a label close to the one before it goes a line lower
    lowered = [False, *(after < _CLOSE * before for before, after in pairwise(ticks))]
    axis.set_xticks(ticks, ["\n" * low + f"{tick:,}" for tick, low in zip(ticks, lowered, strict=True)], fontsize=8)
    axis.minorticks_off()
    title = f"{index.title(config)}: dashed, the curve through ours" + ("; hollow, the paper's" if index.whole else "")
    return _save_taus(figure, axis, path, title=title, xlabel="training rows")


def _points(
    axis: Any, index: ResultIndex, name: str, color: str, settings: Mapping[float, Mapping[str, Value]], style: str
) -> list[float]:
    """Draws τ of a model with its bootstrap intervals, from x → setting of the row, and returns the x that have one."""
    taus = {x: index.value("tau", name, **setting) for x, setting in settings.items()}
    drawn = {x: tau for x, tau in taus.items() if tau is not None}
    if drawn:
        axis.plot(list(drawn), list(drawn.values()), style, markersize=4, color=color, label=known_models()[name].title)
    for x in drawn:
        if interval := index.interval("tau", name, **settings[x]):
            axis.vlines(x, *interval, color=color, linewidth=1, alpha=0.6)
    return list(drawn)


def _save_taus(figure: Any, axis: Any, path: Path, **texts: str) -> Path:
    axis.set(ylabel="Kendall's τ", **texts)
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return save(figure, path)


def _hollow(axis: Any, color: str, taus: Mapping[float, float], size: int = 4) -> None:
    """Draws numbers of the paper: x → τ."""
    axis.plot(list(taus), list(taus.values()), "o", markersize=size, markerfacecolor="none", markeredgecolor=color)


def headline_plot(zoos: Mapping[str, ResultIndex], path: Path) -> Path:
    """The picture of the front page: τ of every predictor with its interval, one panel per zoo (title → rows).

    Filled circles read weights and hollow ones do not, so the picture needs no color.
    """
    names = headline_models(zoos)
    figure = new_figure(10.5, 1.0 + 0.3 * len(names))
    panels = figure.subplots(1, len(zoos), squeeze=False, sharex=True, sharey=True)[0]
    for panel, (title, index) in zip(panels, zoos.items(), strict=True):
        for place, name in enumerate(names):
            setting = main_setting(name)
            tau, interval = index.value("tau", name, **setting), index.interval("tau", name, **setting)
            if tau is None:
                continue
            if interval is not None:
                panel.hlines(place, *interval, color=_INK, linewidth=1.5, zorder=1)
            reads_weights = name in weight_models()
            face = _INK if reads_weights else "white"
            panel.plot(tau, place, marker="o", markersize=7, color=_INK, markerfacecolor=face, zorder=2)
            style = {"textcoords": "offset points", "ha": "center", "fontsize": 8}
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
            panel.annotate(f"{tau:.3f}", (tau, place), (0, 6), bbox=box, **style)
            if not reads_weights:
                panel.axvline(tau, color=_LIGHT, linewidth=1, linestyle="--", zorder=0)
        panel.set_title(title.replace(", ", ",\n"), fontsize=10)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(len(names)), [known_models()[name].title for name in names])
    panels[0].set_ylim(len(names) - 0.4, -0.8)
    figure.supxlabel("Kendall's τ between the predicted and the true order of the test runs, 95% interval", fontsize=9)
    return save(figure, path)
