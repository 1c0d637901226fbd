"""``croissant.json``: read by mlcroissant, true to the zoo, and checked by verify."""

import json
from pathlib import Path

import mlcroissant
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import zoo
from tests.fabricated import TINY_MNIST, fabricate_shard
from tests.refusal import refusal
from tests.zoo.own_zoo import publish_own_zoo
from zoo.format.manifest import FileEntry, Manifest
from zoo.join import main as join
from zoo.publish import main as publish
from zoo.verify import _verify

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning:rdflib.*", "ignore::DeprecationWarning:mlcroissant.*"
)
ROOT = Path(__file__).parents[2]
ASKED_FOR = ("dataCollection", "dataBiases", "dataLimitations", "dataUseCases", "personalSensitiveInformation")


@pytest.mark.parametrize("bundled", [pytest.param(True, marks=pytest.mark.long), False])
def test_mlcroissant_reads_the_runs(zoo_folder, bundled):
    folder = ROOT / "small-transformer-zoo" if bundled else zoo_folder
    dataset = mlcroissant.Dataset(folder / "croissant.json")
    assert not dataset.metadata.ctx.issues.errors
    for config in Manifest.read(folder).details["configs"]:
        runs = zoo.open(folder, config).runs.drop(columns="has_weights")  # which follows from the checkpoints
        records = list(dataset.records(f"{config}-runs"))
        assert len(records) == len(runs)
        for record, run in zip(records, runs.to_dict("records"), strict=True):
            for column, value in run.items():
                read = record[f"{config}-runs/{column}"]
                read = read.decode() if isinstance(read, bytes) else read
                assert read == value if isinstance(value, str) else read == pytest.approx(value, nan_ok=True)


def test_it_has_what_venues_ask_for_and_nothing_that_was_not_stated(zoo_folder):
    content = json.loads((zoo_folder / "croissant.json").read_text())
    assert all(content[f"rai:{field}"] for field in ASKED_FOR)
    assert not content.keys() & {"license", "creator", "datePublished", "url"}
    assert "48,000" in json.dumps(json.loads((ROOT / "small-transformer-zoo" / "croissant.json").read_text()))
    files = {each["@id"]: each["sha256"] for each in content["distribution"]}
    manifest = Manifest.read(zoo_folder)
    assert files == {
        name: entry.sha256 for name, entry in manifest.files.items() if name not in ("README.md", "croissant.json")
    }


@pytest.mark.long
def test_what_is_stated_is_in_card_and_croissant_and_survives_a_join(tmp_path, capsys):
    facts = ["--license", "cc-by-4.0", "--creators", "Ada Lovelace", "Charles Babbage"]
    own = publish_own_zoo(tmp_path, *facts, "--date-published", "2026-02-03", "--url", "https://example.org/zoo")
    content = json.loads((own / "croissant.json").read_text())
    assert content["license"] == "cc-by-4.0"
    assert [each["name"] for each in content["creator"]] == ["Ada Lovelace", "Charles Babbage"]
    assert (content["datePublished"], content["url"]) == ("2026-02-03", "https://example.org/zoo")
    assert "citeAs" not in content, "the paper does not describe a user's zoo"
    head, text = (own / "README.md").read_text().split("---\n")[1:]
    assert yaml.safe_load(head)["license"] == "cc-by-4.0"
    assert "The checkpoints are under the license `cc-by-4.0`" in text
    assert not mlcroissant.Dataset(own / "croissant.json").metadata.ctx.issues.errors
    fabricate_shard(tmp_path / "others", TINY_MNIST)
    publish([str(tmp_path / "others"), str(tmp_path / "other"), "--license", "cc-by-4.0"])
    join([str(own), str(tmp_path / "other"), str(tmp_path / "both")])
    joined = json.loads((tmp_path / "both" / "croissant.json").read_text())
    assert joined["license"] == "cc-by-4.0"
    assert "creator" not in joined, "only one of the two states it"
    assert {each["@id"] for each in joined["recordSet"]} == {"mnist-runs", "my-digits-runs"}
    assert _verify(tmp_path / "both") == []
    for option, wrong, fault in (
        ("--license", "my own\nlicense: mit", "a license is a name such as mit"),
        ("--date-published", "yesterday", "date_published is a day, YYYY-MM-DD: "),
        ("--date-published", "2026-13-01", "date_published is a day, YYYY-MM-DD: month must be in 1..12"),
    ):
        line = refusal(publish, [str(tmp_path / "others"), str(tmp_path / "out"), option, wrong], capsys)
        assert line.startswith(f"error: {fault}")
    assert not (tmp_path / "out").exists()


