"""Which part of a transformer predicts its accuracy: Transformer-NFN on every choice of its components.

python -m benchmarks.ablation_components                       MNIST and AG News, on the zoo in this repository
python -m benchmarks.ablation_components --config mnist --zoo DIR --device cuda

This is tab:ablation-components. AG News transformers have no trainable embedding, so there are three choices instead of
seven. Writes OUT/ablation_components.jsonl and OUT/ablation_components.md; finished trials are not computed again.
"""

from itertools import combinations

from benchmarks.data.benchmark_data import BenchmarkData
from benchmarks.experiments.experiment import Experiment
from benchmarks.experiments.options import TableOptions, read_options, table_parser
from benchmarks.experiments.trial import Trial
from benchmarks.tables.ablation import MODEL, components_table
from zoo import TransformerSpec
from zoo.command import command


def choices(spec: TransformerSpec) -> list[tuple[str, ...]]:
    """Every non-empty choice of the components that the spec has."""
    names = tuple(spec.components)
    return [chosen for size in range(1, len(names) + 1) for chosen in combinations(names, size)]


def plan(options: TableOptions, data: BenchmarkData) -> list[Trial]:
    everything = tuple(data.train.spec.components)
    return [
        trial
        for chosen in choices(data.train.spec)
        # with all components it is the predictor of the other tables, whose trials may be finished already
        for trial in options.trials(
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
    experiment = Experiment(options, data_sets=len(options.configs))
    for config in options.configs:
        data = options.data(config)
        experiment.run(plan(options, data), data)
    indexes = {config: experiment.index(config) for config in options.configs}
    experiment.write("ablation_components.md", components_table(indexes), *options.configs)
    experiment.end()


if __name__ == "__main__":
    main()
