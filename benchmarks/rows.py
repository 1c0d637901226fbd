"""Rows: τ of every predictor against the number of training rows, and the curve towards the paper's.

python -m benchmarks.rows                                      MNIST, on the zoo in this repository
python -m benchmarks.rows --config mnist agnews --zoo DIR --device cuda --out results
python -m benchmarks.rows --sizes 100 200 400 --models mlp hyperparameters --quick

Fits every predictor on 250, 500, 1,000, 2,000 and all rows of the train split. The rows are taken in the order of their
runs' hashes, so a smaller part lies in every larger one; validation and test stay whole, so that nothing else changes.
Sizes that the train split does not have are left out. To the means a curve is fitted, τ(n) = τ∞ − a·n^(−b), and
continued to --towards rows with the interval of a bootstrap; it needs three sizes.

Writes OUT/rows.jsonl, OUT/rows.CONFIG.md and OUT/rows.CONFIG.png; finished trials are not computed again, and those on
all rows are the trials of benchmarks.kendall.
"""

from benchmarks.data.benchmark_data import MIN_ROWS, BenchmarkData
from benchmarks.experiments.experiment import Experiment
from benchmarks.experiments.extrapolation import curve_rows
from benchmarks.experiments.options import TableOptions, read_options, table_parser
from benchmarks.experiments.trial import Outcome, Trial
from benchmarks.models.registry import USUAL_MODELS, known_models, own_models
from benchmarks.plots import tau_by_rows
from benchmarks.tables import paper
from benchmarks.tables.generalization import ROWS_NOTE, rows_table
from zoo.command import command

SIZES = (250, 500, 1000, 2000)


def plan(options: TableOptions, data: BenchmarkData, size: int | None) -> list[Trial]:
    """Every model by the recipe of its main column."""
    return [
        trial
        for model in options.models
        for trial in options.trials("rows", data, model, recipe=known_models()[model].recipe, rows=size)
    ]


@command
@own_models()
def main(arguments: list[str] | None = None) -> None:
    parser = table_parser("benchmarks.rows", __doc__ or "", configs=("mnist",), models=USUAL_MODELS, thresholds=(0.0,))
    parser.add_argument(
        "--sizes", nargs="+", type=int, default=list(SIZES), metavar="N", help="numbers of training rows besides all"
    )
    parser.add_argument(
        "--towards", type=int, default=paper.TRAIN_ROWS, metavar="N", help="number of rows that the curve goes on to"
    )
    parsed = parser.parse_args(arguments)
    options = read_options(parsed)
    if min(*parsed.sizes, parsed.towards) < MIN_ROWS:
        given = " ".join(map(str, (*parsed.sizes, parsed.towards)))
        raise ValueError(f"--sizes and --towards must be at least {MIN_ROWS} rows, got {given}")
    experiment = Experiment(options, data_sets=len(options.configs))
    for config in options.configs:
        data = options.data(config)
        outcomes: dict[Trial, Outcome] = {}
        smaller = [size for size in sorted(set(parsed.sizes)) if size < len(data.train)]
        experiment.data_sets += len(smaller)
        for size in (*smaller, None):
            part = data if size is None else data.with_train_rows(size)
            outcomes |= experiment.run(plan(options, part, size), part).outcomes
        experiment.add(curve_rows(outcomes, len(data.train), parsed.towards))
        index = experiment.index(config)
        experiment.write(f"rows.{config}.md", f"{rows_table(index, config)}\n\n{ROWS_NOTE}", config)
        if index:
            experiment.announce(tau_by_rows(index, config, options.file(f"rows.{config}.png")))
    experiment.end()


if __name__ == "__main__":
    main()
