"""Every reader of files from elsewhere: how to make it sound files, which of them to spoil, how to read them."""

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

import nfn
import zoo
from benchmarks import results
from benchmarks.leaderboard.scoring import HeldOutRows
from benchmarks.leaderboard.submission import Card, PredictionSet, Submission, write_submission
from benchmarks.predict import _files_in, _flat_of, _measured
from benchmarks.results import Result
from generation.population.engine import PopulationState
from generation.protocol import Protocol, RunConfig
from generation.shard import _read_snapshot, _save_snapshot
from generation.word_vectors import _read_vectors
from nfn.predictors.conformal import ConformalInterval
from nfn.predictors.storage import load_predictor, save_predictor, save_pretrained
from tests.fabricated import TINY_AGNEWS, TINY_MNIST, fabricate_embedding, fabricate_shard, publish
from tests.faults.arrow_messages import spoil_arrow
from tests.faults.hostile import Change, spoil, spoil_json, spoil_safetensors
from tests.faults.rewriting import change_manifest
from zoo.export import _to_safetensors
from zoo.format.manifest import Manifest, edition_of
from zoo.format.published import PublishedZoo
from zoo.format.schema import RUN_SCHEMA, checkpoint_schema
from zoo.format.shard import Shard
from zoo.format.table_file import read_table
from zoo.reading.hub import _spec_read_by
from zoo.reading.loading import _ListedFile
from zoo.reading.reader import MappedCheckpoints
from zoo.tasks.embedding import WordEmbedding
from zoo.tasks.formats import CsvData, NpzData, _read_idx
from zoo.tasks.paper_data import _read_news
from zoo.transformer.spec import MNIST
from zoo.transformer.weights import TransformerWeights
from zoo.verify import _verify

Spoil = Callable[[bytes, list[Change]], bytes]
OWNER = "0" * 64
SHARD = "mnist/shard-00000"
STATE = PopulationState.initial(
    MNIST,
    [
        RunConfig(
            task="mnist",
            optimizer="sgd",
            learning_rate=1e-3,
            init_std=0.1,
            protocol=Protocol(epochs=4, warmup_epochs=1),
        )
    ],
    torch.device("cpu"),
)


@dataclass(frozen=True)
class Reader:
    """``make`` writes sound files into a folder, ``file`` is the one to spoil, ``read`` reads all there is in it."""

    name: str
    file: str
    make: Callable[[Path], object]
    read: Callable[[Path], object]
    spoils: tuple[Spoil, ...] = (spoil,)


def make_shard(folder: Path) -> None:
    fabricate_shard(folder, TINY_MNIST, count=3)


def make_zoo(folder: Path) -> None:
    fabricate_shard(folder / "runs", TINY_MNIST, count=12)
    fabricate_shard(folder / "runs", TINY_AGNEWS, count=12, embedding=fabricate_embedding(TINY_AGNEWS, words=4))
    publish(folder / "runs", folder / "zoo")


def make_shard_without_hash(folder: Path) -> None:
    """As in the first release, whose manifest has no hash of itself: a spoiled one is read to its end."""
    make_shard(folder)
    change_manifest(folder / SHARD, lambda manifest: None)


def make_zoo_without_hash(folder: Path) -> None:
    make_zoo(folder)
    change_manifest(folder / "zoo", lambda manifest: None)


def read_shard(folder: Path) -> None:
    shard = Shard.read(folder / "mnist" / "shard-00000")
    shard.runs().to_pandas()
    sorted([shard.record.shard, 0])
    MappedCheckpoints([shard.folder / "checkpoints.arrow"], shard.record.spec)


def read_checkpoints(folder: Path) -> None:
    rows = MappedCheckpoints([folder / "mnist" / "shard-00000" / "checkpoints.arrow"], TINY_MNIST)
    rows.table.to_pandas()
    rows.gather(np.arange(len(rows))).sum()


def read_runs(folder: Path) -> None:
    read_table(folder / "mnist" / "shard-00000" / "runs.arrow", RUN_SCHEMA).to_pandas()


