"""Fabricated shards in the form generation writes them, for tests and benchmarks: random weights, invented labels."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from zoo.format.hyperparameters import LATER, OPTIMIZERS, repeats_of
from zoo.format.record import config_name
from zoo.format.schema import CHECKPOINTS, RUN_SCHEMA, WEIGHTS, checkpoint_schema, with_weights
from zoo.format.shard import ShardRecord, shard_folder, write_shard
from zoo.format.splits import run_digest
from zoo.format.table_file import ROWS_PER_BATCH
from zoo.tasks.embedding import WordEmbedding
from zoo.tasks.evaluation import evaluate
from zoo.tasks.examples import TaskData
from zoo.transformer.model import build_model
from zoo.transformer.spec import TransformerSpec

TINY_MNIST = TransformerSpec("mnist", classes=10, tokens=49, patch_size=4, dim=4, key_dim=2, value_dim=2, hidden_dim=4)
TINY_AGNEWS = TransformerSpec("agnews", classes=4, tokens=64, dim=4, key_dim=2, value_dim=2, hidden_dim=4)
_SIZES = {"dim": 10, "key_dim": 3, "value_dim": 4, "hidden_dim": 7, "blocks": 4, "channels": 3}
TINY_PHOTOS = TransformerSpec("photos", 3, tokens=6, patch_size=4, residual=True, **_SIZES)
"""Nothing like the paper's: residual, deeper, for color images of 8 × 12 or 12 × 8 pixels."""
EPOCHS = 100


def fabricate_shard(
    runs: Path,
    spec: TransformerSpec,
    *,
    shard: int = 0,
    count: int = 16,
    diverged: int = 0,
    seeds: str = "shared",
    preset: str = "demo",
    embedding: WordEmbedding | None = None,
    task: TaskData | None = None,
) -> Path:
    """Writes one shard of ``count`` runs, the last ``diverged`` of them diverged, and returns its folder.

    With ``task`` the accuracies and losses are measured on its test set; without, they are invented.
    """
    config = config_name(spec.task, seeds)
    folder = shard_folder(runs, config, shard)
    rows = [run_row(config, spec, shard, index, count - diverged) for index in range(count)]
    if (repeats := repeats_of(seeds)) is not None:
        rows = [row | repeated(config, shard, *divmod(index, repeats)) for index, row in enumerate(rows)]
    if embedding is not None:
        embedding.save(runs / spec.task)
    record = ShardRecord(
        task=spec.task,
        spec=spec,
        preset=preset,
        protocol={"epochs": EPOCHS, "batch_size": 128},
        seeds=seeds,
        data_source=task.source if task else "nothing: fabricated",
        embedding_sha256=embedding.sha256 if embedding else None,
        data=task.identity if task else None,
        config=config,
        shard=shard,
        runs=count,
        engine="fabricated",
        precision="float32",
    )
    timing = {"wall_seconds": 2.0 * count, "device": "none"}
    run_table = pa.Table.from_pylist(rows, RUN_SCHEMA)
    write_shard(folder, record, checkpoint_tables(spec, rows, task), run_table, lambda: timing)
    return folder


def run_row(config: str, spec: TransformerSpec, shard: int, index: int, completed: int) -> dict[str, Any]:
    """One run; everything about it follows from its id."""
    run_id = run_digest(f"{config}/{shard}/{index}").hex()[:16]
    random = generator_of(run_id)
    status = "completed" if index < completed else "diverged"
    epochs = EPOCHS if status == "completed" else 7
    return {
        "run_id": run_id,
        "task": spec.task,
        "status": status,
        "optimizer": OPTIMIZERS[int(random.integers(len(OPTIMIZERS)))],
        "learning_rate": float(random.choice([1e-4, 1e-3, 1e-2])),
        "weight_decay": float(random.choice([0.0, 1e-4])),
        "init_std": float(random.choice([0.1, 0.2])),
        "dropout": float(random.choice([0.0, 0.2])),
        "train_fraction": 1.0,
        "seed": shard,
        **LATER,
        "shard": shard,
        "epochs": epochs,
        "best_epoch": int(random.integers(1, epochs + 1)),
        "test_accuracy": random.random(epochs, dtype=np.float32),
        "test_loss": random.random(epochs, dtype=np.float32),
        "train_loss": random.random(epochs, dtype=np.float32),
        "code_version": "fabricated",
    }


