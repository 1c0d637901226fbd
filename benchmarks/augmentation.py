"""How random group elements affect each predictor: every split doubled by moved copies of its checkpoints.

python -m benchmarks.augmentation                              AG News, as in the paper
python -m benchmarks.augmentation --ranges 1 100 --config mnist --zoo DIR --device cuda

This is tab:augmented_agnews. A moved checkpoint computes the same function; the M and N that move it have entries
uniform in ±1, ±10 or ±100. Train, validation and test are all doubled, with a different element for each checkpoint.
Writes OUT/augmentation.jsonl and OUT/augmentation.CONFIG.md; finished trials are not computed again.
"""

from benchmarks import paper
from benchmarks.experiment import Experiment, read_options, table_parser
from benchmarks.models.registry import SIX_MODELS, own_models
from benchmarks.tables import render_table
from zoo.command import command


@command
@own_models()
def main(arguments: list[str] | None = None) -> None:
    parser = table_parser(
        "benchmarks.augmentation", __doc__ or "", configs=("agnews",), models=SIX_MODELS, thresholds=(0.0,)
    )
    parser.add_argument(
        "--ranges", nargs="+", type=float, metavar="R", help="largest entry of M and N (default: 1 10 100)"
    )
    parsed = parser.parse_args(arguments)
    options = read_options(parsed)
    ranges = (None, *(parsed.ranges or paper.RANGES[1:]))
    if any(size is not None and not size > 0 for size in ranges):
        raise ValueError(f"--ranges must be positive numbers, got {' '.join(f'{size:g}' for size in parsed.ranges)}")
    experiment = Experiment(options, data_sets=len(options.configs) * len(ranges))
    for config in options.configs:
        for size in ranges:
            data = options.data(config, entry_range=size)
            trials = [
                trial
                for model in options.models
                for trial in options.trials("augmentation", data, model, entry_range=size)
            ]
            experiment.run(trials, data)
        experiment.write(
            f"augmentation.{config}.md", render_table("augmentation", {config: experiment.index(config)}), config
        )
    experiment.end()


if __name__ == "__main__":
    main()