def read_zoo(folder: Path) -> None:
    _verify(folder / "zoo")
    for config in PublishedZoo.read(folder / "zoo").configs:
        reader = zoo.open(folder / "zoo", config, split="all")
        assert len(reader.runs) >= 0
        assert reader.embedding is None or reader.embedding.vocabulary
        list(reader.batches(7))


def read_rows(folder: Path) -> None:
    list(zoo.open(folder / "zoo", "mnist", split="all").batches(7))


def read_loaded_rows(folder: Path) -> None:
    """As ``datasets`` streams them, with a manifest that agrees with whatever size the file has."""
    manifest = Manifest.read(folder / "zoo")
    name = "mnist/train-00000-of-00001.arrow"
    entry = replace(manifest.files[name], bytes=(folder / "zoo" / name).stat().st_size)
    list(_ListedFile(folder / "zoo", name, entry, edition_of(folder / "zoo")).batches(checkpoint_schema(TINY_MNIST)))


def make_vectors(folder: Path) -> None:
    numbers = " ".join(["0.5"] * 32)
    (folder / "vectors.txt").write_text(f"3 32\na {numbers}\nb {numbers}\nc {numbers}\n")


def make_snapshot(folder: Path) -> None:
    _save_snapshot(folder, STATE, OWNER, seconds=1.5)


def make_predictor(folder: Path) -> None:
    save_predictor(nfn.StatNN(TINY_MNIST, width=4, embedding_width=2), folder)


def make_rows(folder: Path) -> None:
    row = Result("kendall", "mnist", "tau", 0.5, 3, "CPU", {"torch": "2"}, "python", "abc", "2026", model="mlp")
    results.append([row, row], folder)


def make_idx(folder: Path, zipped: bool) -> None:
    data = bytes([0, 0, 8, 3, 0, 0, 0, 5, 0, 0, 0, 4, 0, 0, 0, 4, *range(80)])
    (folder / ("images.gz" if zipped else "images")).write_bytes(gzip.compress(data, mtime=0) if zipped else data)


def make_npz(folder: Path, write: Callable[..., None] = np.savez) -> None:
    images, labels = np.arange(96, dtype=np.uint8).reshape(6, 4, 4), np.arange(6) % 2
    write(folder / "data.npz", x_train=images[:4] / 255, y_train=labels[:4], x_test=images[4:] / 255, y_test=labels[4:])


def make_csv(folder: Path) -> None:
    (folder / "train.csv").write_text('"1","a title","a, ""text"" of words"\n"4","b","c"\n' * 4)


def make_csv_data(folder: Path) -> None:
    make_csv(folder)
    (folder / "test.csv").write_bytes((folder / "train.csv").read_bytes())


def make_submission(folder: Path) -> None:
    keys = [(f"{number:016x}", "best") for number in range(6)]
    rows = HeldOutRows("mnist", "best", tuple(keys), np.linspace(0, 1, 6), np.arange(6), None, 1000, OWNER)
    predictions = PredictionSet("tiny", "mnist", "best", OWNER, "mnist.csv", seed=1, change_under_group=0.5)
    write_submission(folder / "guess", Card("a", ("b",), ("weights",), ()), predictions, rows, np.full(6, 0.5))


def read_submission(folder: Path) -> None:
    submission = Submission.read(folder / "guess")
    for predictions in submission.card.predictions:
        submission.read_predictions(predictions)


def make_fitted(folder: Path) -> None:
    interval = ConformalInterval(torch.empty(0), torch.tensor([0.1]))
    save_pretrained(nfn.StatNN(TINY_MNIST, width=4, embedding_width=2), interval, folder / "a.safetensors")


def read_fitted(folder: Path) -> None:
    nfn.load_pretrained(folder / "a.safetensors")
    _spec_read_by(folder / "a.safetensors")


def make_checkpoint_file(folder: Path) -> None:
    state = TransformerWeights.from_flat(TINY_MNIST, torch.zeros(TINY_MNIST.num_parameters)).state_dict()
    data = _to_safetensors({name: tensor.clone() for name, tensor in state.items()}, {"test_accuracy": "0.5"})
    (folder / "a.safetensors").write_bytes(data)


