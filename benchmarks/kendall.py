"""The paper's main tables: Kendall's τ of every predictor at every accuracy threshold, one table per task.

python -m benchmarks.kendall                                   MNIST, on the zoo in this repository
python -m benchmarks.kendall --quick                           one seed, no threshold
python -m benchmarks.kendall --config mnist agnews --zoo DIR --device cuda --out results
python -m benchmarks.kendall --models transformer_nfn mlp --thresholds none 80 --seeds 3
python -m benchmarks.kendall --models mlp my_module:MyPredictor    a predictor of your own (benchmarks/README.md)

Fits on train, chooses on validation, tests once. Finished trials are kept in OUT/cells and not computed again. Writes
OUT/kendall.jsonl, OUT/kendall.CONFIG.md and three plots; each --where has its own files. A model whose library is
missing, or that predicts NaN or infinity, is left out; the exit code is then 3.
"""

import numpy as np

from benchmarks import paper
from benchmarks.data import BenchmarkData
from benchmarks.execution import Finished
from benchmarks.experiment import Experiment, TableOptions, read_options, table_parser
from benchmarks.models.registry import USUAL_MODELS, known_models, own_models
from benchmarks.models.training import COLUMN_RECIPES
from benchmarks.plots import scatter, tau_by_threshold
from benchmarks.tables import render_table
from benchmarks.trial import Trial
from zoo.command import command
from zoo.plots import plot_histograms


def _recipes_of(options: TableOptions, model: str, threshold: float) -> list[str]:
    """How a model is trained at a threshold. Only in the first column are neural predictors also trained by recipes
    other than the paper's.

    A model with a recipe of its own is trained by that instead of the paper's, and by no other.
    """
    benchmark_model = known_models()[model]
    own = benchmark_model.recipe
    others_too = threshold == options.thresholds[0] and benchmark_model.neural and own == "paper"
    recipes = [recipe for recipe in options.recipes if recipe == "paper" or others_too]
    recipes = [recipe for recipe in recipes if recipe != "scaled" or benchmark_model.scalable]
    return [own if recipe == "paper" else recipe for recipe in recipes]


def _plan(options: TableOptions, data: BenchmarkData) -> list[Trial]:
    """All trials."""
    return [
        trial
        for model in options.models
        for threshold in options.thresholds
        for recipe in _recipes_of(options, model, threshold)
        for trial in options.trials("kendall", data, model, threshold=threshold, recipe=recipe)
    ]


def _require_trials(options: TableOptions) -> None:
    """A named model that the chosen recipes never train is a ValueError; the usual models are not named."""
    idle = [model for model in options.models if not _recipes_of(options, model, options.thresholds[0])]
    if idle and options.models != USUAL_MODELS:
        raise ValueError(
            f"--recipes {' '.join(options.recipes)} trains no {' or '.join(idle)}: "
            "add paper, which stands for a model's own way"
        )


def _draw(experiment: Experiment, finished: Finished, data: BenchmarkData) -> None:
    """Draws the plots; the scatter plot is of the first seed."""
    file, config = experiment.options.file, data.config
    first = experiment.options.thresholds[0]
    shown = {
        name: (outcome.predicted, outcome.truth)
        for name, benchmark_model in known_models().items()
        for trial, outcome in finished.outcomes.items()
        if (trial.model, trial.seed, trial.recipe, trial.threshold) == (name, 0, benchmark_model.recipe, first)
        and len(outcome.truth)
    }
    if shown:
        experiment.announce(scatter(shown, f"{config}, test split", file(f"kendall.{config}.scatter.png")))
        experiment.announce(
            tau_by_threshold(experiment.index(config), config, file(f"kendall.{config}.thresholds.png"))
        )
    # only of the splits that may be seen
    accuracy = np.concatenate([data.train.truth(), data.validation.truth()])
    title = f"{config}, {data.checkpoint}, train and validation: {len(accuracy):,} checkpoints"
    experiment.announce(plot_histograms({title: accuracy}, file(f"kendall.{config}.accuracy.png")))


@command
@own_models()
def main(arguments: list[str] | None = None) -> None:
    parser = table_parser(
        "benchmarks.kendall", __doc__ or "", configs=("mnist",), models=USUAL_MODELS, thresholds=paper.THRESHOLDS
    )
    parser.add_argument(
        "--recipes",
        nargs="+",
        default=list(COLUMN_RECIPES),
        choices=COLUMN_RECIPES,
        help="how neural predictors train: paper, a fixed number of epochs; converged, until validation stops "
        "improving; scaled, like paper, on weights brought to unit size; place, like paper, to predict an accuracy's "
        "rank among the training accuracies",
    )
    options = read_options(parser.parse_args(arguments))
    _require_trials(options)
    experiment = Experiment(options, data_sets=len(options.configs))
    for config in options.configs:
        data = options.data(config)
        finished = experiment.run(_plan(options, data), data)
        experiment.write(f"kendall.{config}.md", render_table("kendall", {config: experiment.index(config)}), config)
        _draw(experiment, finished, data)
    experiment.end()


if __name__ == "__main__":
    main()
