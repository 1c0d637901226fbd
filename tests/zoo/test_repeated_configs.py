"""A config in which every configuration was trained several times: no configuration is in two splits."""

import json
from collections import Counter
from pathlib import Path

import pytest

import zoo
from tests.fabricated import TINY_MNIST, fabricate_shard, publish
from zoo import describe, verify
from zoo.format.hyperparameters import CONFIGURATION, LATER, repeats_of
from zoo.format.manifest import MANIFEST_FILE, Manifest
from zoo.format.record import config_name, task_of
from zoo.format.splits import SPLITS, _split_of, splits_of
from zoo.join import _join

REPEATS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 configurations, four runs of each."""
    root = tmp_path_factory.mktemp("repeats")
    for shard in (0, 1):
        fabricate_shard(root / "runs", TINY_MNIST, shard=shard, count=24 * REPEATS, seeds=str(REPEATS))
    publish(root / "runs", root / "zoo")
    return root / "zoo"


def test_the_config_has_a_name_of_its_own() -> None:
    names = [config_name("agnews", seeds) for seeds in ("shared", "distinct", "16")]
    assert names == ["agnews", "agnews-seeds", "agnews-repeats"]
    assert [task_of(name) for name in names] == ["agnews"] * 3
    assert [repeats_of(seeds) for seeds in ("shared", "distinct", "16")] == [None, None, 16]


def test_all_repeats_of_a_configuration_are_in_one_split(folder: Path) -> None:
    seen: dict[tuple, set[str]] = {}
    runs: Counter[tuple] = Counter()
    for split in SPLITS:
        rows = zoo.open(folder, "mnist-repeats", split=split).metadata
        assert len(rows), split
        best = rows.loc[rows["checkpoint"] == "best"]
        for values in zip(*(best[name] for name in ("task", *CONFIGURATION)), strict=True):
            seen.setdefault(values, set()).add(split)
            runs[values] += 1
    assert len(seen) == 48
    assert {len(splits) for splits in seen.values()} == {1}
    assert set(runs.values()) == {REPEATS}


def test_the_split_is_the_hash_of_the_configuration() -> None:
    names = ("run_id", "task", *(name for name in CONFIGURATION if name not in LATER))
    row = dict(zip(names, ("a", "mnist", "adam", 1e-3, 1e-8, 0.1, 0.0, 0.7), strict=True)) | LATER
    text = '["mnist","adam",0.001,1e-08,0.1,0.0,0.7]'
    assert splits_of(lambda name: [row[name]], repeats=True) == [_split_of(text)]
    assert splits_of(lambda name: [row[name]], repeats=False) == [_split_of("a")]


def test_it_is_verified_described_and_loaded(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verify.main([str(folder)])
    describe.main([str(folder), "--config", "mnist-repeats"])
    printed = capsys.readouterr().out
    assert "mnist-repeats" in printed
    loaded = zoo.load_dataset(str(folder), "mnist-repeats")
    for split in SPLITS:
        count = len(loaded[split])
        assert f"│ {split}" in printed
        assert f" {count} │ " in next(line for line in printed.splitlines() if f"│ {split}" in line)
    card = (folder / "README.md").read_text()
    assert "**`mnist-repeats` has every configuration 4 times**" in card


def test_it_is_joined_with_other_configs(folder: Path, tmp_path: Path) -> None:
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=8)
    publish(tmp_path / "runs", tmp_path / "mnist")
    manifest = _join([folder, tmp_path / "mnist"], tmp_path / "both")
    assert list(manifest.details["configs"]) == ["mnist", "mnist-repeats"]
    verify.main([str(tmp_path / "both")])


def test_different_numbers_of_repeats_are_published_apart(tmp_path: Path) -> None:
    fabricate_shard(tmp_path / "runs", TINY_MNIST, shard=0, count=4, seeds="2")
    fabricate_shard(tmp_path / "runs", TINY_MNIST, shard=1, count=4, seeds="4")
    with pytest.raises(ValueError, match="mixes shards trained differently: seeds is '2' in shard-00000 and '4'"):
        publish(tmp_path / "runs", tmp_path / "out")


@pytest.mark.parametrize("seeds", ["shared", "1", "a few"])
def test_seeds_that_do_not_fit_the_config_are_refused(seeds: str, tmp_path: Path) -> None:
    shard = fabricate_shard(tmp_path / "runs", TINY_MNIST, count=4, seeds="2")
    manifest = Manifest.read(shard)
    Manifest(manifest.files, manifest.details | {"seeds": seeds}).write(shard)
    assert json.loads((shard / MANIFEST_FILE).read_text())
    with pytest.raises(ValueError, match=r"does not fit config 'mnist-repeats'|is damaged: unknown seeds"):
        publish(tmp_path / "runs", tmp_path / "out")
