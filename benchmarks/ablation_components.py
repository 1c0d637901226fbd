"""Which part of a transformer tells its accuracy: Transformer-NFN on every choice of its components.

python -m benchmarks.ablation_components                       every config of the zoo in this repository
python -m benchmarks.ablation_components --config mnist --zoo DIR --device cuda

tab:ablation-components. AG News transformers have no trainable embedding, hence three choices instead of seven. Writes
OUT/ablation_components.jsonl and OUT/ablation_components.md; finished cells are not computed again.
"""

from itertools import combinations

from benchmarks.data.benchmark_data import BenchmarkData
from benchmarks.experiments.experiment import Campaign
from benchmarks.experiments.options import TableOptions, read_options, table_parser
from benchmarks.experiments.trial import Cell
from benchmarks.tables.ablation import MODEL, components_table
from benchmarks.tables.result_index import Book
from zoo import TransformerSpec
from zoo.command import command


def choices(spec: TransformerSpec) -> list[tuple[str, ...]]:
    """Every non-empty choice of the components that the spec has."""
    names = tuple(spec.components)
    return [chosen for size in range(1, len(names) + 1) for chosen in combinations(names, size)]


def plan(options: TableOptions, data: BenchmarkData) -> list[Cell]:
    everything = tuple(data.train.spec.components)
    return [
        cell
        for chosen in choices(data.train.spec)
        # all of them is the predictor of every other table, and so perhaps trained already
        for cell in options.cells(
            "ablation_components", data, MODEL, components=None if chosen == everything else chosen
        )
    ]


@command
def main(arguments: list[str] | None = None) -> None:
    parser = table_parser(
        "benchmarks.ablation_components",
        __doc__ or "",
        configs=("mnist", "agnews"),
        models=(MODEL,),
        thresholds=(0.0,),
    )
    options = read_options(parser.parse_args(arguments))
    campaign = Campaign(options)
    books = {}
    for config in options.configs:
        data = options.data(config)
        _, rows = campaign.run(plan(options, data), data)
        books[config] = Book.latest(rows, config, options.where)
    campaign.write("ablation_components.md", components_table(books))
    campaign.end()


if __name__ == "__main__":
    main()
