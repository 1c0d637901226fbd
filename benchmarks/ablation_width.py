"""How wide and deep Transformer-NFN must be: one or two equivariant layers of 3, 5, 10 or 15 channels.

python -m benchmarks.ablation_width                            AG News, as in the paper
python -m benchmarks.ablation_width --widths 3 5,5 --config mnist --zoo DIR --device cuda

This is tab:ablation-hidden-dim. Writes OUT/ablation_width.jsonl and OUT/ablation_width.CONFIG.md; finished trials are
not computed again.
"""

import re
from dataclasses import dataclass
from typing import Annotated

from benchmarks import paper
from benchmarks.options import TableOptions
from zoo.command import Command, Option


@dataclass(frozen=True, kw_only=True)
class _Options(TableOptions):
    widths: Annotated[tuple[str, ...], Option("channels of each layer, such as 10 or 5,5", "W")] = tuple(
        ",".join(map(str, channels)) for channels in paper.WIDTHS
    )

    def __post_init__(self) -> None:
        for text in self.widths:
            if not re.fullmatch(r" *[1-9]\d*(, *[1-9]\d*)*", text):
                raise ValueError(f"a width is the channels of each layer, such as 10 or 5,5, got {text!r}")


_command = Command(__name__, "benchmarks.ablation_width", __doc__, _Options, lambda _: ("scipy",))

from benchmarks.experiment import Experiment, entries_of
from benchmarks.tables import MODEL
from nfn import TransformerNFN


@_command
def main(options: _Options) -> None:
    experiment = Experiment("ablation_width", options)
    for config in experiment.configs:
        data = experiment.data(config)
        widths = [tuple(map(int, text.split(","))) for text in options.widths]
        trials = [experiment.trials(data, MODEL, channels=channels) for channels in widths]
        for entry in entries_of(experiment.run(trials, data)):
            # as in the paper, only of the part that reads the encoder
            part = TransformerNFN(data.train.spec, channels=entry.trial.channels or ()).parts["encoder"]
            counts = [parameter.numel() for parameter in part.parameters()]
            experiment.add(entry.rows("encoder_parameters", [sum(counts)]))
        experiment.write(f"ablation_width.{config}.md", config)
    experiment.end()
