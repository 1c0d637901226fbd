"""Joining zoos: the same zoo as published at once, and refusals in one line."""

import shutil

import pytest

from tests.fabricated import TINY_MNIST, fabricate_shard, folder_contents, publish
from tests.faults.rewriting import record
from zoo.format.manifest import FileEntry
from zoo.format.published import PublishedZoo
from zoo.join import _join, main
from zoo.verify import _verify


@pytest.fixture(scope="module")
def published_apart(made, tmp_path_factory):
    """One zoo per config, published from the runs of that config (and of its task's embedding) alone."""
    root = tmp_path_factory.mktemp("parts")
    for config in PublishedZoo.read(made / "small-transformer-zoo").configs:
        runs = root / f"runs-{config}"
        shutil.copytree(made / "runs", runs)
        for folder in runs.glob("*/shard-*"):
            if folder.parent.name != config:
                shutil.rmtree(folder)
        publish(runs, root / config)
    return root


@pytest.fixture
def parts(published_apart, tmp_path):
    """A copy to spoil."""
    shutil.copytree(published_apart, tmp_path, dirs_exist_ok=True)
    return [path for path in sorted(tmp_path.iterdir()) if not path.name.startswith("runs-")]


def test_joined_is_what_is_published_at_once(made, parts, tmp_path):
    assert len(parts) > 1
    _join(parts[::-1], tmp_path / "small-transformer-zoo")
    assert folder_contents(tmp_path / "small-transformer-zoo") == folder_contents(made / "small-transformer-zoo")
    _verify(tmp_path / "small-transformer-zoo")


def test_configs_keep_their_own_splits(made, parts, tmp_path):
    mnist = next(part for part in parts if part.name == "mnist")
    publish(tmp_path / "runs-mnist", mnist, splits="60/20/20")
    _join(parts, tmp_path / "out")
    shares = {name: config.splits for name, config in PublishedZoo.read(tmp_path / "out").configs.items()}
    assert shares == {"agnews": "70/15/15", "agnews-seeds": "70/15/15", "mnist": "60/20/20"}
    card = (tmp_path / "out" / "README.md").read_text()
    assert "60 / 20 / 20 % (`mnist`), 70 / 15 / 15 % (`agnews`, `agnews-seeds`) by the SHA-256" in card
    assert _verify(tmp_path / "out") == []


def test_the_target_may_be_one_of_the_parts(made, parts):
    target = parts[0].rename(parts[0].with_name("small-transformer-zoo"))
    _join([target, *parts[1:]], target)
    assert folder_contents(target) == folder_contents(made / "small-transformer-zoo")


def test_the_same_config_twice_is_refused(parts, tmp_path, capsys):
    fabricate_shard(tmp_path / "runs", TINY_MNIST, shard=7, count=9)
    publish(tmp_path / "runs", tmp_path / "other")
    with pytest.raises(SystemExit):
        main([*map(str, parts), str(tmp_path / "other"), str(tmp_path / "out")])
    assert capsys.readouterr().err.strip().endswith("has mnist and so has an earlier zoo: leave one of them out")
    assert not (tmp_path / "out").exists()


def test_another_embedding_is_refused(made, parts, tmp_path):
    agnews, other = (next(part for part in parts if part.name == config) for config in ("agnews", "agnews-seeds"))
    name = "agnews/vocabulary.json"
    (other / name).write_bytes((agnews / name).read_bytes().replace(b"[", b"[ ", 1))
    record(other, name, FileEntry.of(other / name))
    with pytest.raises(ValueError, match=r"vocabulary\.json is not the one of an earlier zoo"):
        _join([agnews, other], tmp_path / "out")


STRANGE = [
    "agnews/train-00009-of-00001.arrow",
    "agnews/runs.arrow",
    "agnews/vocabulary.json",
    "mnist/train-00009-of-00001.arrow",
    "mnist/notes.txt",
    "notes.txt",
]


@pytest.mark.parametrize("name", STRANGE)
def test_a_part_adds_no_file_to_another_config(parts, tmp_path, name):
    """A zoo of mnist that lists rows of agnews would put them into the joined zoo."""
    agnews, mnist = (next(part for part in parts if part.name == config) for config in ("agnews", "mnist"))
    (mnist / name).parent.mkdir(exist_ok=True)
    shutil.copy(mnist / "mnist/train-00000-of-00004.arrow", mnist / name)
    record(mnist, name, FileEntry.of(mnist / name, 64))
    with pytest.raises(ValueError, match=r"belongs to none of its configs|where .* should be"):
        _join([agnews, mnist], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert _verify(mnist) != []


def test_damage_is_found_before_it_is_copied(parts, tmp_path):
    path = parts[0] / next(name for name in PublishedZoo.read(parts[0]).manifest.files if name.endswith("runs.arrow"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"runs\.arrow is damaged"):
        _join(parts, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_zoo_that_is_published_again_meanwhile_is_not_mixed_with_the_old_one(parts, tmp_path, monkeypatch):
    def check_then_change(zoo, seen):
        path = zoo.folder / "README.md" if zoo.folder != parts[0] else next(zoo.folder.glob("*/runs.arrow"))
        path.write_bytes(b"another edition")
        return iter(())

    monkeypatch.setattr("zoo.join.zoo_faults", check_then_change)
    with pytest.raises(ValueError, match=r"runs.arrow changed while reading: wait for publishing to end"):
        _join(parts, tmp_path / "out")
    assert not (tmp_path / "out").exists()
