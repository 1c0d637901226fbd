"""Publishing: every row in its split, the same bytes every time, and refusals in one line."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

import zoo
from tests.fabricated import TINY_AGNEWS, TINY_MNIST, fabricate_embedding, fabricate_shard, folder_contents, publish
from zoo import describe
from zoo.format.manifest import Manifest
from zoo.format.published import PublishedZoo
from zoo.format.schema import CHECKPOINTS
from zoo.format.shard import CHECKPOINTS_FILE, Shard
from zoo.format.splits import SPLITS, _split_of
from zoo.join import _join
from zoo.publish import main
from zoo.reading.reader import MappedCheckpoints
from zoo.verify import _verify


def test_published_twice_is_the_same_bytes(made, tmp_path):
    publish(made / "runs", tmp_path / "small-transformer-zoo")
    assert folder_contents(tmp_path / "small-transformer-zoo") == folder_contents(made / "small-transformer-zoo")


def test_replacing_a_zoo_gives_the_same_bytes_as_starting_afresh(made, tmp_path):
    fabricate_shard(tmp_path / "other", TINY_MNIST, shard=7, count=9)
    publish(tmp_path / "other", tmp_path / "small-transformer-zoo")
    publish(made / "runs", tmp_path / "small-transformer-zoo")
    assert folder_contents(tmp_path / "small-transformer-zoo") == folder_contents(made / "small-transformer-zoo")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_every_row_of_a_completed_run_is_published_once_with_its_weights(made, zoo_folder):
    wanted = {}
    for folder in sorted((made / "runs" / "mnist").glob("shard-*")):
        status = dict(
            zip(*(Shard.read(folder).runs().column(name).to_pylist() for name in ("run_id", "status")), strict=True)
        )
        rows = MappedCheckpoints([folder / CHECKPOINTS_FILE], TINY_MNIST)
        weights = rows.gather(np.arange(len(rows)))
        for record, flat in zip(rows.table.to_pylist(), weights, strict=True):
            if status[record["run_id"]] == "completed":
                wanted[record["run_id"], record["checkpoint"]] = (record, flat)
    reader = zoo.open(zoo_folder, "mnist", split="all")
    assert len(reader) == len(wanted) == 77 * len(CHECKPOINTS)
    for row, record in enumerate(reader.metadata.to_dict("records")):
        expected, flat = wanted[record["run_id"], record["checkpoint"]]
        assert record == expected
        assert np.array_equal(reader.weights(row).numpy(), flat)


def test_a_light_zoo_has_the_checkpoints_that_were_named(made, tmp_path, capsys):
    main([str(made / "runs"), str(tmp_path / "light"), "--checkpoints", "best", "epoch_100"])
    assert _verify(tmp_path / "light") == []
    whole, light = (zoo.open(folder, "mnist") for folder in (made / "small-transformer-zoo", tmp_path / "light"))
    assert light.details.checkpoints == ("epoch_100", "best")
    assert light.details.usual_checkpoint == "epoch_100"
    rows = whole.rows("checkpoint == 'epoch_100' or checkpoint == 'best'")
    assert light.metadata.to_dict("records") == whole.metadata.iloc[rows].to_dict("records")
    assert np.array_equal(light.weights(slice(None)).numpy(), whole.weights(rows).numpy())
    with pytest.raises(SystemExit):
        main([str(made / "runs"), str(tmp_path / "other"), "--checkpoints", "epoch_7"])
    assert "are epoch_50, epoch_75, epoch_100, best, got epoch_7" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_a_config_whose_runs_all_diverged_keeps_others_readable(tmp_path):
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=2, diverged=2)
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=8, seeds="distinct")
    publish(tmp_path / "runs", tmp_path / "zoo")
    assert _verify(tmp_path / "zoo") == []
    configs = yaml.safe_load((tmp_path / "zoo" / "README.md").read_text().split("---\n")[1])["configs"]
    assert [config["config_name"] for config in configs] == ["mnist-runs", "mnist-seeds", "mnist-seeds-runs"]
    assert all(config["data_files"] for config in configs)
    describe.main([str(tmp_path / "zoo"), "--plots", str(tmp_path / "plots")])
    assert not (tmp_path / "plots" / "curves.mnist.png").exists()
    assert (tmp_path / "plots" / "curves.mnist-seeds.png").exists()


def test_diverged_runs_are_in_the_runs_and_in_no_split(zoo_folder):
    reader = zoo.open(zoo_folder, "mnist", split="all")
    diverged = reader.runs[reader.runs["status"] == "diverged"]
    assert len(diverged) == 3
    assert not set(diverged["run_id"]) & set(reader.metadata["run_id"])
    assert set(reader.runs["wall_seconds"]) == {2.0}


def test_adding_shards_moves_no_run_between_splits(made, tmp_path):
    runs = tmp_path / "runs"
    shutil.copytree(made / "runs" / "mnist" / "shard-00000", runs / "mnist" / "shard-00000")
    publish(runs, tmp_path / "out")
    before = splits_by_run(tmp_path / "out")
    for shard in range(1, 4):
        fabricate_shard(runs, TINY_MNIST, shard=shard, count=40)
    publish(runs, tmp_path / "out")
    after = splits_by_run(tmp_path / "out")
    assert before.items() <= after.items()
    assert len(after) == 38 + 3 * 40


def splits_by_run(folder: Path) -> dict[str, str]:
    return {run: split for split in SPLITS for run in zoo.open(folder, "mnist", split=split).metadata["run_id"]}


def test_splits_hold_70_15_15_percent_of_many_runs():
    counts = Counter(_split_of(f"run {number}") for number in range(20_000))
    assert [counts[split] / 20_000 for split in SPLITS] == pytest.approx([0.70, 0.15, 0.15], abs=0.01)
    # a change here would move every published run
    assert [_split_of(run) for run in ("a", "b", "c", "d", "e", "f")] == [
        "validation",
        "train",
        "train",
        "train",
        "train",
        "train",
    ]


def test_other_splits_are_in_the_manifest_and_verified(made, tmp_path):
    main([str(made / "runs"), str(tmp_path / "wide"), "--splits", "40/30/30"])
    wide, usual = (PublishedZoo.read(folder) for folder in (tmp_path / "wide", made / "small-transformer-zoo"))
    assert all(config.rows["test"] > usual.config(name).rows["test"] for name, config in wide.configs.items())
    assert "40 / 30 / 30 % by the SHA-256" in (tmp_path / "wide" / "README.md").read_text()
    assert _verify(tmp_path / "wide") == []
    before, after = splits_by_run(made / "small-transformer-zoo"), splits_by_run(tmp_path / "wide")
    assert {after[run] for run, split in before.items() if split == "test"} == {"test"}, "a share grows at one end"
    reader = zoo.open(tmp_path / "wide", "mnist", split="test")
    assert set(reader.details.splits_of(reader.metadata.__getitem__)) == {"test"}
    main([str(made / "runs"), str(tmp_path / "small-transformer-zoo"), "--splits", "70/15/15"])
    assert folder_contents(tmp_path / "small-transformer-zoo") == folder_contents(made / "small-transformer-zoo")
    # rows in the splits that another rule gives are a fault
    manifest = Manifest.read(tmp_path / "wide")
    del manifest.details["configs"]["mnist"]["splits"]
    manifest.write(tmp_path / "wide")
    assert any("the run does not belong in test" in fault for fault in _verify(tmp_path / "wide"))


@pytest.mark.parametrize("splits", ["60/20", "60/20/10", "100/0/0", "60/20/20/0", "60,20,20", "-10/60/50", "6e1/20/20"])
def test_bad_splits_are_one_clear_line(made, tmp_path, splits, capsys):
    line = refusal(capsys, made / "runs", tmp_path / "out", f"--splits={splits}")
    assert f"three positive percentages that add up to 100, such as 60/20/20, got '{splits}'" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_large_splits_are_cut_into_files_of_512_rows(tmp_path):
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=1200)
    publish(tmp_path / "runs", tmp_path / "out")
    published = PublishedZoo.read(tmp_path / "out")
    rows = [published.manifest.files[name].rows for name in published.files("mnist", "train")]
    assert rows[:-1] == [512] * (len(rows) - 1)
    assert published.files("mnist", "train")[0] == f"mnist/train-00000-of-{len(rows):05d}.arrow"
    assert len(published.files("mnist", "test")) > 2


def test_the_manifest_covers_every_file(zoo_folder):
    manifest = Manifest.read(zoo_folder)
    assert set(folder_contents(zoo_folder)) == manifest.files.keys() | {"manifest.json"}
    assert manifest.details["configs"]["mnist"]["spec"] == TINY_MNIST.to_dict()
    assert {"agnews/embedding.safetensors", "agnews/vocabulary.json"} <= manifest.files.keys()


def test_the_card_names_a_stand_in(zoo_folder, tmp_path):
    card = (zoo_folder / "README.md").read_text()
    assert "**`mnist` is a stand-in**" in card
    assert "{{" not in card
    fabricate_shard(tmp_path / "runs", TINY_MNIST, preset="paper")
    publish(tmp_path / "runs", tmp_path / "out")
    assert "stand-in" not in (tmp_path / "out" / "README.md").read_text()


def test_an_unfinished_shard_is_skipped_with_a_line(made, runs, tmp_path, capsys):
    (runs / "mnist" / "shard-00002").mkdir()
    main([str(runs), str(tmp_path / "small-transformer-zoo")])
    assert "skipped" in (error := capsys.readouterr().err)
    assert "shard-00002: unfinished" in error
    assert folder_contents(tmp_path / "small-transformer-zoo") == folder_contents(made / "small-transformer-zoo")


def refusal(capsys, *arguments: object) -> str:
    """The one line with which publish refuses."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    return error


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("preset", "lite"),
        ("protocol", {"epochs": 3}),
        ("data_source", "elsewhere"),
        ("spec", replace(TINY_MNIST, dim=6).to_dict()),
    ],
)
def test_a_mixture_of_shards_is_refused(runs, tmp_path, capsys, name, value):
    folder = runs / "mnist" / "shard-00001"
    manifest = Manifest.read(folder)
    Manifest(manifest.files, manifest.details | {name: value}).write(folder)
    assert f"mixes shards trained differently: {name} is" in refusal(capsys, runs, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_damaged_shards_are_refused_by_name(runs, tmp_path, capsys):
    path = runs / "mnist" / "shard-00001" / CHECKPOINTS_FILE
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert f"{path} is damaged" in refusal(capsys, runs, tmp_path / "out")
    path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    assert f"{path} is damaged" in refusal(capsys, runs, tmp_path / "out")
    path.unlink()
    assert f"{path} is missing" in refusal(capsys, runs, tmp_path / "out")


def test_the_same_shard_twice_is_refused(runs, tmp_path, capsys):
    shutil.copytree(runs / "mnist" / "shard-00000", runs / "mnist" / "shard-00005")
    assert "shard-00005 are both shard 0" in refusal(capsys, runs, tmp_path / "out")


def test_another_embedding_than_the_shards_is_refused(runs, tmp_path, capsys):
    fabricate_embedding(TINY_AGNEWS, words=10).save(runs / "agnews")
    assert "is not the embedding that" in refusal(capsys, runs, tmp_path / "out")


def test_wrong_folders_are_refused(made, tmp_path, capsys):
    runs = made / "runs"
    assert "is not a folder" in refusal(capsys, tmp_path / "absent", tmp_path / "out")
    assert "none to publish" in refusal(capsys, tmp_path, tmp_path / "out")
    assert "inside one another" in refusal(capsys, runs, runs / "out")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.tex").touch()
    assert "is there and is not a zoo: name a folder" in refusal(capsys, runs, tmp_path / "precious")
    assert (tmp_path / "precious" / "thesis.tex").exists()


def test_a_zoo_with_further_configs_is_not_replaced(spoiled, tmp_path, capsys):
    """Neither by a zoo of other shards nor by a joined one."""
    before = (spoiled / "manifest.json").read_bytes()
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=5)
    line = refusal(capsys, tmp_path / "runs", spoiled)
    assert "has agnews too, which would be lost: name another folder or delete it\n" in line
    publish(tmp_path / "runs", tmp_path / "part")
    with pytest.raises(ValueError, match="has agnews too, which would be lost"):
        _join([tmp_path / "part"], spoiled)
    assert (spoiled / "manifest.json").read_bytes() == before


