"""The options that all table commands share, and the constants they need. Nothing here takes long to import."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from zoo.checked import Count
from zoo.command import DEFAULT_NAME, Device, Option, ZooName

EPOCHS = 50
SIX_MODELS = ("mlp", "statnn", "xgboost", "lightgbm", "random_forest", "transformer_nfn")  # the paper's
USUAL_MODELS = (
    *("mlp", "statnn", "xgboost", "lightgbm", "random_forest", "hyperparameters", "raw_moments"),
    *("transformer_nfn", "gauge_nfn", "gauge_nfn_hyperparameters"),
)
"""The models that a table fits where none is named; the others take hours without a GPU or answer other questions."""
Reads = Literal["weights", "hyperparameters", "probes", "real_inputs"]
"""What a predictor may read of a run, in the words of a submission's card."""
Configs = Annotated[
    tuple[str, ...] | None,
    Option("configs of the zoo (default: its only one, else those of the paper's table, or mnist)", "CONFIG"),
]
Models = Annotated[tuple[str, ...], Option("which to fit; module:Class is a predictor of your own", "MODEL")]
Size = Annotated[int, Meta(ge=2)]
"""A number of rows; of fewer, a split has no pair to rank."""
Sizes = Annotated[tuple[Size, ...], Option("numbers of training rows besides all", "N")]
Epochs = Annotated[Count, Option("epochs of neural predictors")]
Clone = Annotated[Path | None, Option("a clone of the repository (default: this one, or the current folder)", "DIR")]
Rows = Annotated[Path | None, Option("folder of the rows (default: benchmarks/results of a clone, or results)", "DIR")]
Checkpoint = Annotated[str | None, Option("one of the config's, or all (default: at 75 %% of the epochs)", "LABEL")]
Jobs = Annotated[Count | None, Option("threads of the tree models (default: as many as torch uses)")]


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """The data and device of a table, how often and how long to fit, and where the table is written."""

    zoo: ZooName = DEFAULT_NAME
    config: Configs = None
    seeds: Annotated[Count, Option("seeds per model")] = 5
    epochs: Epochs = EPOCHS
    checkpoint: Checkpoint = None
    label: Annotated[
        str | None,
        Option(
            "what to rank by: test_accuracy, test_loss, train_loss, gap (test minus train loss), or another label of "
            "language models (default: test_accuracy, test_loss of language models)"
        ),
    ] = None
    label_checkpoint: Annotated[
        str | None,
        Option("take the label of each run from this checkpoint: a forecast (default: that of the weights)", "LABEL"),
    ] = None
    where: Annotated[str | None, Option('only these rows of each split, e.g. "dropout > 0"', "EXPRESSION")] = None
    device: Device = "auto"
    jobs: Jobs = None
    out: Annotated[Path, Option("folder to write to", "DIR")] = Path("results")
    quick: Annotated[bool, Option("one seed, the first threshold, only the paper's recipe")] = False