def recorded(folder: Path, name: str) -> None:
    """Makes the manifest fit a changed file: what only a look into the file can find."""
    manifest = Manifest.read(folder)
    Manifest(manifest.files | {name: FileEntry.of(folder / name, manifest.files[name].rows)}, manifest.details).write(
        folder
    )


def test_a_description_of_other_files_is_damage(spoiled):
    path = spoiled / "croissant.json"
    content = json.loads(path.read_text())
    wrong = content["distribution"][2]
    wrong["sha256"] = "0" * 64
    path.write_text(json.dumps(content))
    assert _verify(spoiled) == [f"{path} is damaged: {path.stat().st_size:,} bytes, manifest.json says {size(spoiled)}"]
    recorded(spoiled, "croissant.json")
    assert _verify(spoiled) == [f"{path} is damaged: size or SHA-256 of {wrong['@id']} is not the one in the manifest"]
    content["distribution"].append({"@id": 5, "sha256": "0" * 64, "contentSize": "1 B"})
    path.write_text(json.dumps(content))
    recorded(spoiled, "croissant.json")
    assert [line.partition("of ")[2].split()[0] for line in _verify(spoiled)] == ["5", wrong["@id"]]
    path.write_text('{"distribution": [3]}')
    recorded(spoiled, "croissant.json")
    assert _verify(spoiled) == [f"{path} is damaged: it is not a description of the zoo's files (TypeError)"]


def size(folder: Path) -> str:
    return f"{Manifest.read(folder).files['croissant.json'].bytes:,}"


def test_other_runs_in_the_parquet_file_are_damage(spoiled):
    path = spoiled / "mnist" / "runs.parquet"
    runs = pq.read_table(path)
    for table, fault in (
        (runs.set_column(0, "run_id", runs.column("run_id").take(list(reversed(range(80))))), "its rows are not those"),
        (runs.slice(1), "its rows are not those"),
    ):
        pq.write_table(table, path)
        recorded(spoiled, "mnist/runs.parquet")
        assert any(line.startswith(f"{path} is damaged: {fault}") for line in _verify(spoiled))
    path.write_bytes(b"PAR1 is not enough PAR1")
    recorded(spoiled, "mnist/runs.parquet")
    assert any(line.startswith(f"{path} is damaged: ") for line in _verify(spoiled))


def test_what_the_parquet_file_tells_pandas_is_not_obeyed(spoiled):
    path = spoiled / "mnist" / "runs.parquet"
    runs = pq.read_table(path)
    for told in (b"nothing", b"5", b'{"index_columns": 5}'):
        pq.write_table(runs.replace_schema_metadata({b"pandas": told}), path)
        recorded(spoiled, "mnist/runs.parquet")
        assert not any(line.startswith(str(path)) for line in _verify(spoiled))


def test_a_parquet_file_that_unpacks_to_more_than_the_runs_is_not_read(spoiled):
    path, length = spoiled / "mnist" / "runs.parquet", 100_000
    runs = pq.read_table(path)
    ends = pa.array(np.arange(len(runs) + 1, dtype=np.int32) * length)
    zeros = pa.ListArray.from_arrays(ends, pa.array(np.zeros(len(runs) * length, dtype=np.float32)))
    pq.write_table(runs.set_column(runs.schema.get_field_index("test_accuracy"), "test_accuracy", zeros), path)
    assert path.stat().st_size < 100_000
    recorded(spoiled, "mnist/runs.parquet")
    assert any(line.startswith(f"{path} is damaged: {path} unpacks to ") for line in _verify(spoiled))
