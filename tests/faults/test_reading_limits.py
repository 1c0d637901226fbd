"""Hostile files of at most a megabyte, and sparse ones: one line, in two seconds and 300 MB at most."""

import gzip
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import zoo
from generation.word_vectors import _reduce_vectors
from tests.fabricated import TINY_MNIST
from tests.faults.arrow_messages import bomb
from tests.faults.limits import Outcome, within_limits
from tests.faults.readers import make_shard, make_zoo, read_shard
from tests.faults.unreliable_server import serving
from zoo import describe, verify
from zoo.format.manifest import MAX_MANIFEST_BYTES, FileEntry, Manifest
from zoo.format.schema import PUBLISHED_RUN_SCHEMA, checkpoint_schema
from zoo.tasks.embedding import WordEmbedding
from zoo.tasks.formats import data_section

pytestmark = pytest.mark.long
SPARSE_BYTES = 6 << 30
MEGABYTE = 1 << 20
RUNS, TRAIN = "mnist/runs.arrow", "mnist/train-00000-of-00001.arrow"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sound")
    make_zoo(root)
    return root / "zoo"


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "zoo"))


def put(folder: Path, name: str, data: bytes, rows: int) -> None:
    """A file in place of another, with a manifest that agrees with it."""
    (folder / name).write_bytes(data)
    manifest = Manifest.read(folder)
    replace(manifest, files=manifest.files | {name: FileEntry.of(folder / name, rows)}).write(folder)


def many_rows(schema: pa.Schema, count: int) -> pa.Table:
    """Rows of zeros and empty texts, with long curves: what compression shrinks most."""
    values: dict[str, Any] = {}
    for field in schema:
        if pa.types.is_fixed_size_list(field.type):
            flat = pa.array(np.zeros(count * field.type.list_size, dtype=np.float32))
            values[field.name] = pa.FixedSizeListArray.from_arrays(flat, field.type.list_size)
        elif pa.types.is_list(field.type):
            offsets = pa.array(np.arange(count + 1, dtype=np.int32) * CURVE)
            values[field.name] = pa.ListArray.from_arrays(offsets, pa.array(np.zeros(count * CURVE, dtype=np.float32)))
        else:
            values[field.name] = pa.array([""] * count if field.type == pa.string() else np.zeros(count), field.type)
    return pa.table(values, schema)


def load_with_datasets(place: str | Path, config: str, split: str, streaming: bool, cache: Path) -> None:
    loaded = zoo.load_dataset(place, config, split=split, streaming=streaming, cache_dir=str(cache))
    print(sum(1 for _ in loaded))


def open_rows(folder: Path) -> None:
    print(len(zoo.open(folder, "mnist", split="all").runs))


def is_refused(outcome: Outcome, match: str) -> None:
    assert outcome.code in (1, 2)
    assert match in outcome.text.splitlines()[-1]


@pytest.mark.parametrize("hidden", [False, True], ids=["marked", "hidden in an old version"])
def test_compressed_arrow_is_never_unpacked(folder: Path, tmp_path: Path, hidden: bool) -> None:
    """Megabytes that would be gigabytes; ``hidden`` is compression without any mark in the record batch."""
    message = "a message with features" if hidden else "it is compressed"
    runs, rows = (bomb(many_rows(schema, count), hidden) for schema, count in BOMBS)
    assert max(len(runs), len(rows)) < MEGABYTE
    put(folder, RUNS, runs, BOMBS[0][1])
    is_refused(within_limits(verify.main, [str(folder)]), message)
    is_refused(within_limits(describe.main, [str(folder), "--config", "mnist"]), message)
    if not hidden:
        return
    put(folder, TRAIN, rows, BOMBS[1][1])
    manifest = Manifest.read(folder)
    manifest.details["configs"]["mnist"]["rows"]["train"] = BOMBS[1][1]
    manifest.write(folder)
    with serving(folder, {"well": 1}) as (address, _):
        for place, *arguments in (
            (folder, "mnist", "train", False),
            (folder, "mnist-runs", "runs", True),
            (address, "mnist", "train", True),
            (address, "mnist-runs", "runs", False),
        ):
            is_refused(within_limits(load_with_datasets, place, *arguments, tmp_path / "cache"), message)


CURVE = 300_000
BOMBS = ((PUBLISHED_RUN_SCHEMA, 100), (checkpoint_schema(TINY_MNIST), 250_000))


def sparse(path: Path) -> Path:
    os.truncate(path, SPARSE_BYTES)
    return path


def test_sparse_files_are_not_read(folder: Path, tmp_path: Path) -> None:
    make_shard(tmp_path)
    shard = tmp_path / "mnist" / "shard-00000"
    cases: list[tuple[Path, Callable[..., object], object]] = [
        (folder / "agnews" / "vocabulary.json", WordEmbedding.load, folder / "agnews"),
        (folder / "agnews" / "embedding.safetensors", WordEmbedding.load, folder / "agnews"),
        (folder / RUNS, verify.main, [str(folder)]),
        (folder / RUNS, open_rows, folder),
        (shard / "timing.json", read_shard, tmp_path),
        (shard / "runs.arrow", read_shard, tmp_path),
        (shard / "manifest.json", read_shard, tmp_path),
        (folder / "manifest.json", verify.main, [str(folder)]),
        (folder / "manifest.json", open_rows, folder),
    ]
    for path, work, argument in cases:
        whole = path.read_bytes() if path.stat().st_size < MEGABYTE else b""
        sparse(path)
        is_refused(within_limits(work, argument), f"{SPARSE_BYTES:,} bytes")
        path.write_bytes(whole)


