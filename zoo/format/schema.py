"""The columns of the zoo: one row per checkpoint, and one row per run.

No column ever holds a null, and ``zoo.verify`` checks it; yet none is declared non-nullable, because ``datasets`` only
has nullable ones and would cast every batch on its way through: 27 k checkpoints/s streamed instead of 45 k.
"""

from typing import get_args

import numpy as np
import pyarrow as pa
from jaxtyping import Float32

from zoo.format.hyperparameters import LATER, TYPES
from zoo.transformer.spec import TransformerSpec

SCHEMA_VERSION = 1
WEIGHTS = "weights"
BEST = "best"
CHECKPOINTS = ("epoch_50", "epoch_75", "epoch_100", BEST)
"""The paper's checkpoints: after 50, 75 and 100 % of the epochs, and at the highest test accuracy."""
CHECKPOINT = rf"(epoch_[1-9][0-9]{{0,4}}|{BEST})"
"""The names that any task's checkpoints may have."""
STATUSES = ("completed", "diverged")
LANGUAGE_LABELS = ("early_loss", "late_loss", "bigram_divergence", "induction_loss")
"""Measured with the checkpoints of language models: ``zoo.tasks.language``."""
MEASURED = ("test_accuracy", "test_loss", "train_loss")
"""What is measured of every checkpoint, and after every epoch of a run."""
GAP = "gap"
"""A label that is not a column: test_loss − train_loss."""
_ARROW_TYPES = {float: pa.float64(), int: pa.int64()}
_HYPERPARAMETERS = [pa.field(name, _ARROW_TYPES.get(get_args(kind)[0], pa.string())) for name, kind in TYPES.items()]


def labels_of(spec: TransformerSpec) -> tuple[str, ...]:
    """What is measured of these checkpoints."""
    return MEASURED + (LANGUAGE_LABELS if spec.causal else ())


def usual_label(spec: TransformerSpec) -> tuple[str, bool]:
    """The label that ranks checkpoints, and whether more of it is better: accuracy, or the loss of language models."""
    return ("test_loss", False) if spec.causal else ("test_accuracy", True)


def direction_of(label: str) -> int:
    """1 where more of a label is better, −1 where less is: all but accuracy are losses or distances."""
    return 1 if label == "test_accuracy" else -1


def checkpoint_schema(spec: TransformerSpec) -> pa.Schema:
    """A checkpoint: its run, its measurements, its hyperparameters, its weights as a flat vector of d float32."""
    weights = pa.list_(pa.float32(), spec.num_parameters)
    return pa.schema(
        [
            pa.field("run_id", pa.string()),
            pa.field("task", pa.string()),
            pa.field("checkpoint", pa.string()),
            pa.field("epoch", pa.int32()),
            *(pa.field(name, pa.float32()) for name in labels_of(spec)),
            *_HYPERPARAMETERS,
            pa.field(WEIGHTS, weights),
        ]
    )


def with_weights(metadata: pa.Table, weights: Float32[np.ndarray, "n d"]) -> pa.Table:
    """Checkpoints as a table: every other column, then the weights, without a copy of them."""
    column = pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(weights).reshape(-1)), weights.shape[1])
    return metadata.append_column(WEIGHTS, column)


CURVES = tuple(pa.field(name, pa.list_(pa.float32())) for name in MEASURED)

RUN_SCHEMA = pa.schema(
    [
        pa.field("run_id", pa.string()),
        pa.field("task", pa.string()),
        pa.field("status", pa.string()),
        *_HYPERPARAMETERS,
        pa.field("shard", pa.int32()),
        pa.field("epochs", pa.int32()),
        pa.field("best_epoch", pa.int32()),
        *CURVES,
        pa.field("code_version", pa.string()),
    ]
)
"""A run as its shard writes it: the curves hold one value per epoch, up to the one in which it diverged."""

PUBLISHED_RUN_SCHEMA = RUN_SCHEMA.append(pa.field("wall_seconds", pa.float64()))
"""A run as the published zoo holds it: with its share of the seconds its shard took."""


def stored_schema(schema: pa.Schema, runs: pa.Table) -> pa.Schema:
    """Without the later hyperparameters that have their defaults in all of these runs; reading fills them in.

    So a zoo that does not use them keeps its bytes.
    """
    unused = [name for name, default in LATER.items() if set(runs.column(name).to_pylist()) <= {default}]
    return pa.schema([field for field in schema if field.name not in unused])
