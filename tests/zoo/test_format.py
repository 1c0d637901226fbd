"""The format on disk is frozen: files written by the first release must be read, and written again byte by byte.

The golden folder was made by ``python tests/zoo/test_format.py``. Make it again only with a new SCHEMA_VERSION.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

import zoo
from tests.fabricated import TINY_MNIST, fabricate_shard, folder_contents, publish
from zoo.format.hyperparameters import CONFIGURATION, LATER
from zoo.format.manifest import Manifest
from zoo.format.published import PublishedZoo
from zoo.format.schema import PUBLISHED_RUN_SCHEMA, RUN_SCHEMA, checkpoint_schema
from zoo.format.shard import CHECKPOINTS_FILE, RUNS_FILE, ShardRecord, shard_folder, write_shard
from zoo.format.splits import SPLITS, splits_of
from zoo.format.table_file import read_table
from zoo.verify import _verify

GOLDEN = Path(__file__).parent / "golden" / "published"
CARD = "---\n{{configs}}\n---\n"


def test_the_same_runs_give_the_bytes_of_the_first_release(tmp_path, monkeypatch):
    """The rows are invented, with ids and labels that no rule allows today."""
    monkeypatch.setattr("zoo.publish.config_faults", lambda *_, **__: iter(()))
    publish(shard_of_golden(tmp_path / "runs"), tmp_path / "zoo", card=write_card(tmp_path))
    made, golden = folder_contents(tmp_path / "zoo"), folder_contents(GOLDEN)
    manifest, first = (without_versions(each.pop("manifest.json")) for each in (made, golden))
    for name in ("croissant.json", "mnist/runs.parquet"):
        del made[name], manifest["files"][name]
    # what the card of a zoo with one config says since then
    made["README.md"] = made["README.md"].replace(b"  default: true\n", b"", 1)
    del manifest["files"]["README.md"], first["files"]["README.md"]
    assert manifest == first
    assert made == golden


def shard_of_golden(runs: Path) -> Path:
    """The shard that the golden zoo was published from."""
    golden = PublishedZoo.read(GOLDEN)
    details, schema = golden.config("mnist"), checkpoint_schema(TINY_MNIST)
    table = read_table(GOLDEN / "mnist" / RUNS_FILE, PUBLISHED_RUN_SCHEMA)
    facts = {"config": "mnist", "shard": 0, "runs": len(table), "engine": "fabricated", "precision": "float32"}
    record = ShardRecord(**details.training(), **facts)
    rows = [read_table(path, schema) for path in golden.paths("mnist", SPLITS)]
    seconds = sum(table.column("wall_seconds").to_pylist())
    write_shard(shard_folder(runs, "mnist", 0), record, rows, table, lambda: {"wall_seconds": seconds})
    return runs


def write_card(folder: Path) -> Path:
    (folder / "card.md").write_text(CARD)
    return folder / "card.md"


def without_versions(manifest: bytes) -> dict:
    """A manifest without what the first release did not write, and without the versions of the code that wrote it."""
    content = json.loads(manifest)
    content.pop("sha256", None)
    del content["code_version"], content["details"]["configs"]["mnist"]["code_versions"]
    return content


def test_a_zoo_of_the_first_release_is_read():
    assert Manifest.read(GOLDEN).sha256 is None
    runs = GOLDEN / "mnist" / RUNS_FILE
    assert _verify(GOLDEN) == [
        f"{runs}, row 0 (and 2 more): the run_id is not the hash of the configuration",
        f"{runs}, row 0 (and 1 more): best_epoch is not the first epoch of the highest test accuracy",
    ], "invented runs, and nothing else is wrong"
    reader = zoo.open(GOLDEN, "mnist", split="all")
    assert len(reader) == 12
    assert len(set(reader.metadata["run_id"])) == 3
    flat = reader.weights(slice(None))
    assert flat.shape == (12, TINY_MNIST.num_parameters)
    assert flat.dtype == torch.float32
    # 0.3 times a standard normal
    assert np.isclose(float(flat.std()), 0.3, atol=0.01)


def test_a_hyperparameter_that_came_later_has_its_default_in_earlier_files(tmp_path, monkeypatch):
    """As if dropout had come after the first release: where no run uses it, files do not have the column."""
    runs, schema = tmp_path / "runs", checkpoint_schema(TINY_MNIST)
    monkeypatch.setitem(LATER, "dropout", 0.0)
    with_dropout = fabricate_shard(runs, TINY_MNIST, shard=0, count=8)
    without = fabricate_shard(runs, TINY_MNIST, shard=1, count=1)
    for folder, stored in ((with_dropout, True), (without, False)):
        for name, expected in ((CHECKPOINTS_FILE, schema), (RUNS_FILE, RUN_SCHEMA)):
            assert ("dropout" in pa.ipc.open_stream(folder / name).schema.names) is stored
            table = read_table(folder / name, expected)
            assert table.schema == expected
            assert stored or set(table.column("dropout").to_pylist()) == {0.0}
    publish(runs, tmp_path / "zoo")
    assert _verify(tmp_path / "zoo") == []
    assert set(zoo.open(tmp_path / "zoo", "mnist", split="all").metadata["dropout"]) == {0.0, 0.2}
    monkeypatch.delitem(LATER, "dropout")
    with pytest.raises(ValueError, match="no column dropout"):
        read_table(without / RUNS_FILE, RUN_SCHEMA)


def test_a_hyperparameter_that_came_later_moves_no_configuration_to_another_split(monkeypatch):
    monkeypatch.setitem(LATER, "dropout", 0.0)
    first = [name for name in ("task", *CONFIGURATION) if name not in LATER]
    columns = {name: [f"some {name}"] for name in first} | {name: [default] for name, default in LATER.items()}
    written = []
    monkeypatch.setattr("zoo.format.splits._split_of", lambda text, *_: written.append(json.loads(text)) or "train")
    splits_of(columns.__getitem__, repeats=True)
    splits_of((columns | {"dropout": [0.1]}).__getitem__, repeats=True)
    plain = [f"some {name}" for name in first]
    assert written == [plain, [*plain, "dropout", 0.1]]


if __name__ == "__main__":
    scratch = Path("golden-scratch")
    fabricate_shard(scratch / "runs", TINY_MNIST, count=3)
    publish(scratch / "runs", scratch / "zoo", card=write_card(scratch))
    shutil.rmtree(GOLDEN, ignore_errors=True)
    (scratch / "zoo").rename(GOLDEN)
    shutil.rmtree(scratch)
