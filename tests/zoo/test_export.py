"""Export: the same weights in other forms."""

import errno
import signal
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
import safetensors
import torch

import zoo
from tests.fabricated import folder_contents, publish
from tests.faults.rewriting import rewrite, set_value
from tests.refusal import refusal
from zoo.export import main
from zoo.format.schema import with_weights
from zoo.format.shard import CHECKPOINTS_FILE, RUNS_FILE
from zoo.reading.reader import ZooReader
from zoo.storage.atomic import atomic_file
from zoo.transformer.weights import TransformerWeights
from zoo.verify import _verify


@pytest.fixture(scope="module")
def reader(zoo_folder) -> zoo.ZooReader:
    return zoo.open(zoo_folder, "mnist", split="all")


def one(reader: zoo.ZooReader, row: int) -> str:
    run, checkpoint = reader.metadata.loc[row, "run_id"], reader.metadata.loc[row, "checkpoint"]
    return f"run_id == '{run}' and checkpoint == '{checkpoint}'"


def test_one_checkpoint_as_safetensors_with_its_metadata(reader, zoo_folder, tmp_path):
    main([str(zoo_folder), "mnist", str(tmp_path / "one.safetensors"), "--where", one(reader, 100)])
    with safetensors.safe_open(tmp_path / "one.safetensors", framework="pt") as file:
        metadata = file.metadata()
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert torch.equal(zoo.TransformerWeights.from_state_dict(reader.spec, state).flat(), reader.weights(100))
    assert metadata == {name: str(value) for name, value in reader.metadata.iloc[100].items()}


def test_the_name_of_a_file_decides_its_format(reader, zoo_folder, tmp_path):
    main([str(zoo_folder), "mnist", str(tmp_path / "one.pt"), "--where", one(reader, 100)])
    state = torch.load(tmp_path / "one.pt", weights_only=True)
    assert torch.equal(zoo.TransformerWeights.from_state_dict(reader.spec, state).flat(), reader.weights(100))


def test_a_folder_may_have_a_dot_in_its_name(reader, zoo_folder, tmp_path):
    (tmp_path / "v1.0").mkdir()
    main([str(zoo_folder), "mnist", str(tmp_path / "v1.0"), "--where", one(reader, 100)])
    assert [path.suffix for path in (tmp_path / "v1.0").iterdir()] == [".safetensors"]


def test_a_selection_as_state_dicts_that_the_model_loads(reader, zoo_folder, tmp_path, capsys):
    where = "optimizer == 'adam' and checkpoint == 'best'"
    main([str(zoo_folder), "mnist", str(tmp_path / "adam"), "--format", "torch", "--where", where])
    rows = reader.rows(where)
    assert f"{len(rows)} checkpoints in" in capsys.readouterr().out
    for row in rows:
        path = tmp_path / "adam" / f"{reader.metadata.loc[row, 'run_id']}-best.pt"
        state = torch.load(path, weights_only=True)
        model = zoo.ZooTransformer(reader.spec)
        model.load_state_dict(state)
        assert torch.equal(zoo.TransformerWeights.from_state_dict(reader.spec, state).flat(), reader.weights(row))
        assert path.stat().st_size < 4 * reader.spec.num_parameters + 20_000, "each tensor with the whole vector?"


