"""The paper's main tables: Kendall's τ of every predictor at every accuracy threshold, one table a task.

python -m benchmarks.kendall                                   MNIST, on the zoo in this repository
python -m benchmarks.kendall --quick                           one seed, no threshold
python -m benchmarks.kendall --config mnist agnews --zoo DIR --device cuda --out results
python -m benchmarks.kendall --models transformer_nfn mlp --thresholds none 80 --seeds 3

Fits on train, chooses on validation, tests once. Finished cells lie in OUT/cells and are not computed again. Writes
OUT/kendall.jsonl, OUT/kendall.CONFIG.md and three plots (of some rows, by --where, under names of their own). A model
whose library is missing is left out: exit code 3.
"""

import numpy as np

from benchmarks.data.benchmark_data import BenchmarkData
from benchmarks.experiments.execution import Finished
from benchmarks.experiments.experiment import Campaign
from benchmarks.experiments.options import TableOptions, read_options, table_parser
from benchmarks.experiments.trial import Cell
from benchmarks.models.registry import CONTENDERS, NEURAL
from benchmarks.models.schedule import RECIPES
from benchmarks.plots import accuracy_histogram, scatter, tau_by_threshold
from benchmarks.tables import paper
from benchmarks.tables.kendall import kendall_tables
from benchmarks.tables.result_index import Book
from zoo.command import command


def plan(options: TableOptions, data: BenchmarkData) -> list[Cell]:
    """All cells. The first column alone has neural predictors trained by other recipes than the paper's."""
    cells = []
    for model in options.models:
        for threshold in options.thresholds:
            first = threshold == options.thresholds[0]
            recipes = [recipe for recipe in options.recipes if recipe == "paper" or (first and model in NEURAL)]
            for recipe in recipes:
                cells += options.cells("kendall", data, model, threshold=threshold, recipe=recipe)
    return cells


def draw(campaign: Campaign, finished: Finished, book: Book, data: BenchmarkData) -> None:
    """The plots, of the first seed where there are several."""
    file, config = campaign.options.file, data.config
    first = campaign.options.thresholds[0]
    shown = {
        name: (outcome.predicted, outcome.truth)
        for name in CONTENDERS
        for cell, outcome in finished.outcomes.items()
        if (cell.model, cell.seed, cell.recipe, cell.threshold) == (name, 0, "paper", first) and len(outcome.truth)
    }
    if shown:
        campaign.announce(scatter(shown, f"{config}, test split", file(f"kendall.{config}.scatter.png")))
        campaign.announce(tau_by_threshold(book, config, file(f"kendall.{config}.thresholds.png")))
    # of the splits that lie open; the test split's is of the same kind
    accuracy = np.concatenate([data.train.truth(), data.validation.truth()])
    title = f"{config}, {campaign.options.checkpoint}, train and validation: {len(accuracy):,} checkpoints"
    campaign.announce(accuracy_histogram(accuracy, title, file(f"kendall.{config}.accuracy.png")))


@command
def main(arguments: list[str] | None = None) -> None:
    parser = table_parser(
        "benchmarks.kendall", __doc__ or "", configs=("mnist",), models=tuple(CONTENDERS), thresholds=paper.THRESHOLDS
    )
    parser.add_argument(
        "--recipes",
        nargs="+",
        default=list(RECIPES),
        choices=list(RECIPES),
        help="how neural predictors train (default: all)",
    )
    options = read_options(parser.parse_args(arguments))
    campaign = Campaign(options)
    for config in options.configs:
        data = options.data(config)
        finished, rows = campaign.run(plan(options, data), data)
        book = Book.latest(rows, config, options.where)
        campaign.write(f"kendall.{config}.md", kendall_tables(book, config))
        draw(campaign, finished, book, data)
    campaign.end()


if __name__ == "__main__":
    main()
