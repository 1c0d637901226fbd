"""Across zoos: predictors fitted on one config or checkpoint, tested on the test split of another.

python -m benchmarks.transfer                                  all configs of the zoo in this repository
python -m benchmarks.transfer --config mnist mnist-seeds --zoo DIR --device cuda --out results
python -m benchmarks.transfer --tested-on configs              not on the other checkpoints of the same config

Every config is fitted on at one checkpoint and tested on its own test split, on its other checkpoints (but for those
that few runs of a thinned zoo have), and on every other config of the same task and dimensions, without the runs it was
fitted on: once on the rows whose configuration is not in the train split, and once on all. Writes OUT/transfer.jsonl
and OUT/transfer.CONFIG.md; finished trials are not computed again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from benchmarks.options import USUAL_MODELS, Models, TableOptions
from zoo.command import Command, Option

_Kind = Literal["checkpoints", "configs"]
_KINDS: tuple[_Kind, ...] = get_args(_Kind)


@dataclass(frozen=True, kw_only=True)
class _Options(TableOptions):
    config: Annotated[tuple[str, ...] | None, Option("configs of the zoo (default: all)", "CONFIG")] = None
    models: Models = USUAL_MODELS
    tested_on: Annotated[tuple[_Kind, ...], Option("which other test splits predictors are tested on")] = _KINDS


_command = Command(__name__, "benchmarks.transfer", __doc__, _Options, lambda _: ("scipy",))

from benchmarks.experiment import Experiment
from benchmarks.models.registry import check_models, own_models
from zoo.format.published import PublishedZoo
from zoo.reading.locate import find_folder
from zoo.reading.reader import open_zoo


def _targets(
    zoo: PublishedZoo, config: str, fitted_at: str, configs: Sequence[str], kinds: Sequence[str] = _KINDS
) -> list[tuple[str, str]]:
    """Config and checkpoint of the other test splits: the config's own checkpoints, then configs that are alike."""
    details, targets = zoo.config(config), []
    if "checkpoints" in kinds:
        counts = open_zoo(zoo.folder, config, "all").metadata["checkpoint"].value_counts()
        common = (label for label in details.checkpoints if 2 * counts.get(label, 0) > counts.max())
        targets += [(config, label) for label in common if label != fitted_at]
    for name in configs if "configs" in kinds else ():
        other = zoo.config(name)
        if name != config and (other.task, other.spec) == (details.task, details.spec):
            targets.append((name, fitted_at if fitted_at in (*other.checkpoints, "all") else other.usual_checkpoint))
    return targets


@_command
@own_models()
def main(options: _Options) -> None:
    experiment, models = Experiment("transfer", options), check_models(options.models)
    zoo = PublishedZoo.read(find_folder(options.zoo, *(options.config or ())[:1]))
    configs, others = options.config or tuple(zoo.configs), {}
    for config in configs:
        fitted_at = options.checkpoint or zoo.config(config).usual_checkpoint
        others[config] = _targets(zoo, config, fitted_at, configs, options.tested_on)
    if not any(others.values()):
        only = "" if options.tested_on == ("configs",) else "one checkpoint and "
        raise ValueError(f"{', '.join(configs)}: {only}no other config alike, so nothing to test on")
    for config in configs:
        data = experiment.data(config)
        tested = [data.test_elsewhere(experiment.data(name, checkpoint=label)) for name, label in others[config]]
        trials = [
            experiment.trials(data, model, elsewhere=other)
            for model in models
            for other in (None, *(other for pair in tested for other in pair))
        ]
        experiment.run(trials, data)
        experiment.write(f"transfer.{config}.md", config)
    experiment.end()
