"""``load_dataset``: from a clone without a network, streamed, over HTTP, never stale, shared among workers."""

import json
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

import zoo
from tests.fabricated import TINY_MNIST, fabricate_shard, publish
from tests.faults.unreliable_server import serving
from zoo.format.manifest import MANIFEST_FILE, Manifest
from zoo.format.splits import SPLITS
from zoo.format.table_file import write_table
from zoo.reading.locate import _BUNDLED, resolve

OFFLINE = """
import json, socket, sys

def refuse(*arguments):
    raise AssertionError(f"the network was used: {arguments}")

socket.socket.connect = socket.getaddrinfo = refuse
from datasets import load_dataset

loaded = {}
for config in ("mnist", "agnews"):
    whole = load_dataset("small-transformer-zoo", config)
    first = whole.with_format("torch")["train"][0]["weights"]
    loaded[config] = {
        "rows": {split: part.num_rows for split, part in whole.items()},
        "feature": str(whole["train"].features["weights"]),
        "tensor": [str(first.dtype), list(first.shape)],
        "runs": {split: part["run_id"][:] for split, part in whole.items()},
        "streamed": {
            split: [row["run_id"] for row in load_dataset("small-transformer-zoo", config, split=split, streaming=True)]
            for split in whole
        },
    }
json.dump(loaded, sys.stdout)
"""


def load_offline(root: Path, home: Path) -> dict:
    """Rows that plain ``datasets`` loads in its own process, started in ``root``, without network and cache."""
    environment = os.environ | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_against_reader(root: Path, home: Path) -> None:
    for config, loaded in load_offline(root, home).items():
        readers = {split: zoo.open(root / "small-transformer-zoo", config, split=split) for split in SPLITS}
        d = readers["train"].spec.num_parameters
        assert loaded["rows"] == {split: len(reader) for split, reader in readers.items()}
        assert loaded["feature"] == f"List(Value('float32'), length={d})"
        assert loaded["tensor"] == ["torch.float32", [d]]
        for split, reader in readers.items():
            assert loaded["runs"][split] == loaded["streamed"][split] == list(reader.metadata["run_id"])


@pytest.mark.long
def test_plain_datasets_loads_a_published_folder_without_a_network(made, tmp_path):
    check_against_reader(made, tmp_path)


@pytest.mark.long
@pytest.mark.skipif(not (_BUNDLED / MANIFEST_FILE).is_file(), reason="this checkout has no sample")
def test_plain_datasets_loads_the_sample_from_the_root_of_a_clone(tmp_path):
    check_against_reader(_BUNDLED.parent, tmp_path)


@pytest.fixture
def datasets(tmp_path, monkeypatch):
    """The library, quiet, with a cache of its own."""
    import datasets

    datasets.disable_progress_bars()
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return datasets


def test_the_cache_hands_out_no_stale_rows_after_publishing_again(datasets, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs, folder = tmp_path / "runs", tmp_path / "small-transformer-zoo"
    for shard in range(2):
        # as many runs and files as before, but other ones
        shutil.rmtree(runs, ignore_errors=True)
        fabricate_shard(runs, TINY_MNIST, shard=shard, count=10)
        publish(runs, folder)
        rows = datasets.load_dataset("small-transformer-zoo", "mnist")
        assert list(rows["train"]["run_id"]) == list(zoo.open(folder, "mnist").metadata["run_id"])


def test_metadata_columns_are_loaded_without_weights(datasets, zoo_folder):
    rows = zoo.load_dataset(zoo_folder, "mnist", split="train").remove_columns("weights")
    frame = zoo.open(zoo_folder, "mnist").metadata
    assert rows.column_names == list(frame.columns)
    assert np.array_equal(rows["test_accuracy"][:], frame["test_accuracy"])


def test_runs_are_a_config_of_their_own(datasets, zoo_folder):
    runs = zoo.load_dataset(zoo_folder, "mnist-runs", split="runs")
    assert runs.num_rows == 80
    assert len(runs[0]["test_accuracy"]) == 100


def test_the_only_config_needs_no_name(zoo_folder, tmp_path):
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=12)
    publish(tmp_path / "runs", tmp_path / "zoo")
    loaded = zoo.load_dataset(tmp_path / "zoo", cache_dir=str(tmp_path / "cache"))
    assert sum(part.num_rows for part in loaded.values()) == len(zoo.open(tmp_path / "zoo", split="all"))
    with pytest.raises(ValueError, match=r"has \d configs: name one of agnews.*, mnist"):
        zoo.load_dataset(zoo_folder)


def test_several_workers_stream_different_rows(datasets, zoo_folder):
    reader = zoo.open(zoo_folder, "mnist")
    stream = zoo.load_dataset(zoo_folder, "mnist", split="train", streaming=True).shuffle(seed=1, buffer_size=50)
    assert stream.num_shards == 4
    stream = stream.select_columns(["run_id", "checkpoint", "weights"]).with_format("torch")
    seen: list[tuple[str, str]] = []
    for batch in torch.utils.data.DataLoader(stream, batch_size=8, num_workers=2):
        assert batch["weights"].dtype == torch.float32
        seen += zip(batch["run_id"], batch["checkpoint"], strict=True)
    wanted = list(zip(reader.metadata["run_id"], reader.metadata["checkpoint"], strict=True))
    assert sorted(seen) == sorted(wanted)
    assert seen != wanted, "not shuffled"


