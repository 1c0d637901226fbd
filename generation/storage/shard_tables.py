"""A finished shard on disk: checkpoints, runs, timing and, last, the manifest."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from torch import Tensor

from generation.population.state import PopulationState, snapshot_labels
from generation.population.trainer import SnapshotMeasures
from generation.protocol import BEST, RunConfig
from zoo.format.manifest import MANIFEST_FILE, FileEntry, Manifest
from zoo.format.schema import RUN_SCHEMA, checkpoint_schema
from zoo.format.table_file import write_table
from zoo.storage.atomic import write_atomically
from zoo.version import VERSION

CHECKPOINTS_FILE, RUNS_FILE, TIMING_FILE = "checkpoints.arrow", "runs.arrow", "timing.json"


def shard_folder(out: Path, config_name: str, shard: int) -> Path:
    return out / config_name / f"shard-{shard:05d}"


def finished_details(folder: Path) -> dict[str, Any] | None:
    """What a finished shard says of itself; None where the shard is not finished. A file too short is an error."""
    if not (folder / MANIFEST_FILE).exists():
        return None
    manifest = Manifest.read(folder)
    for name in manifest.files:
        manifest.check_size(folder, name)
    return manifest.details


def write_shard(
    folder: Path,
    shard: int,
    configs: Sequence[RunConfig],
    state: PopulationState,
    measures: SnapshotMeasures,
    details: dict[str, Any],
    timing: Callable[[], dict[str, Any]],
) -> None:
    """Writes the shard: the same runs, the same bytes, but for ``timing.json``, which the manifest does not name.

    ``timing`` is asked when the tables are written, so that their writing can be part of it.
    """
    spec = configs[0].spec
    files: dict[str, FileEntry] = {
        CHECKPOINTS_FILE: write_table(
            folder / CHECKPOINTS_FILE, checkpoint_schema(spec), checkpoint_tables(configs, state, measures)
        ),
        RUNS_FILE: write_table(folder / RUNS_FILE, RUN_SCHEMA, [runs_table(shard, configs, state)]),
    }
    write_atomically(folder / TIMING_FILE, json.dumps(timing(), indent=2).encode() + b"\n")
    Manifest(files, details).write(folder)


def checkpoint_tables(
    configs: Sequence[RunConfig], state: PopulationState, measures: SnapshotMeasures
) -> Iterator[pa.Table]:
    """The checkpoints of each completed run, run by run."""
    spec, labels = configs[0].spec, snapshot_labels(configs[0])
    schema = checkpoint_schema(spec)
    alive = state.alive.cpu()
    measured = {field.name: getattr(measures, field.name).T.tolist() for field in fields(measures)}
    for run, config in enumerate(configs):
        if not alive[run]:
            continue
        epochs = [checkpoint_epoch(label, config, int(state.best_epoch[run])) for label in labels]
        weights = state.snapshots[:, run].cpu().numpy().astype(np.float32).ravel()
        columns = {
            "run_id": [config.run_id] * len(labels),
            "task": [config.task] * len(labels),
            "checkpoint": list(labels),
            "epoch": epochs,
            **{name: values[run] for name, values in measured.items()},
            **{name: [value] * len(labels) for name, value in config.hyperparameters().items()},
            "weights": pa.FixedSizeListArray.from_arrays(pa.array(weights), spec.num_parameters),
        }
        yield pa.table([pa.array(columns[field.name]).cast(field.type) for field in schema], schema=schema)


def checkpoint_epoch(label: str, config: RunConfig, best_epoch: int) -> int:
    return best_epoch if label == BEST else config.protocol.checkpoints[label]


def runs_table(shard: int, configs: Sequence[RunConfig], state: PopulationState) -> pa.Table:
    """One row a run; the curves of a diverged run end where it diverged."""
    alive = state.alive.tolist()
    # a run is measured up to and with the epoch it diverged in; losses may be NaN in that last one, accuracy never is
    lengths = (~state.test_accuracy.isnan()).sum(dim=1).tolist()

    def curves(values: Tensor) -> list[list[float]]:
        return [row[:length].tolist() for row, length in zip(values.cpu(), lengths, strict=True)]

    columns = {
        "run_id": [config.run_id for config in configs],
        "task": [config.task for config in configs],
        "status": ["completed" if completed else "diverged" for completed in alive],
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
