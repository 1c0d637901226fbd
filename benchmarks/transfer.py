"""Across zoos: predictors fitted on one config or checkpoint, tested on the test split of another.

python -m benchmarks.transfer                                  all configs of the zoo in this repository
python -m benchmarks.transfer --config mnist mnist-seeds --zoo DIR --device cuda --out results
python -m benchmarks.transfer --quick --models hyperparameters gauge_nfn
python -m benchmarks.transfer --tested-on configs              not on the other checkpoints of the same config

Every config is fitted on at one checkpoint (--checkpoint, by default the one nearest to 75 % of the epochs) and tested
on its own test split, on its other checkpoints, and on every other config of the same task and dimensions: mnist is
tested on mnist-seeds, and the reverse. Each predictor is fitted once for all of them.

Two configs may have the same configurations with other seeds, and these lie in different splits. A test run whose
configuration was fitted on is not new: its accuracy is nearly that of the run in the train split. So τ is given on the
test rows whose configuration is not in the train split, and beside it on all of them. Configurations of the validation
split stay in: it chooses the epoch or the number of trees, and nothing else. A run of the train split is never tested
on.

Writes OUT/transfer.jsonl and OUT/transfer.CONFIG.md; finished trials are not computed again.
"""

from collections.abc import Sequence

from benchmarks.data import BenchmarkData, Elsewhere
from benchmarks.experiment import Experiment, TableOptions, read_options, table_parser
from benchmarks.models.registry import USUAL_MODELS, known_models, own_models
from benchmarks.tables import render_table
from benchmarks.trial import Trial
from zoo.command import command
from zoo.format.published import PublishedZoo
from zoo.reading.locate import find_folder

_KINDS = ("checkpoints", "configs")


def _plan(options: TableOptions, data: BenchmarkData, others: Sequence[Elsewhere]) -> list[Trial]:
    """Every model by the recipe of its main column, tested on its own test split and on the others."""
    return [
        trial
        for model in options.models
        for other in (None, *others)
        for trial in options.trials("transfer", data, model, recipe=known_models()[model].recipe, elsewhere=other)
    ]


def _targets(
    zoo: PublishedZoo, config: str, fitted_at: str, configs: Sequence[str], kinds: Sequence[str] = _KINDS
) -> list[tuple[str, str]]:
    """Config and checkpoint of the other test splits: the config's own checkpoints, then configs that are alike."""
    details = zoo.config(config)
    alike = [
        name
        for name in configs
        if name != config and (zoo.config(name).task, zoo.config(name).spec) == (details.task, details.spec)
    ]
    found = {
        "checkpoints": [(config, label) for label in details.checkpoints if label != fitted_at],
        "configs": [
            (name, fitted_at if fitted_at in (*other.checkpoints, "all") else other.usual_checkpoint)
            for name, other in ((name, zoo.config(name)) for name in alike)
        ],
    }
    return [target for kind in _KINDS if kind in kinds for target in found[kind]]


@command
@own_models()
def main(arguments: list[str] | None = None) -> None:
    parser = table_parser("benchmarks.transfer", __doc__ or "", configs=(), models=USUAL_MODELS, thresholds=(0.0,))
    parser.add_argument(
        "--tested-on",
        nargs="+",
        default=list(_KINDS),
        choices=_KINDS,
        help="which other test splits predictors are tested on",
    )
    parsed = parser.parse_args(arguments)
    options = read_options(parsed)
    zoo = PublishedZoo.read(find_folder(options.zoo, *options.configs[:1]))
    configs = options.configs or tuple(zoo.configs)
    others = {
        config: _targets(
            zoo, config, options.checkpoint or zoo.config(config).usual_checkpoint, configs, parsed.tested_on
        )
        for config in configs
    }
    if not any(others.values()):
        reason = (
            "no other config alike" if parsed.tested_on == ["configs"] else "one checkpoint and no other config alike"
        )
        raise ValueError(f"{', '.join(configs)}: {reason}, so nothing to test on")
    experiment = Experiment(options, data_sets=len(configs))
    for config in configs:
        data = options.data(config)
        tested = [data.test_elsewhere(options.data(name, checkpoint=label)) for name, label in others[config]]
        experiment.run(_plan(options, data, [other for pair in tested for other in pair]), data)
        table = render_table("transfer", {config: experiment.index(config)})
        experiment.write(f"transfer.{config}.md", table, config)
    experiment.end()


if __name__ == "__main__":
    main()