@pytest.fixture
def server(made):
    """A plain static web server over the folder that holds the zoo."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(made))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_streaming_from_a_static_web_server_reads_the_same_rows(datasets, server, zoo_folder):
    for config, split in (("mnist", "train"), ("agnews", "test")):
        stream = zoo.load_dataset(f"{server}/small-transformer-zoo", config, split=split, streaming=True)
        reader = zoo.open(zoo_folder, config, split=split)
        count = 0
        for row, record in enumerate(stream.with_format("numpy")):
            assert np.array_equal(record.pop("weights"), reader.weights(row).numpy())
            assert record == reader.metadata.iloc[row].to_dict()
            count += 1
        assert count == len(reader) > 0


def flip_a_bit_of_the_weights(folder: Path) -> str:
    """Another number, in a file of the training split that Arrow reads as before; returns its name."""
    name = "mnist/train-00002-of-00004.arrow"
    data = pa.py_buffer(bytearray((folder / name).read_bytes()))
    values = pa.ipc.open_stream(data).read_next_batch().column("weights").values
    memoryview(data)[values.buffers()[1].address - data.address] ^= 1
    (folder / name).write_bytes(data)
    return name


@pytest.mark.parametrize("served", [pytest.param(True, marks=pytest.mark.long), False], ids=["served", "in a folder"])
def test_one_flipped_bit_is_an_error_before_the_last_row(datasets, spoiled, served):
    name = flip_a_bit_of_the_weights(spoiled)
    with serving(spoiled, {"well": 0.7, "cut": 0.3}) as (address, _):
        place = address if served else spoiled
        rows = iter(zoo.load_dataset(place, "mnist", split="train", streaming=True))
        first = [next(rows) for _ in range(128)]  # of the two files before it
        assert [row["run_id"] for row in first] == list(zoo.open(spoiled, "mnist").metadata["run_id"][:128])
        with pytest.raises(ValueError, match=f"{name} is damaged: its SHA-256"):
            next(rows)
        for _ in range(2):  # no copy stays in the cache
            with pytest.raises(ValueError, match=f"{name} is damaged: its SHA-256"):
                zoo.load_dataset(place, "mnist", split="test")


def test_a_server_without_a_zoo_is_one_clear_error(server):
    with pytest.raises(FileNotFoundError, match=r"manifest\.json does not answer: File not found"):
        zoo.load_dataset(f"{server}/runs", "mnist", streaming=True)
    with pytest.raises(ValueError, match="has no config 'chess': it has agnews, agnews-seeds, mnist"):
        zoo.load_dataset(f"{server}/small-transformer-zoo", "chess", streaming=True)


def test_a_zoo_is_found_by_path_variable_and_hub_name(zoo_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(zoo_folder.parent)
    assert resolve("small-transformer-zoo") == zoo_folder
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SMALL_TRANSFORMER_ZOO", str(zoo_folder))
    assert resolve("small-transformer-zoo") == zoo_folder
    assert len(zoo.open(config="mnist")) > 0
    monkeypatch.setenv("SMALL_TRANSFORMER_ZOO", "owner/zoo")
    assert resolve("small-transformer-zoo") == "owner/zoo"
    monkeypatch.delenv("SMALL_TRANSFORMER_ZOO")
    monkeypatch.setattr("zoo.reading.locate._BUNDLED", zoo_folder)
    assert resolve("small-transformer-zoo") == zoo_folder
    monkeypatch.setattr("zoo.reading.locate._BUNDLED", tmp_path / "absent")
    for name in ("small-transformer-zoo", tmp_path / "absent", "absent"):
        with pytest.raises(FileNotFoundError, match="give the folder of one"):
            resolve(name)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(FileNotFoundError, match="is not a zoo"):
        resolve("full")


def test_opening_from_the_hub_downloads_one_config_and_the_embedding(zoo_folder, monkeypatch):
    asked = {}

    def download(name, **arguments):
        asked.update(arguments, name=name)
        return str(zoo_folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    reader = zoo.open("owner/zoo", "agnews-seeds", split="train")
    assert reader.embedding is not None
    assert asked["name"] == "owner/zoo"
    assert {"agnews-seeds/*", "agnews/vocabulary.json", "manifest.json"} <= set(asked["allow_patterns"])


def test_a_damaged_download_is_refused_before_it_is_read(spoiled, monkeypatch):
    name = flip_a_bit_of_the_weights(spoiled)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(spoiled))
    with pytest.raises(ValueError, match=f"{name} is damaged: its SHA-256"):
        zoo.open("owner/zoo", "mnist")
    assert len(zoo.open("owner/zoo", "agnews")) > 0


def test_importing_the_zoo_does_not_import_datasets():
    script = "import sys, zoo; print({'datasets', 'huggingface_hub', 'matplotlib'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_strange_run_id_is_refused_by_load_dataset(spoiled: Path, tmp_path: Path) -> None:
    manifest = Manifest.read(spoiled)
    name = next(name for name in manifest.files if name.startswith("mnist/train-"))
    table = pa.ipc.open_stream((spoiled / name).read_bytes()).read_all()
    ids = ["/elsewhere/model", *table.column("run_id").to_pylist()[1:]]
    table = table.set_column(0, "run_id", pa.array(ids))
    entry = write_table(spoiled / name, table.schema, [table])
    replace(manifest, files=manifest.files | {name: entry}).write(spoiled)
    with pytest.raises(ValueError, match="row 0: the run_id is not 16 hexadecimal digits"):
        zoo.load_dataset(spoiled, "mnist", cache_dir=str(tmp_path / "cache"))
