"""Which part of a transformer predicts its accuracy: Transformer-NFN on every choice of its components.

python -m benchmarks.ablation_components                       MNIST and AG News, on the zoo in this repository
python -m benchmarks.ablation_components --config mnist --zoo DIR --device cuda

This is tab:ablation-components. AG News transformers have no trainable embedding, so there are three choices instead of
seven. Writes OUT/ablation_components.jsonl and OUT/ablation_components.md; finished trials are not computed again.
"""

from itertools import combinations

from benchmarks.data import BenchmarkData
from benchmarks.experiment import Experiment, TableOptions, read_options, table_parser
from benchmarks.tables import MODEL, render_table
from benchmarks.trial import Trial
from zoo.command import command


def _plan(options: TableOptions, data: BenchmarkData) -> list[Trial]:
    """Transformer-NFN on every non-empty choice of the components that the spec has."""
    everything = tuple(data.train.spec.components)
    choices = [chosen for size in range(1, len(everything) + 1) for chosen in combinations(everything, size)]
    # with all components it is the predictor of the other tables, whose trials may be finished already
    return [
        trial
        for chosen in choices
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
        experiment.run(_plan(options, data), data)
    indexes = {config: experiment.index(config) for config in options.configs}
    experiment.write("ablation_components.md", render_table("ablation_components", indexes), *options.configs)
    experiment.end()


if __name__ == "__main__":
    main()
