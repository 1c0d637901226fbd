"""Forged shards whose manifests have the right hashes: each contradicts itself in a way that no hash shows.

A forgery changes the runs and the checkpoints of a sound shard, and the details in its manifest.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.faults.rewriting import Rows
from zoo.format.hyperparameters import HYPERPARAMETERS
from zoo.format.manifest import Manifest
from zoo.format.shard import CHECKPOINTS_FILE, RUNS_FILE, Shard, ShardRecord, shard_folder, write_shard
from zoo.format.splits import _split_of

Forge = Callable[[Rows, Rows, dict[str, Any]], object]
LABELS = ("test_accuracy", "test_loss", "train_loss")


def forge_shard(folder: Path, runs: Path, forge: Forge) -> Path:
    """Writes a forged copy of a shard, with a manifest that fits, into the folder ``runs``, which is returned."""
    manifest, details = Manifest.read(folder), dict(Shard.read(folder).manifest.details)
    tables = [pa.ipc.open_stream((folder / name).read_bytes()).read_all() for name in (RUNS_FILE, CHECKPOINTS_FILE)]
    run_rows, rows = (table.to_pylist() for table in tables)
    forge(run_rows, rows, details)
    record = ShardRecord.of_manifest(Manifest(manifest.files, details), folder)
    forged = [pa.Table.from_pylist(*each) for each in ((run_rows, tables[0].schema), (rows, tables[1].schema))]
    target = shard_folder(runs, record.config, record.shard)
    write_shard(target, record, forged[1:], forged[0], lambda: {"wall_seconds": 1.0})
    return runs


def in_split(rows: Rows, split: str) -> Rows:
    """The rows of completed runs; diverged ones have no rows that are published."""
    return [row for row in rows if _split_of(row["run_id"]) == split and row.get("status") != "diverged"]


def rename(runs: Rows, rows: Rows, names: dict[str, str]) -> None:
    for row in (*runs, *rows):
        row["run_id"] = names.get(row["run_id"], row["run_id"])


def invented_id(split: str, number: int) -> str:
    """An id that belongs in a split."""
    ids = (f"{candidate:016x}" for candidate in range(number * 1000, (number + 1) * 1000))
    return next(run for run in ids if _split_of(run) == split)


def shuffle_labels(runs: Rows, rows: Rows, details: dict[str, Any]) -> None:
    """Every row has the labels of another."""
    labels = [{name: row[name] for name in LABELS} for row in rows]
    for row, other in zip(rows, labels[8:] + labels[:8], strict=True):
        row.update(other)


def shift_labels(runs: Rows, rows: Rows, details: dict[str, Any]) -> None:
    """Test accuracies are a little better than those of the curves."""
    for row in in_split(rows, "test"):
        row["test_accuracy"] = min(1.0, row["test_accuracy"] + 0.01)


def train_weights_in_test(runs: Rows, rows: Rows, details: dict[str, Any]) -> None:
    """Weights of the test split are those of train, with the labels and the curves that belong to them."""
    source = {run["run_id"]: run for run in in_split(runs, "train")}
    for run, other in zip(in_split(runs, "test"), source.values(), strict=False):
        run.update({name: other[name] for name in (*LABELS, "best_epoch")})
        mine, theirs = ([row for row in rows if row["run_id"] == each["run_id"]] for each in (run, other))
        for row, copied in zip(mine, theirs, strict=True):
            row.update({name: copied[name] for name in (*LABELS, "epoch", "weights")})


def swap_train_and_test(runs: Rows, rows: Rows, details: dict[str, Any]) -> None:
    """Invented ids carry the runs of train to test, and back."""
    other = {"train": "test", "test": "train"}
    ids = [run["run_id"] for run in runs if _split_of(run["run_id"]) in other]
    rename(runs, rows, {run: invented_id(other[_split_of(run)], number) for number, run in enumerate(ids)})


def repeat_train_in_test(runs: Rows, rows: Rows, details: dict[str, Any]) -> None:
    """Runs of train are there a second time, in test, under invented ids."""
    names = {run["run_id"]: invented_id("test", number) for number, run in enumerate(in_split(runs, "train"))}
    runs += [run | {"run_id": names[run["run_id"]]} for run in runs if run["run_id"] in names]
    rows += [row | {"run_id": names[row["run_id"]]} for row in rows if row["run_id"] in names]
    details["runs"] = len(runs)


def repeat_train_with_other_hyperparameters(runs: Rows, rows: Rows, details: dict[str, Any]) -> None:
    """The same, but with ids that do recompute, from invented learning rates."""
    record = ShardRecord.from_dict({name: value for name, value in details.items() if name != "kind"})
    changed: dict[str, dict[str, Any]] = {}
    for run in in_split(runs, "train"):
        values = {name: run[name] for name in HYPERPARAMETERS}
        rates = (run["learning_rate"] * (1 + number / 100) for number in range(1, 1000))
        new = ({"learning_rate": rate, "run_id": record.run_id(values | {"learning_rate": rate})} for rate in rates)
        changed[run["run_id"]] = next(each for each in new if _split_of(each["run_id"]) == "test")
    runs += [run | changed[run["run_id"]] for run in runs if run["run_id"] in changed]
    rows += [row | changed[row["run_id"]] for row in rows if row["run_id"] in changed]
    details["runs"] = len(runs)


def every_epoch_one(runs: Rows, rows: Rows, details: dict[str, Any]) -> None:
    for row in rows:
        row["epoch"] = 1


def all_weights_identical(runs: Rows, rows: Rows, details: dict[str, Any]) -> None:
    for row in rows:
        row["weights"] = rows[0]["weights"]


def last_weights_at_every_checkpoint(runs: Rows, rows: Rows, details: dict[str, Any]) -> None:
    """The checkpoints of a run all have its last weights."""
    last = {row["run_id"]: row["weights"] for row in rows if row["checkpoint"] == "epoch_100"}
    for row in rows:
        row["weights"] = last[row["run_id"]]


def seeds_as_shared(runs: Rows, rows: Rows, details: dict[str, Any]) -> None:
    """Rows of mnist-seeds, published as mnist."""
    details.update(config="mnist", seeds="shared")


def shared_as_seeds(runs: Rows, rows: Rows, details: dict[str, Any]) -> None:
    """Rows of mnist, published as mnist-seeds."""
    details.update(config="mnist-seeds", seeds="distinct")


def another_protocol(runs: Rows, rows: Rows, details: dict[str, Any]) -> None:
    """The manifest claims batches that the runs were not trained with."""
    details["protocol"] = details["protocol"] | {"batch_size": 32}


def another_best_epoch(runs: Rows, rows: Rows, details: dict[str, Any]) -> None:
    """best is an epoch that was not."""
    take_best(runs, rows, {run["run_id"]: run["best_epoch"] % run["epochs"] + 1 for run in runs})


def take_best(runs: Rows, rows: Rows, epochs: dict[str, int]) -> None:
    """Other best epochs, and what their curves say of them in the rows."""
    best = {run["run_id"]: run for run in runs}
    for run in runs:
        run["best_epoch"] = epochs[run["run_id"]]
    for row in rows:
        if row["checkpoint"] == "best":
            run = best[row["run_id"]]
            row["epoch"] = run["best_epoch"]
            row.update({name: run[name][min(row["epoch"], len(run[name])) - 1] for name in LABELS})


def best_by_accuracy(runs: Rows, rows: Rows, details: dict[str, Any]) -> None:
    """best of language models is the second epoch, which has the highest accuracy and the highest loss."""
    for run in runs:
        run["test_accuracy"][1] = 1.0
        run["test_loss"][1] = max(run["test_loss"]) + 0.1
    take_best(runs, rows, {run["run_id"]: 2 for run in runs})


def negative_label(runs: Rows, rows: Rows, details: dict[str, Any]) -> None:
    rows[0]["induction_loss"] = -0.001


def missing_label(runs: Rows, rows: Rows, details: dict[str, Any]) -> None:
    rows[0]["bigram_divergence"] = None


def impossible_accuracy(runs: Rows, rows: Rows, details: dict[str, Any]) -> None:
    rows[0]["test_accuracy"] = 7.0


FORGERIES: dict[Forge, tuple[str, str]] = {
    shuffle_labels: ("shared", "test_accuracy is not that of its run's curve at this epoch"),
    shift_labels: ("shared", "test_accuracy is not that of its run's curve at this epoch"),
    train_weights_in_test: ("shared", "the weights are those of another run or epoch"),
    swap_train_and_test: ("shared", "the run_id is not the hash of the configuration"),
    repeat_train_in_test: ("shared", "the run_id is not the hash of the configuration"),
    repeat_train_with_other_hyperparameters: ("shared", "the weights are those of another run or epoch"),
    every_epoch_one: ("shared", "the epoch is not that of the checkpoint"),
    all_weights_identical: ("shared", "the weights are those of another run or epoch"),
    last_weights_at_every_checkpoint: ("shared", "the weights are those of another run or epoch"),
    seeds_as_shared: ("distinct", "the seed does not follow from the policy"),
    shared_as_seeds: ("shared", "the seed does not follow from the policy"),
    another_protocol: ("shared", "the run_id is not the hash of the configuration"),
    another_best_epoch: ("shared", "best_epoch is not the first epoch of the highest test accuracy"),
    best_by_accuracy: ("language", "best_epoch is not the first epoch of the lowest test loss"),
    negative_label: ("language", "a loss is negative"),
    missing_label: ("language", "a value is missing"),
    impossible_accuracy: ("shared", "test_accuracy is outside [0, 1]"),
}
"""For each the seeds of the shard to forge, and the fault that is found."""
