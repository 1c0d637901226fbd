"""Which part of a transformer predicts its accuracy: Transformer-NFN on every choice of its components.

python -m benchmarks.ablation_components                       MNIST and AG News, on the zoo in this repository
python -m benchmarks.ablation_components --config mnist --zoo DIR --device cuda

This is tab:ablation-components. Writes OUT/ablation_components.jsonl and OUT/ablation_components.md; finished trials
are not computed again.
"""

from benchmarks.options import TableOptions
from zoo.command import Command

_command = Command(__name__, "benchmarks.ablation_components", __doc__, TableOptions, lambda _: ("scipy",))

from itertools import combinations

from benchmarks.experiment import Experiment
from benchmarks.tables import MODEL


@_command
def main(options: TableOptions) -> None:
    experiment = Experiment("ablation_components", options)
    for config in experiment.configs:
        data = experiment.data(config)
        everything = tuple(data.train.spec.components)
        parts = [chosen for size in range(1, len(everything)) for chosen in combinations(everything, size)]
        # with all components it is the predictor of the other tables, whose trials may be finished already
        experiment.run([experiment.trials(data, MODEL, components=chosen) for chosen in (*parts, None)], data)
    experiment.write("ablation_components.md", *experiment.configs)
    experiment.end()