def test_a_whole_config_as_parquet(zoo_folder, tmp_path):
    main([str(zoo_folder), "mnist", str(tmp_path), "--format", "parquet"])
    for split in ("train", "validation", "test"):
        part = zoo.open(zoo_folder, "mnist", split=split)
        table = pq.read_table(tmp_path / f"mnist-{split}.parquet")
        assert table.drop_columns(["weights"]).to_pandas().equals(part.metadata)
        weights = torch.tensor(table.column("weights").to_pylist(), dtype=torch.float32)
        assert torch.equal(weights, part.weights(slice(None)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mnist", "out", "--where", "test_accuracy > 2"], "test_accuracy lies between"),
        (["mnist", "out.safetensors"], "do not fit in the one file"),
        (["mnist", "out.safetensors", "--format", "torch"], "out.safetensors would be a torch file: name it *.pt"),
        (["mnist", "out.parquet"], "end it in .safetensors or .pt, or choose a --format"),
        (["mnist", "out.npz", "--where", "checkpoint == 'best'"], "the name out.npz does not show the format"),
        (["mnist", "out.parquet", "--format", "parquet"], "Parquet goes into a folder"),
        (["chess", "out"], "has no config 'chess'"),
        (["mnist", "out", "--where", "import os"], "cannot read"),
        (["mnist", "out", "--split", "holdout"], "unknown split"),
    ],
)
def test_bad_input_is_one_clear_line(zoo_folder, tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main([str(zoo_folder), *arguments])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_the_same_checkpoints_give_the_same_bytes(zoo_folder, tmp_path):
    for form in ("safetensors", "torch", "parquet"):
        where = "checkpoint == 'best' and test_accuracy >= 0.8"
        for name in ("once", "again"):
            main([str(zoo_folder), "mnist", str(tmp_path / name), "--format", form, "--where", where])
    assert folder_contents(tmp_path / "once") == folder_contents(tmp_path / "again")
    assert len(list((tmp_path / "once").glob("*.safetensors"))) > 3


def test_leftovers_of_a_killed_export_are_deleted_and_nothing_else(reader, zoo_folder, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    left = [f".{'0' * 16}-best.safetensors.abcd1234.part", f".{'1' * 16}-epoch_50.safetensors.x_y_z_12.part"]
    foreign = [".notes.txt.abcd1234.part", f".{'0' * 16}-best.pt.abcd1234.part", f"{'0' * 16}-best.safetensors.part"]
    for name in (*left, *foreign):
        (out / name).write_bytes(b"half")
    written = f"{'2' * 16}-best.safetensors"
    with atomic_file(out / written):
        main([str(zoo_folder), "mnist", str(out), "--where", one(reader, 0)])
        others = {path.name for path in out.iterdir()} - set(foreign)
        assert len(others) == 2, "the new file, and the one that is still being written"
    assert (out / written).is_file()
    assert {path.name for path in out.iterdir()} >= set(foreign)
    single = tmp_path / "one.safetensors"
    (tmp_path / ".one.safetensors.abcd1234.part").write_bytes(b"half")
    main([str(zoo_folder), "mnist", str(single), "--where", one(reader, 0)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.safetensors", "out"]


NO_RUN_IDS = ["../../outside", "/outside", "0" * 15, "0" * 17, "ABCDEF0123456789", "0123456789abcdef\n", "", None]


@pytest.mark.parametrize("run_id", NO_RUN_IDS)
def test_no_name_from_a_file_leads_out_of_the_folder(spoiled, tmp_path, run_id):
    if run_id == "/outside":
        run_id = str(tmp_path / "outside")
    for name in ("mnist/runs.arrow", "mnist/train-00000-of-00004.arrow"):
        rewrite(spoiled, name, set_value(0, run_id=run_id))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=r"row 0: the run_id is not 16 hexadecimal digits"):
        zoo.open(spoiled, "mnist")
    with pytest.raises(SystemExit):
        main([str(spoiled), "mnist", str(tmp_path / "deep" / "out")])
    assert sorted(tmp_path.rglob("*")) == before
    assert any("row 0: the run_id is not 16 hexadecimal digits" in line for line in _verify(spoiled))


@pytest.mark.parametrize("name", [RUNS_FILE, CHECKPOINTS_FILE])
def test_a_shard_with_a_path_for_a_run_id_is_not_published(runs, tmp_path, name):
    shard = runs / "mnist" / "shard-00000"
    rewrite(shard, name, set_value(3, run_id="../../outside"))
    with pytest.raises(ValueError, match=r"shard-00000/.*, row 3: the run_id is not 16 hexadecimal digits"):
        publish(runs, tmp_path / "out")


def test_an_unknown_checkpoint_is_not_exported(spoiled, tmp_path):
    rewrite(spoiled, "mnist/train-00000-of-00004.arrow", set_value(1, checkpoint="/../outside"))
    with pytest.raises(SystemExit):
        main([str(spoiled), "mnist", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", ["safetensors", "torch", "parquet"])
def test_a_failed_export_leaves_neither_a_file_nor_a_folder(zoo_folder, tmp_path, monkeypatch, capsys, form):
    """The disk is full at the third checkpoint, or in the second split."""
    written = iter(range(2 if form != "parquet" else 1))
    write = TransformerWeights.from_flat if form != "parquet" else with_weights

    def full(*arguments):
        if next(written, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*arguments)

    name = "zoo.reading.reader.with_weights" if form == "parquet" else "zoo.export.TransformerWeights.from_flat"
    monkeypatch.setattr(name, full)
    arguments = [str(zoo_folder), "mnist", str(tmp_path / "out"), "--format", form, "--where", "checkpoint == 'best'"]
    assert "No space left on device" in refusal(main, arguments, capsys)
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    main(arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.long
@pytest.mark.parametrize("form", ["safetensors", "parquet"])
def test_a_killed_export_leaves_no_folder_that_looks_finished(zoo_folder, tmp_path, form):
    out = tmp_path / "out"
    program = (
        "import os, signal; from zoo.export import main; flush, flushed = os.fsync, []\n"
        "def kill_later(handle):\n    flushed.append(handle)\n    flush(handle)\n"
        "    if len(flushed) == 3: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"os.fsync = kill_later; main([{str(zoo_folder)!r}, 'mnist', {str(out)!r}, '--format', {form!r}])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not out.exists()
    main([str(zoo_folder), "mnist", str(out), "--format", form])
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "the leftovers are gone"
    assert all(not path.name.startswith(".") for path in out.iterdir())


def test_one_export_has_the_splits_of_one_edition(made, tmp_path, monkeypatch):
    """Where the zoo is published again between two splits."""
    folder, runs = tmp_path / "zoo", []
    publish(made / "runs", folder)
    write = ZooReader.table

    def publish_again(*arguments):
        if not runs:
            publish(made / "runs", folder, splits="20/20/60")
        table = write(*arguments)
        runs.append(set(table.column("run_id").to_pylist()))
        return table

    monkeypatch.setattr("zoo.reading.reader.ZooReader.table", publish_again)
    main([str(folder), "mnist", str(tmp_path / "elsewhere" / "out"), "--format", "parquet"])
    assert len(runs) == 3
    assert sum(map(len, runs)) == len(set.union(*runs)), "no run is in two splits"
