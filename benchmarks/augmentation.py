"""How random group elements affect each predictor: every split doubled by moved copies of its checkpoints.

python -m benchmarks.augmentation                              AG News, as in the paper
python -m benchmarks.augmentation --ranges 1 100 --config mnist --zoo DIR --device cuda

This is tab:augmented_agnews. A moved checkpoint computes the same function; the M and N that move it have entries
uniform in ±1, ±10 or ±100. Train, validation and test are all doubled, with a different element for each checkpoint.
Writes OUT/augmentation.jsonl and OUT/augmentation.CONFIG.md; finished trials are not computed again.
"""

from dataclasses import dataclass
from typing import Annotated

from benchmarks.options import SIX_MODELS, Models, TableOptions
from zoo.checked import Positive
from zoo.command import Command, Option


@dataclass(frozen=True, kw_only=True)
class _Options(TableOptions):
    models: Models = SIX_MODELS
    ranges: Annotated[tuple[Positive, ...], Option("largest entry of M and N", "R")] = (1.0, 10.0, 100.0)


_command = Command(__name__, "benchmarks.augmentation", __doc__, _Options, lambda _: ("scipy",))

from benchmarks.experiment import Experiment
from benchmarks.models.registry import check_models, own_models


@_command
@own_models()
def main(options: _Options) -> None:
    experiment, models = Experiment("augmentation", options), check_models(options.models)
    for config in experiment.configs:
        for size in (None, *options.ranges):
            data = experiment.data(config, entry_range=size)
            experiment.run([experiment.trials(data, model, entry_range=size) for model in models], data)
        experiment.write(f"augmentation.{config}.md", config)
    experiment.end()