def repeated(config: str, shard: int, number: int, repeat: int) -> dict[str, Any]:
    """The columns of a repeat of a configuration, given by its number in the shard."""
    random = generator_of(f"{config}/{shard}/{number}/configuration")
    return {
        "optimizer": OPTIMIZERS[int(random.integers(len(OPTIMIZERS)))],
        "learning_rate": float(random.uniform(1e-4, 1e-2)),
        "weight_decay": 0.0,
        "init_std": 0.1,
        "dropout": 0.0,
        "seed": repeat,
    }


def checkpoint_tables(spec: TransformerSpec, rows: list[dict[str, Any]], task: TaskData | None) -> Iterator[pa.Table]:
    """The checkpoints of all runs, a diverged one's too, some at a time: their weights may be many."""
    schema = checkpoint_schema(spec)
    runs_at_once = ROWS_PER_BATCH // len(CHECKPOINTS)
    for start in range(0, len(rows), runs_at_once):
        part = rows[start : start + runs_at_once]
        shape = (len(CHECKPOINTS), spec.num_parameters)
        generators = [generator_of(row["run_id"] + "weights") for row in part]
        weights = np.concatenate([random.standard_normal(shape, dtype=np.float32) for random in generators])
        weights *= 0.3
        records = [checkpoint_row(spec, row, name) for row in part for name in CHECKPOINTS]
        if task is not None:
            for record, flat in zip(records, weights, strict=True):
                measured = evaluate(build_model(spec, torch.from_numpy(flat)), task)
                record |= {"test_accuracy": measured.accuracy, "test_loss": measured.loss}
        metadata = pa.Table.from_pylist(records, schema.remove(schema.get_field_index(WEIGHTS)))
        yield with_weights(metadata, weights)


def checkpoint_row(spec: TransformerSpec, run: dict[str, Any], checkpoint: str) -> dict[str, Any]:
    """The metadata of one checkpoint, taken from its run's curves."""
    epoch = run["best_epoch"] if checkpoint == "best" else EPOCHS * int(checkpoint.removeprefix("epoch_")) // 100
    epoch = min(epoch, run["epochs"])
    measured = {name: run[name][epoch - 1] for name in ("test_accuracy", "test_loss", "train_loss")}
    names = checkpoint_schema(spec).names
    return {name: run[name] for name in names if name in run} | {"checkpoint": checkpoint, "epoch": epoch} | measured


def fabricate_embedding(spec: TransformerSpec, words: int = 50) -> WordEmbedding:
    """An embedding of invented words."""
    vectors = torch.from_numpy(generator_of("embedding").standard_normal((words, spec.dim), dtype=np.float32))
    return WordEmbedding.from_vectors([f"word{index}" for index in range(words)], vectors)


def generator_of(text: str) -> np.random.Generator:
    return np.random.default_rng(int.from_bytes(run_digest(text)[:8], "big"))


def fabricate_runs(runs: Path) -> Path:
    """Every config, small: two MNIST shards of 40 runs, three diverged, and 20 runs of AG News with either seeds."""
    embedding = fabricate_embedding(TINY_AGNEWS)
    fabricate_shard(runs, TINY_MNIST, shard=0, count=40, diverged=2)
    fabricate_shard(runs, TINY_MNIST, shard=1, count=40, diverged=1)
    fabricate_shard(runs, TINY_AGNEWS, count=20, embedding=embedding)
    fabricate_shard(runs, TINY_AGNEWS, count=20, embedding=embedding, seeds="distinct")
    return runs


def folder_contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by name."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
