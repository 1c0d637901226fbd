"""Fabricated shards in the form generation writes them, for tests and benchmarks: random weights, invented labels.

They keep all rules of a zoo (``zoo.format.faults``), so they can be published and verified.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from zoo.command import Advance
from zoo.format.hyperparameters import LATER, OPTIMIZERS
from zoo.format.manifest import Manifest
from zoo.format.recipe import epochs_of_checkpoints
from zoo.format.record import config_name
from zoo.format.schema import BEST, CHECKPOINTS, CURVES, RUN_SCHEMA, WEIGHTS, checkpoint_schema, with_weights
from zoo.format.shard import ShardRecord, shard_folder, write_shard
from zoo.format.splits import run_digest
from zoo.format.table_file import ROWS_PER_BATCH
from zoo.publish import _Options, _publish
from zoo.tasks.embedding import WordEmbedding
from zoo.tasks.evaluation import evaluate
from zoo.tasks.examples import TaskData
from zoo.transformer.model import build_model
from zoo.transformer.spec import TransformerSpec

TINY_MNIST = TransformerSpec("mnist", classes=10, tokens=49, patch_size=4, dim=4, key_dim=2, value_dim=2, hidden_dim=4)
TINY_AGNEWS = TransformerSpec("agnews", classes=4, tokens=64, dim=4, key_dim=2, value_dim=2, hidden_dim=4)
TINY_PHOTOS = TransformerSpec(
    "photos", 3, 6, 4, dim=10, key_dim=3, value_dim=4, hidden_dim=7, blocks=4, channels=3, residual=True
)
"""Nothing like the paper's: residual, deeper, for color images of 8 × 12 or 12 × 8 pixels."""
TINY_SHAKESPEARE = TransformerSpec(  # its shards need a task, which has the characters
    "shakespeare", 65, 16, dim=4, key_dim=2, value_dim=2, hidden_dim=4, residual=True, vocabulary=65, causal=True
)
EPOCHS = 100


def publish(
    runs: Path, out: Path, *, name: str | None = None, advance: Advance = lambda rows: None, **options: Any
) -> Manifest:
    """Publishes shards as ``zoo.publish`` does, with its options by name; ``name`` is what the card calls the zoo."""
    return _publish(_Options(runs=runs, out=out, push_to_hub=name, **options), advance)


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
    task_file: str | None = None,
) -> Path:
    """Writes one shard of ``count`` runs, the last ``diverged`` of them diverged, and returns its folder.

    With ``task`` the accuracies and losses are measured on its test set; without, they are invented. ``task_file`` is
    the text of the file of a task that is not the paper's.
    """
    config = config_name(spec.task, seeds)
    folder = shard_folder(runs, config, shard)
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
        task_file=task_file,
        characters=task.characters if task else None,
        config=config,
        shard=shard,
        runs=count,
        engine="fabricated",
        precision="float32",
    )
    rows = [run_row(record, index, count - diverged, task) for index in range(count)]
    timing = {"wall_seconds": 2.0 * count, "device": "none"}
    run_table = pa.Table.from_pylist(rows, RUN_SCHEMA)
    write_shard(folder, record, checkpoint_tables(record, rows), run_table, lambda: timing)
    return folder


def run_row(record: ShardRecord, index: int, completed: int, task: TaskData | None = None) -> dict[str, Any]:
    """One run; everything about it follows from its place, and its id and its seed from its configuration."""
    number, repeat = divmod(index, record.repeats or 1)
    random = generator_of(f"{record.task}/{record.shard}/{number}/32")  # 32: small zoos have runs in all splits
    configuration = LATER | {
        "optimizer": OPTIMIZERS[int(random.integers(len(OPTIMIZERS)))],
        "learning_rate": float(random.choice([1e-4, 1e-3, 1e-2])),
        "weight_decay": float(random.uniform(0, 1e-4)),  # no two configurations are the same
        "init_std": float(random.choice([0.1, 0.2])),
        "dropout": float(random.choice([0.0, 0.2])),
        "train_fraction": 1.0,
        "seed": 0,
    }
    configuration["seed"] = record.seeds_of(configuration)[repeat]
    run_id, status = record.run_id(configuration), "completed" if index < completed else "diverged"
    curves = invented_curves(run_id, EPOCHS if status == "completed" else 7)
    if status == "diverged":
        curves["train_loss"][-1] = np.nan
    if task is not None:
        measure_curves(run_id, record, task, curves)
    return {
        "run_id": run_id,
        "task": record.task,
        "status": status,
        **configuration,
        "shard": record.shard,
        "epochs": EPOCHS,
        "best_epoch": int((-curves["test_loss"] if record.spec.causal else curves["test_accuracy"]).argmax()) + 1,
        **curves,
        "code_version": "fabricated",
    }


def invented_curves(run_id: str, epochs: int) -> dict[str, np.ndarray]:
    random = generator_of(run_id)
    return {field.name: random.random(epochs, dtype=np.float32) for field in CURVES}


def measure_curves(run_id: str, record: ShardRecord, task: TaskData, curves: dict[str, np.ndarray]) -> None:
    """Puts what its weights measure into a run's curves, which are poor at epochs without a checkpoint."""
    curves["test_accuracy"][:], curves["test_loss"][:] = 0, 99
    for epoch in epochs_of_checkpoints(record.protocol).values():
        measured = evaluate(build_model(record.spec, torch.from_numpy(invented_weights(record, run_id, epoch))), task)
        curves["test_accuracy"][epoch - 1], curves["test_loss"][epoch - 1] = measured.accuracy, measured.loss


def invented_weights(record: ShardRecord, run_id: str, epoch: int) -> np.ndarray:
    random = generator_of(f"{run_id}/{epoch}")
    return np.float32(0.3) * random.standard_normal(record.spec.num_parameters, dtype=np.float32)


def checkpoint_tables(record: ShardRecord, rows: list[dict[str, Any]]) -> Iterator[pa.Table]:
    """The checkpoints of all runs, a diverged one's too, some at a time: their weights may be many."""
    schema = checkpoint_schema(record.spec)
    runs_at_once = ROWS_PER_BATCH // len(CHECKPOINTS)
    for start in range(0, len(rows), runs_at_once):
        part = rows[start : start + runs_at_once]
        records = [checkpoint_row(record, row, name) for row in part for name in record.checkpoints]
        weights = np.stack([invented_weights(record, each["run_id"], each["epoch"]) for each in records])
        metadata = pa.Table.from_pylist(records, schema.remove(schema.get_field_index(WEIGHTS)))
        yield with_weights(metadata, weights)


def checkpoint_row(record: ShardRecord, run: dict[str, Any], checkpoint: str) -> dict[str, Any]:
    """The metadata of one checkpoint, taken from its run's curves."""
    epoch = (epochs_of_checkpoints(record.protocol) | {BEST: run["best_epoch"]})[checkpoint]
    measured = {field.name: run[field.name][min(epoch, len(run[field.name])) - 1] for field in CURVES}
    invented = dict.fromkeys(checkpoint_schema(record.spec).names, 1.0)  # the other labels of language models
    known = {name: run[name] for name in invented if name in run}
    return invented | known | {"checkpoint": checkpoint, "epoch": epoch} | measured


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
