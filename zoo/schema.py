"""The columns of the zoo: one row a checkpoint, and one row a run."""

import pyarrow as pa

from zoo.spec import TransformerSpec

SCHEMA_VERSION = 1
CHECKPOINTS = ("epoch_50", "epoch_75", "epoch_100", "best")
OPTIMIZERS = ("sgd", "sgd_momentum", "adam", "rmsprop")
STATUSES = ("completed", "diverged")

HYPERPARAMETERS = (
    pa.field("optimizer", pa.string(), nullable=False),
    pa.field("learning_rate", pa.float64(), nullable=False),
    pa.field("weight_decay", pa.float64(), nullable=False),
    pa.field("init_std", pa.float64(), nullable=False),
    pa.field("dropout", pa.float64(), nullable=False),
    pa.field("train_fraction", pa.float64(), nullable=False),
    pa.field("seed", pa.int64(), nullable=False),
)


def checkpoint_schema(spec: TransformerSpec) -> pa.Schema:
    """A checkpoint: its run, its measurements, its hyperparameters, its weights as a flat vector of d float32."""
    weights = pa.list_(pa.field("item", pa.float32(), nullable=False), spec.num_parameters)
    return pa.schema(
        [
            pa.field("run_id", pa.string(), nullable=False),
            pa.field("task", pa.string(), nullable=False),
            pa.field("checkpoint", pa.string(), nullable=False),
            pa.field("epoch", pa.int32(), nullable=False),
            pa.field("test_accuracy", pa.float32(), nullable=False),
            pa.field("test_loss", pa.float32(), nullable=False),
            pa.field("train_loss", pa.float32(), nullable=False),
            *HYPERPARAMETERS,
            pa.field("weights", weights, nullable=False),
        ]
    )


CURVE = pa.list_(pa.field("item", pa.float32(), nullable=False))

RUN_SCHEMA = pa.schema(
    [
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("task", pa.string(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        *HYPERPARAMETERS,
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("epochs", pa.int32(), nullable=False),
        pa.field("best_epoch", pa.int32(), nullable=False),
        pa.field("test_accuracy", CURVE, nullable=False),
        pa.field("test_loss", CURVE, nullable=False),
        pa.field("train_loss", CURVE, nullable=False),
        pa.field("code_version", pa.string(), nullable=False),
    ]
)
"""A run as its shard writes it: the curves hold one value an epoch, the last where it diverged."""
