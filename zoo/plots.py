"""Pictures of a zoo: how its accuracies or losses are spread, how its runs learn, what each hyperparameter does, what
the heads of a language model look at."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float64

from zoo.checked import printable
from zoo.format.hyperparameters import OPTIMIZERS
from zoo.storage.atomic import write_atomically
from zoo.transformer.circuits import circuits
from zoo.transformer.weights import TransformerWeights

BINS = 20
_COLOR = "#4878a8"
_MOST_CURVES = 100  # per panel: more would be one gray patch
_MOST_TOKENS = 128  # of a picture of circuits
_ENDS = {"test_accuracy": {"ylim": (0, 1)}}


def new_figure(width: float, height: float) -> Any:
    """A figure without a window."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Any, path: Path) -> Path:
    """As PNG, whole or not at all, without the date and version that would change the file from run to run."""
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=120, metadata={"Software": None})
    write_atomically(path, picture.getvalue())
    return path


def span_of(values: pd.Series) -> tuple[float, float]:
    """The ends of an axis for a label, whose name the values have: accuracies lie in [0, 1], losses where they are."""
    if values.name == "test_accuracy" or not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def by_epoch(curves: pd.Series) -> Float64[np.ndarray, "epochs runs"]:
    """The curves of runs side by side, NaN after the end of those that diverged."""
    padded = np.array(list(zip_longest(*curves, fillvalue=np.nan)), dtype=np.float64)
    return padded.reshape(len(padded), len(curves))


def plot_histograms(panels: Mapping[str, pd.Series], path: Path, *, counted: str = "checkpoints") -> Path:
    """The paper's figure (fig:dataset_acc_hist): a panel for each title, the count on a logarithmic axis."""
    figure = new_figure(5.0 * len(panels), 3.5)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (title, values) in zip(axes, panels.items(), strict=True):
        span = span_of(values)
        axis.hist(values, bins=BINS, range=span, log=True, color=_COLOR, edgecolor="white", linewidth=0.5)
        axis.set(title=title, xlabel=str(values.name).replace("_", " "), ylabel=counted, xlim=span)
    return save(figure, path)


def plot_curves(name: str, runs: pd.DataFrame, label: str, path: Path) -> Path:
    """A label over the epochs, one panel per optimizer: some runs as thin lines, the median of all in bold."""
    optimizers = [optimizer for optimizer in OPTIMIZERS if optimizer in set(runs["optimizer"])]
    figure = new_figure(3.4 * len(optimizers), 3.4)
    axes = figure.subplots(1, len(optimizers), squeeze=False, sharey=True)[0]
    for axis, optimizer in zip(axes, optimizers, strict=True):
        group = runs[runs["optimizer"] == optimizer]
        curves = by_epoch(group[label])
        epochs, every = np.arange(1, len(curves) + 1), -(-len(group) // _MOST_CURVES)
        axis.plot(epochs, curves[:, ::every], color=_COLOR, linewidth=0.5, alpha=0.35)
        axis.plot(epochs, np.nanmedian(curves, axis=1), color="black", linewidth=2, label="median")
        axis.set(title=f"{optimizer}, {len(group):,} runs", xlabel="epoch", **_ENDS.get(label, {}))
    axes[0].set_ylabel(label.replace("_", " "))
    axes[-1].legend(loc="lower right" if label in _ENDS else "upper right", fontsize=8)
    figure.suptitle(name)
    return save(figure, path)


def plot_marginals(name: str, rows: pd.DataFrame, names: Sequence[str], label: str, path: Path) -> Path:
    """A label by some hyperparameters: the median, the middle half and the middle nine tenths of their checkpoints."""
    lines = min(2, len(names))
    figure = new_figure(10.5, 3.0 * lines)
    axes = figure.subplots(lines, -(-len(names) // lines), squeeze=False, sharey=True)
    for unused in axes.flat[len(names) :]:
        unused.remove()
    for axis, hyperparameter in zip(axes.flat, names, strict=False):
        # a dollar sign would begin a formula
        groups = {
            printable(value).replace("$", r"\$"): group[label].to_numpy()
            for value, group in rows.groupby(hyperparameter)
        }
        for column, values in enumerate(groups.values()):
            low, lower, middle, upper, high = np.quantile(values, [0.05, 0.25, 0.5, 0.75, 0.95])
            axis.vlines(column, low, high, color=_COLOR, linewidth=1)
            axis.vlines(column, lower, upper, color=_COLOR, linewidth=6)
            axis.plot(column, middle, marker="o", color="white", markeredgecolor="black", markersize=6, zorder=3)
        axis.set_xticks(range(len(groups)), list(groups), rotation=40, fontsize=7)
        axis.set(xlabel=hyperparameter, **_ENDS.get(label, {}))
    for axis in axes[:, 0]:
        axis.set_ylabel(label.replace("_", " "))
    figure.suptitle(f"{name}, {len(rows):,} checkpoints: median, middle 50% and middle 90%")
    return save(figure, path)


def plot_circuits(name: str, weights: TransformerWeights, characters: str | None, path: Path) -> Path:
    """One line per head: which token looks for which, which position for which, and what is then written.

    Red raises a score or a logit, blue lowers it. The last line has the paths without attention: from a token straight
    to the next one, and through the MLPs.
    """
    found, spec = circuits(weights), weights.spec
    count = min(spec.classes, _MOST_TOKENS)
    names = [repr(character)[1:-1] for character in characters or ""][:count]
    lines = spec.blocks * spec.heads
    figure = new_figure(16.5, 5.5 * (lines + 1))
    axes = figure.subplots(lines + 1, 3, squeeze=False)
    panels = []
    for number in range(lines):
        head = divmod(number, spec.heads)
        where = f"block {head[0]}, head {head[1]}"
        panels += [
            (f"{where}: a token (down) looks for a token", found.query_key[head], True),
            (f"{where}: a position (down) looks for a position", found.position_query_key[head].tril(), False),
            (f"{where}: a token that is attended to (down) writes", found.output_value[head], True),
        ]
    panels.append(("a token (down) writes directly", found.direct, True))
    ends = sorted({0, spec.blocks - 1})
    panels += [(f"a token (down) writes through MLP {block}", found.mlp[block], True) for block in ends]
    for unused in axes.flat[len(panels) :]:
        unused.remove()
    for axis, (title, matrix, of_tokens) in zip(axes.flat, panels, strict=False):
        shown = matrix[:count, :count].detach().cpu().numpy() if of_tokens else matrix.detach().cpu().numpy()
        end = float(np.abs(shown).max()) or 1.0
        axis.imshow(shown, cmap="RdBu_r", vmin=-end, vmax=end)
        axis.set_title(f"{title}, ±{end:.1f}", fontsize=8)
        if of_tokens and names:
            axis.set_xticks(range(len(names)), names, fontsize=5, family="monospace")
            axis.set_yticks(range(len(names)), names, fontsize=5, family="monospace")
    figure.suptitle(name)
    return save(figure, path)
