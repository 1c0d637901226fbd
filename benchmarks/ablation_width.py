"""How wide and deep Transformer-NFN must be: one or two equivariant layers of 3, 5, 10 or 15 channels.

python -m benchmarks.ablation_width                            AG News, as in the paper
python -m benchmarks.ablation_width --widths 3 5,5 --config mnist --zoo DIR --device cuda

This is tab:ablation-hidden-dim. Writes OUT/ablation_width.jsonl and OUT/ablation_width.CONFIG.md; finished trials are
not computed again.
"""

from benchmarks import paper
from benchmarks.experiment import Experiment, read_options, table_parser
from benchmarks.results import Result
from benchmarks.summary import Entry, entries_of
from benchmarks.tables import MODEL, render_table
from nfn import TransformerNFN
from zoo import TransformerSpec
from zoo.command import command


def _parse_width(text: str) -> tuple[int, ...]:
    """The channels of each layer: ``10`` or ``10,10``."""
    try:
        channels = tuple(int(part) for part in text.split(","))
    except ValueError:
        channels = ()
    if not channels or min(channels) < 1:
        raise ValueError(f"a width is the channels of each layer, such as 10 or 5,5, got {text!r}")
    return channels


def _encoder_parameters(entry: Entry, spec: TransformerSpec) -> Result:
    """Counted as in the paper: the parameters of the part that reads the encoder, not of the whole predictor."""
    assert entry.trial.channels is not None
    part = TransformerNFN(spec, channels=entry.trial.channels).parts["encoder"]
    return entry.row("encoder_parameters", sum(parameter.numel() for parameter in part.parameters()))


@command
def main(arguments: list[str] | None = None) -> None:
    parser = table_parser(
        "benchmarks.ablation_width", __doc__ or "", configs=("agnews",), models=(MODEL,), thresholds=(0.0,)
    )
    parser.add_argument(
        "--widths",
        nargs="+",
        metavar="W",
        help="channels of each layer, such as 10 or 5,5 (default: the paper's eight)",
    )
    parsed = parser.parse_args(arguments)
    options = read_options(parsed)
    widths = [_parse_width(text) for text in parsed.widths] if parsed.widths else list(paper.WIDTHS)
    experiment = Experiment(options, data_sets=len(options.configs))
    for config in options.configs:
        data = options.data(config)
        trials = [trial for width in widths for trial in options.trials("ablation_width", data, MODEL, channels=width)]
        entries = entries_of(experiment.run(trials, data).outcomes)
        experiment.add([_encoder_parameters(entry, data.train.spec) for entry in entries])
        experiment.write(
            f"ablation_width.{config}.md", render_table("ablation_width", {config: experiment.index(config)}), config
        )
    experiment.end()


if __name__ == "__main__":
    main()
