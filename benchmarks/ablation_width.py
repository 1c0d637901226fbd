"""How wide and deep Transformer-NFN must be: one or two equivariant layers of 3, 5, 10 or 15 channels.

python -m benchmarks.ablation_width                            AG News, as in the paper
python -m benchmarks.ablation_width --widths 3 5,5 --config mnist --zoo DIR --device cuda

This is tab:ablation-hidden-dim. Writes OUT/ablation_width.jsonl and OUT/ablation_width.CONFIG.md; finished trials are
not computed again.
"""

from dataclasses import dataclass
from typing import Annotated

from benchmarks import paper
from benchmarks.options import TableOptions
from zoo.command import Command, Option


@dataclass(frozen=True, kw_only=True)
class _Options(TableOptions):
    usual_configs = ("agnews",)
    widths: Annotated[tuple[str, ...], Option("channels of each layer, such as 10 or 5,5", "W")] = tuple(
        ",".join(map(str, channels)) for channels in paper.WIDTHS
    )

    def __post_init__(self) -> None:
        self.channels()

    def channels(self) -> list[tuple[int, ...]]:
        return list(map(_parse_width, self.widths))


def _parse_width(text: str) -> tuple[int, ...]:
    """The channels of each layer: ``10`` or ``10,10``."""
    try:
        channels = tuple(int(part) for part in text.split(","))
    except ValueError:
        channels = ()
    if not channels or min(channels) < 1:
        raise ValueError(f"a width is the channels of each layer, such as 10 or 5,5, got {text!r}")
    return channels


_command = Command(__name__, "benchmarks.ablation_width", __doc__, _Options, lambda _: ("scipy",))

from benchmarks.experiment import Entry, Experiment, entries_of
from benchmarks.results import Result
from benchmarks.tables import MODEL
from nfn import TransformerNFN
from zoo import TransformerSpec


def _encoder_parameters(entry: Entry, spec: TransformerSpec) -> Result:
    """Counted as in the paper: the parameters of the part that reads the encoder, not of the whole predictor."""
    assert entry.trial.channels is not None
    part = TransformerNFN(spec, channels=entry.trial.channels).parts["encoder"]
    return entry.row("encoder_parameters", sum(parameter.numel() for parameter in part.parameters()))


@_command
def main(options: _Options) -> None:
    experiment = Experiment("ablation_width", options)
    for config in experiment.configs:
        data = experiment.data(config)
        trials = [experiment.trials(data, MODEL, channels=channels) for channels in options.channels()]
        entries = entries_of(experiment.run(trials, data))
        experiment.add([_encoder_parameters(entry, data.train.spec) for entry in entries])
        experiment.write(f"ablation_width.{config}.md", config)
    experiment.end()


if __name__ == "__main__":
    main()