@pytest.mark.parametrize("size", [MEGABYTE, MAX_MANIFEST_BYTES, 64 * MEGABYTE])
def test_a_manifest_of_nothing_but_brackets_takes_little_memory(folder: Path, size: int) -> None:
    for piece in (b"{},", b'{"":0},'):
        (folder / "manifest.json").write_bytes(b"[" + piece * (size // len(piece) - 1) + b"0]")
        # the limit of time is for a megabyte
        is_refused(within_limits(verify.main, [str(folder)], seconds=max(2.0, size / MEGABYTE)), "is damaged")


def test_duplicate_names_are_found_in_linear_time(folder: Path) -> None:
    names = [f'"{number}":0' for number in range(50_000)]
    (folder / "manifest.json").write_text("{" + ",".join([*names, names[-1]]) + "}")
    assert (folder / "manifest.json").stat().st_size < MEGABYTE
    is_refused(within_limits(verify.main, [str(folder)]), "'49999' is there twice")


@pytest.mark.parametrize("start", [b"1 32\nw1 0.5 ", b"1 32\nw1"], ids=["a line", "a word"])
def test_vectors_with_an_endless_line_or_word_are_refused(tmp_path: Path, start: bytes) -> None:
    plain, zipped = tmp_path / "plain", tmp_path / "zipped.gz"
    plain.write_bytes(start)
    zipped.write_bytes(gzip.compress(start + b"1" * (200 * MEGABYTE), 1))
    assert zipped.stat().st_size < MEGABYTE
    for path in (sparse(plain), zipped):
        is_refused(within_limits(_reduce_vectors, str(path), ["w1"], 32), "is damaged or not a word2vec file")


def read_data(folder: Path, kind: str, path: str) -> None:
    data_section({"format": kind, "path": path}, "task.toml").read(folder)


def image_bombs(folder: Path) -> tuple[int, ...]:
    """Millions of images of one pixel, as IDX files and as npz."""
    shape, content = (20_000_000, 1, 1), bytes([0, 1]) * 10_000_000
    for name, sides in (("images-idx3", shape), ("labels-idx1", shape[:1])):
        packed = gzip.compress(bytes([0, 0, 8, len(sides)]) + np.array(sides, dtype=">u4").tobytes() + content)
        for split in ("train", "t10k"):
            (folder / f"{split}-{name}-ubyte.gz").write_bytes(packed)
    x, y = (np.frombuffer(content, np.uint8).reshape(sides) for sides in (shape, shape[:1]))
    np.savez_compressed(folder / "bomb.npz", x_train=x, y_train=y, x_test=x[:2], y_test=y[:2])
    return tuple(path.stat().st_size for path in folder.iterdir())


def test_millions_of_images_in_a_few_kilobytes_are_refused(tmp_path: Path) -> None:
    assert max(image_bombs(tmp_path)) < MEGABYTE
    for kind, path, name in (("idx", ".", "train-images-idx3-ubyte.gz"), ("npz", "bomb.npz", "bomb.npz: x_train")):
        outcome = within_limits(read_data, tmp_path, kind, path)
        is_refused(outcome, f"{name} holds 20,000,000 examples, at most 10,000,000 are read")


def test_a_text_that_unpacks_to_more_than_is_read_is_given_up(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "bomb.txt.gz", "wb", compresslevel=1) as file:
        for _ in range(1000):
            file.write(b"a" * MEGABYTE)
    assert (tmp_path / "bomb.txt.gz").stat().st_size < 5 * MEGABYTE
    outcome = within_limits(read_data, tmp_path, "text", "bomb.txt.gz")
    is_refused(outcome, "bomb.txt.gz unpacks to more than 268,435,456 bytes, which is the most that is read")


def test_a_text_that_unpacks_to_what_is_read_takes_little_more_than_it(tmp_path: Path) -> None:
    """32 MB: bytes and text at once, and no table of every place of a character."""
    (tmp_path / "long.txt.gz").write_bytes(gzip.compress(b"ab" * (16 * MEGABYTE), 1))
    assert within_limits(read_data, tmp_path, "text", "long.txt.gz", megabytes=150.0).code == 0


def test_one_text_in_thousands_of_rows_is_not_unpacked(tmp_path: Path) -> None:
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(2_000, np.int32)), ["a " * (MEGABYTE // 2)])
    table = pa.table({"text": texts, "label": np.arange(2_000) % 2})
    for split in ("train", "test"):
        parquet.write_table(table, tmp_path / f"{split}.parquet", compression="zstd", store_schema=False)
    assert (tmp_path / "train.parquet").stat().st_size < 10_000
    outcome = within_limits(read_data, tmp_path, "huggingface", ".", seconds=4.0)
    is_refused(outcome, "train.parquet unpacks to 2,09")


def test_a_saved_table_that_is_compressed_is_not_unpacked(tmp_path: Path) -> None:
    table = pa.table({"text": ["a" * 1000] * 100_000, "label": np.arange(100_000) % 2})
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "data-00000-of-00001.arrow").write_bytes(bomb(table, False))
    is_refused(within_limits(read_data, tmp_path, "huggingface", "."), "it is compressed")


def test_a_pipe_instead_of_a_file_is_not_waited_for(folder: Path) -> None:
    for name in (RUNS, TRAIN):
        (folder / name).unlink()
        os.mkfifo(folder / name)
        is_refused(within_limits(verify.main, [str(folder)]), "")
        is_refused(within_limits(open_rows, folder), "")
