"""Computes the cells that are not finished yet: fit on train, choose on validation, be judged on test, be stored."""

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from benchmarks.data.benchmark_data import FEWEST_ROWS, BenchmarkData
from benchmarks.experiments.memory import measured_memory
from benchmarks.experiments.trial import Cell, Outcome
from benchmarks.experiments.trial_store import CellStore
from benchmarks.models.hyperparameters import FittedHyperparameters
from benchmarks.models.registry import CONTENDERS, builder
from benchmarks.models.schedule import EPOCHS, RECIPES
from benchmarks.models.training_group import ClassOfMembers, FittedPredictor, train_together
from benchmarks.models.trees import FittedTrees
from benchmarks.results import describe_device

Advance = Callable[[str, int], None]
"""Told what is being computed and how many cells that finished."""


@dataclass
class Finished:
    """All outcomes of a plan, and why some cells have none."""

    outcomes: dict[Cell, Outcome] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    """Model → why it cannot be computed here."""
    rows: dict[float, dict[str, int]] = field(default_factory=dict)
    """Threshold → rows of train and validation."""


def compute(cells: Sequence[Cell], data: BenchmarkData, store: CellStore, *, jobs: int, advance: Advance) -> Finished:
    """The outcomes of the cells, from the store where they are there."""
    finished = Finished(outcomes=store.find(list(cells)))
    advance("reading finished cells", len(finished.outcomes))
    finished.rows = {
        threshold: {
            "train_rows": len(data.train.at_least(threshold)),
            "validation_rows": len(data.validation.at_least(threshold)),
        }
        for threshold in dict.fromkeys(cell.threshold for cell in cells)
    }
    for group in groups([cell for cell in cells if cell not in finished.outcomes], data):
        first = group[0]
        advance(label(group), 0)
        missing = CONTENDERS[first.model].missing()
        if missing is not None:
            finished.skipped[first.model] = missing
        else:
            possible = [cell for cell in group if min(finished.rows[cell.threshold].values()) >= FEWEST_ROWS]
            outcomes = fit_and_judge(possible, data, jobs) if possible else {}
            store.add(outcomes)
            finished.outcomes |= outcomes
        advance(label(group), len(group))
    return finished


def groups(cells: Sequence[Cell], data: BenchmarkData) -> Iterator[list[Cell]]:
    """Cells that are fitted in one go.

    On a GPU all seeds and thresholds of a neural predictor train together. On a CPU nothing is won by that, and alone
    a cell's last digits do not depend on its company, so that a table begun twice ends the same. Trees of the same rows
    share what was prepared of them.
    """
    together: dict[tuple, list[Cell]] = {}
    for cell in cells:
        own: tuple = ()
        if CONTENDERS[cell.model].kind is None:
            own = (cell.threshold,)
        elif data.train.weights.device.type == "cpu":
            own = (cell.threshold, cell.seed)
        together.setdefault((cell.model, cell.recipe, cell.epochs, cell.components, cell.channels, own), []).append(
            cell
        )
    yield from together.values()


def label(group: Sequence[Cell]) -> str:
    thresholds = sorted({cell.threshold for cell in group})
    where = "" if thresholds == [0.0] else f" ≥ {', '.join(f'{threshold:.0%}' for threshold in thresholds)}"
    return f"{group[0].config}: {CONTENDERS[group[0].model].title}{where}"


def fit_and_judge(cells: Sequence[Cell], data: BenchmarkData, jobs: int) -> dict[Cell, Outcome]:
    """Fits the cells of one group, and only then, with every choice made, has each judged on test, once."""
    contender = CONTENDERS[cells[0].model]
    device = data.train.weights.device if contender.kind else torch.device("cpu")
    if contender.library is not None:
        importlib.import_module(contender.library)  # ahead of the clock
    with measured_memory(device) as memory:
        start = time.perf_counter()
        fitted = fit_neural(cells, data) if contender.kind else fit_other(cells, data, jobs)
        seconds = time.perf_counter() - start
    effort = {
        "wall_seconds": seconds / len(cells),
        "peak_memory_megabytes": memory.megabytes,
        "fitted_together": len(cells),
        "device": describe_device(device),
    }
    return {cell: judged(cell, one, data, effort) for cell, one in fitted.items()}


def fit_neural(cells: Sequence[Cell], data: BenchmarkData) -> dict[Cell, FittedPredictor]:
    first = cells[0]
    recipe = RECIPES[first.recipe]
    by_threshold = {
        threshold: [cell for cell in cells if cell.threshold == threshold]
        for threshold in dict.fromkeys(cell.threshold for cell in cells)
    }
    classes = [
        ClassOfMembers(
            data.train.at_least(threshold), data.validation.at_least(threshold), tuple(cell.seed for cell in own)
        )
        for threshold, own in by_threshold.items()
    ]
    fitted = train_together(
        builder(first.model, data.train.spec, first.channels, first.components),
        classes,
        data.train,
        data.validation,
        lambda: recipe.schedule(first.epochs or EPOCHS),
        scaled=recipe.scaled,
    )
    return {
        cell: one
        for own, found in zip(by_threshold.values(), fitted, strict=True)
        for cell, one in zip(own, found, strict=True)
    }


def fit_other(cells: Sequence[Cell], data: BenchmarkData, jobs: int) -> dict[Cell, FittedTrees | FittedHyperparameters]:
    """The cells of one model and threshold."""
    first = cells[0]
    fit = CONTENDERS[first.model].fit
    assert fit is not None
    train = data.train.take(data.train.at_least(first.threshold))
    validation = data.validation.take(data.validation.at_least(first.threshold))
    fitted = fit(train, validation, [cell.seed for cell in cells], jobs)
    return dict(zip(cells, fitted, strict=True))


def judged(
    cell: Cell,
    fitted: FittedPredictor | FittedTrees | FittedHyperparameters,
    data: BenchmarkData,
    effort: dict[str, float | str | None],
) -> Outcome:
    verdict = data.judge(fitted, cell.threshold)
    notes = {
        "validation_tau": fitted.validation_tau if np.isfinite(fitted.validation_tau) else None,
        "epoch": fitted.epoch,
        "epochs": fitted.epochs,
        "parameters": fitted.parameters,
        "mean_change": verdict.mean_change,
    }
    return Outcome(verdict.predicted, verdict.truth, verdict.runs, notes | effort)