def test_a_foreign_file_in_the_old_zoo_is_not_lost(made, spoiled, capsys):
    (spoiled / "notes.txt").write_text("mine")
    assert "notes.txt is not part of the zoo and would be lost" in refusal(capsys, made / "runs", spoiled)
    assert (spoiled / "notes.txt").read_text() == "mine"


def test_a_repository_has_an_owner(made, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_invented")
    assert "should be OWNER/NAME" in refusal(capsys, made / "runs", tmp_path / "out", "--push-to-hub", "zoo")


def test_a_shard_manifest_of_the_wrong_kind_is_named(runs, tmp_path, capsys):
    folder = runs / "mnist" / "shard-00000"
    manifest = Manifest.read(folder)
    for spoil, message in [
        ({"kind": "zoo"}, "does not belong to a shard"),
        ({"config": "agnews"}, "belongs to config 'agnews'"),
        ({"task": "chess"}, "the task is 'chess', but its spec is that of 'mnist'"),
        ({"seeds": "distinct"}, "which does not fit config"),
    ]:
        Manifest(manifest.files, manifest.details | spoil).write(folder)
        assert message in refusal(capsys, runs, tmp_path / "out")
    (folder / "manifest.json").write_text(json.dumps({"files": 3}))
    assert "manifest.json is damaged" in refusal(capsys, runs, tmp_path / "out")
