"""A trained population as the two tables of a shard: its checkpoints and its runs."""

from collections.abc import Iterator
from dataclasses import fields

import numpy as np
import pyarrow as pa
from torch import Tensor

from generation.population.state import checkpoint_labels
from generation.population.trainer import CheckpointMeasures, PopulationTrainer
from generation.protocol import RunConfig
from zoo.format.schema import BEST, RUN_SCHEMA, checkpoint_schema, with_weights
from zoo.version import VERSION


def shard_tables(trainer: PopulationTrainer, shard: int) -> tuple[Iterator[pa.Table], pa.Table]:
    """The checkpoints, some rows at a time, since their weights may be many; and the runs."""
    return checkpoint_tables(trainer, trainer.measure_checkpoints()), runs_table(trainer, shard)


def checkpoint_tables(trainer: PopulationTrainer, measures: CheckpointMeasures) -> Iterator[pa.Table]:
    """The checkpoints of each completed run, run by run."""
    state, labels = trainer.state, checkpoint_labels(trainer.configs[0])
    metadata_fields = list(checkpoint_schema(trainer.task.spec))[:-1]
    alive = state.alive.cpu()
    measured = {field.name: getattr(measures, field.name).T.tolist() for field in fields(measures)}
    for run, config in enumerate(trainer.configs):
        if not alive[run]:
            continue
        columns = {
            "run_id": [config.run_id] * len(labels),
            "task": [config.task] * len(labels),
            "checkpoint": list(labels),
            "epoch": [checkpoint_epoch(label, config, int(state.best_epoch[run])) for label in labels],
            **{name: values[run] for name, values in measured.items()},
            **{name: [value] * len(labels) for name, value in config.hyperparameters().items()},
        }
        arrays = [pa.array(columns[field.name]).cast(field.type) for field in metadata_fields]
        weights = state.checkpoints[:, run].cpu().numpy().astype(np.float32)
        yield with_weights(pa.table(arrays, schema=pa.schema(metadata_fields)), weights)


def checkpoint_epoch(label: str, config: RunConfig, best_epoch: int) -> int:
    return best_epoch if label == BEST else config.protocol.checkpoints[label]


def runs_table(trainer: PopulationTrainer, shard: int) -> pa.Table:
    """One row per run; the curves of a diverged run end where it diverged."""
    configs, state = trainer.configs, trainer.state
    # a run is measured up to and with the epoch it diverged in; losses may be NaN in that last one, accuracy never is
    lengths = (~state.test_accuracy.isnan()).sum(dim=1).tolist()

    def curves(values: Tensor) -> list[list[float]]:
        return [row[:length].tolist() for row, length in zip(values.cpu(), lengths, strict=True)]

    columns = {
        "run_id": [config.run_id for config in configs],
        "task": [config.task for config in configs],
        "status": ["completed" if alive else "diverged" for alive in state.alive.tolist()],
        **{name: [config.hyperparameters()[name] for config in configs] for name in configs[0].hyperparameters()},
        "shard": [shard] * len(configs),
        "epochs": [config.protocol.epochs for config in configs],
        "best_epoch": state.best_epoch.tolist(),
        "test_accuracy": curves(state.test_accuracy),
        "test_loss": curves(state.test_loss),
        "train_loss": curves(state.train_loss),
        "code_version": [VERSION] * len(configs),
    }
    return pa.table([pa.array(columns[field.name], field.type) for field in RUN_SCHEMA], schema=RUN_SCHEMA)