def read_checkpoint_file(folder: Path, name: str = "a.safetensors") -> None:
    (file,) = _files_in(folder / name)
    if file.misfit(TINY_MNIST) is None:
        _measured(file.metadata, "test_accuracy")
        _flat_of(TINY_MNIST, file)


def make_torch_file(folder: Path) -> None:
    torch.save({"classifier.fc2.bias": torch.zeros(10)}, folder / "a.pt")


read_torch_file = partial(read_checkpoint_file, name="a.pt")


READERS = (
    Reader("shard manifest", f"{SHARD}/manifest.json", make_shard_without_hash, read_shard, (spoil, spoil_json)),
    Reader("shard timing", f"{SHARD}/timing.json", make_shard, read_shard, (spoil, spoil_json)),
    Reader("checkpoints", f"{SHARD}/checkpoints.arrow", make_shard, read_checkpoints, (spoil, spoil_arrow)),
    Reader("runs", f"{SHARD}/runs.arrow", make_shard, read_runs, (spoil, spoil_arrow)),
    Reader("zoo manifest", "zoo/manifest.json", make_zoo_without_hash, read_zoo, (spoil, spoil_json)),
    Reader("zoo rows", "zoo/mnist/train-00000-of-00001.arrow", make_zoo, read_rows, (spoil, spoil_arrow)),
    Reader("loaded rows", "zoo/mnist/train-00000-of-00001.arrow", make_zoo, read_loaded_rows, (spoil, spoil_arrow)),
    Reader(
        "snapshot",
        f"state-{OWNER[:8]}-00000.safetensors",
        make_snapshot,
        lambda folder: _read_snapshot(folder / f"state-{OWNER[:8]}-00000.safetensors", OWNER, STATE),
        (spoil, spoil_safetensors),
    ),
    Reader(
        "vocabulary",
        "vocabulary.json",
        lambda folder: fabricate_embedding(TINY_AGNEWS, words=6).save(folder),
        WordEmbedding.load,
        (spoil, spoil_json),
    ),
    Reader(
        "embedding",
        "embedding.safetensors",
        lambda folder: fabricate_embedding(TINY_AGNEWS, words=6).save(folder),
        WordEmbedding.load,
        (spoil, spoil_safetensors),
    ),
    Reader("predictor config", "config.json", make_predictor, load_predictor, (spoil, spoil_json)),
    Reader("predictor", "model.safetensors", make_predictor, load_predictor, (spoil, spoil_safetensors)),
    Reader(
        "result rows",
        "kendall.jsonl",
        make_rows,
        partial(results.read, "kendall"),
        (spoil, lambda data, changes: spoil_json(data.splitlines()[0], changes)),
    ),
    Reader("idx", "images", partial(make_idx, zipped=False), lambda folder: _read_idx(folder / "images", 3)),
    Reader("idx.gz", "images.gz", partial(make_idx, zipped=True), lambda folder: _read_idx(folder / "images.gz", 3)),
    Reader("vectors", "vectors.txt", make_vectors, lambda folder: _read_vectors(folder / "vectors.txt", 32)),
    Reader("csv", "train.csv", make_csv, lambda folder: _read_news(folder / "train.csv")),
    Reader("csv data", "train.csv", make_csv_data, CsvData(".", text=3, label=1).read),
    Reader("submission card", "guess/card.toml", make_submission, read_submission),
    Reader("predictions", "guess/mnist.csv", make_submission, read_submission),
    Reader("fitted predictor", "a.safetensors", make_fitted, read_fitted, (spoil, spoil_safetensors)),
    Reader("checkpoint file", "a.safetensors", make_checkpoint_file, read_checkpoint_file, (spoil, spoil_safetensors)),
    Reader("torch file", "a.pt", make_torch_file, read_torch_file),
    Reader("npz", "data.npz", make_npz, NpzData("data.npz").read),
    Reader("npz, packed", "data.npz", partial(make_npz, write=np.savez_compressed), NpzData("data.npz").read),
)
BY_NAME = {reader.name: reader for reader in READERS}
RIGHT = (ValueError, OSError)
"""The errors that commands turn into one line and a non-zero exit."""


def deep_json(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def long_header(length: int, header: object) -> bytes:
    return length.to_bytes(8, "little") + json.dumps(header).encode()
