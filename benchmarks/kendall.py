"""The paper's main tables: Kendall's τ of every predictor at every accuracy threshold, one table per task.

python -m benchmarks.kendall                                   MNIST, on the zoo in this repository
python -m benchmarks.kendall --quick                           one seed, no threshold
python -m benchmarks.kendall --config mnist agnews --zoo DIR --device cuda --out results
python -m benchmarks.kendall --models mlp my_module:MyPredictor    a predictor of your own (benchmarks/README.md)
python -m benchmarks.kendall --zoo DIR --checkpoint epoch_50 --label-checkpoint epoch_100    a forecast
python -m benchmarks.kendall --zoo DIR --folds 5               a small zoo: every run is tested once

Finished trials are kept in OUT/cells and not computed again. Writes OUT/kendall.jsonl, OUT/kendall.CONFIG.md and plots;
--where, --folds and other labels have files of their own. A model that predicts NaN or infinity is left out, and so is
one that was not named and whose library is missing; the exit code is then 3.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, get_args

from msgspec import Meta

from benchmarks import paper
from benchmarks.options import USUAL_MODELS, Models, TableOptions
from zoo.command import Command, Option

_Recipe = Literal["paper", "converged", "scaled", "place"]
_Folds = Annotated[int, Meta(ge=3)]  # to test on, to choose on, to fit on


@dataclass(frozen=True, kw_only=True)
class _Options(TableOptions):
    models: Models = USUAL_MODELS
    thresholds: Annotated[tuple[str, ...], Option("least accuracy of the rows: none, or percentages", "T")] = tuple(
        f"{100 * threshold:g}" if threshold else "none" for threshold in paper.THRESHOLDS
    )
    recipes: Annotated[
        tuple[_Recipe, ...],
        Option(
            "how neural predictors train: paper, a fixed number of epochs; converged, until validation stops "
            "improving; scaled, like paper, on weights brought to unit size; place, like paper, to predict an "
            "accuracy's rank among the training accuracies"
        ),
    ] = get_args(_Recipe)
    folds: Annotated[_Folds | None, Option("cross-validation in N parts (default: the zoo's own splits)", "N")] = None
    split: Annotated[str | None, Option("rows of a cross-validation, such as train+validation (default: all)")] = None

    def __post_init__(self) -> None:
        self.least_accuracies()
        if self.split and not self.folds:
            raise ValueError(f"--split {self.split} chooses the rows of a cross-validation: add --folds")

    def least_accuracies(self) -> list[float]:
        """The thresholds as numbers, each once."""
        return list(dict.fromkeys(map(_parse_threshold, self.thresholds)))


def _parse_threshold(text: str) -> float:
    """``none`` or a percentage."""
    try:
        percent = 0.0 if text == "none" else float(text.rstrip("%"))
    except ValueError:
        percent = -1.0
    if not 0 <= percent < 100:
        raise ValueError(f"a threshold is none or a percentage of at least 0 and below 100, got {text!r}")
    return percent / 100


_command = Command(__name__, "benchmarks.kendall", __doc__, _Options, lambda _: ("matplotlib", "scipy"))

import numpy as np
import pandas as pd

from benchmarks.data import BenchmarkData
from benchmarks.experiment import Experiment
from benchmarks.models.registry import check_models, known_models, own_models
from benchmarks.plots import scatter, tau_by_threshold
from benchmarks.trial import Outcomes, Trial
from zoo.format.schema import direction_of
from zoo.plots import plot_histograms


def _thresholds(options: _Options, label: str) -> list[float]:
    """Those of accuracies. Other labels have none: then only the whole set is ranked."""
    if label == "test_accuracy":
        return options.least_accuracies()
    if options.thresholds != _Options.thresholds and any(options.least_accuracies()):
        raise ValueError(f"--thresholds are accuracies, and these runs are ranked by {label}: write --thresholds none")
    return [0.0]


def _recipes_of(options: _Options, model: str, threshold: float, label: str) -> list[str]:
    """How a model is trained at a threshold. Only in the first column are neural predictors also trained by recipes
    other than the paper's.

    A model with a recipe of its own is trained by that instead of the paper's, and by no other. The rank is the target
    for a loss anyway.
    """
    known = known_models()[model]
    others = threshold == _thresholds(options, label)[0] and known.neural and known.recipe == "paper"
    trained = {"paper": True, "converged": others, "scaled": others and known.scalable}
    trained |= {"place": others and label == "test_accuracy"}
    return [known.recipe if recipe == "paper" else recipe for recipe in options.recipes if trained[recipe]]


def _entries(experiment: Experiment, options: _Options, data: BenchmarkData) -> Iterator[Sequence[Trial]]:
    """The trials of every model, threshold and recipe.

    A named model that the chosen recipes never train is a ValueError; the usual models are not named.
    """
    label = data.train.label
    thresholds = _thresholds(options, label)
    idle = [model for model in options.models if not _recipes_of(options, model, thresholds[0], label)]
    if idle and options.models != USUAL_MODELS:
        raise ValueError(
            f"--recipes {' '.join(options.recipes)} trains no {' or '.join(idle)}: "
            "add paper, which stands for a model's own way"
        )
    forecasts = [
        name
        for name, model in known_models().items()
        if data.label_checkpoint and "label" in model.reads and {*options.models, "current_label"} >= set(model.parts)
    ]
    for model in dict.fromkeys((*options.models, *forecasts)):
        for threshold in thresholds:
            for recipe in _recipes_of(options, model, threshold, label):
                yield experiment.trials(data, model, threshold=threshold, recipe=recipe)


def _draw(experiment: Experiment, outcomes: Outcomes, parts: Sequence[BenchmarkData]) -> None:
    """Draws the plots; the scatter plot is of the first seed at the first threshold."""
    file, config, index = experiment.file, parts[0].config, experiment.index(parts[0].config)
    first, label = index.thresholds[0], parts[0].train.label
    found = {(trial.model, trial.recipe, trial.seed, trial.threshold): outcomes[trial] for trial in outcomes}
    keys = {name: (name, model.recipe, 0, first) for name, model in known_models().items()}
    if shown := {name: found[key] for name, key in keys.items() if key in found}:
        tested = "test split" if len(parts) == 1 else f"{len(parts)} folds"
        experiment.announce(scatter(shown, f"{config}, {tested}", file(f"kendall.{config}.scatter.png"), label))
    if len(index.thresholds) > 1:
        experiment.announce(tau_by_threshold(index, config, file(f"kendall.{config}.thresholds.png")))
    # only of the splits that may be seen; in a cross-validation every run is in one fold to choose on
    seen = [parts[0].train] * (len(parts) == 1) + [part.validation for part in parts]
    measured = pd.Series(direction_of(label) * np.concatenate([rows.truth() for rows in seen]), name=label)
    which = "train and validation" if len(parts) == 1 else "all folds"
    title = f"{config}, {parts[0].checkpoint}, {which}: {len(measured):,} checkpoints"
    name = f"kendall.{config}.{label.removeprefix('test_')}.png"
    experiment.announce(plot_histograms({title: measured}, file(name)))


@_command
@own_models()
def main(options: _Options) -> None:
    experiment = Experiment("kendall", options)
    options = replace(options, models=check_models(options.models))
    if options.quick:
        options = replace(options, thresholds=options.thresholds[:1], recipes=("paper",))
    for config in experiment.configs:
        parts = experiment.parts(config)
        outcomes = experiment.run(_entries(experiment, options, parts[0]), *parts)
        experiment.write(f"kendall.{config}.md", config)
        _draw(experiment, outcomes, parts)
    experiment.end()
