"""Hostile files of at most 1 MB on the writing side: one line, in two seconds and little memory."""

import json
import os
from pathlib import Path

import pytest

import zoo
from benchmarks.trial import _read as read_trials
from generation.shard import _delete_snapshots, _load_snapshot, _save_snapshot
from nfn.predictors.storage import load_predictor
from tests.fabricated import TINY_MNIST
from tests.faults.limits import within_limits
from tests.faults.readers import OWNER, STATE, make_predictor, make_shard, make_zoo
from tests.faults.rewriting import change_manifest, rewrite, set_value
from zoo import describe, publish, verify
from zoo.command import _guarded

SNAPSHOT = f"state-{OWNER[:8]}-00003.safetensors"


@_guarded
def resume(arguments: list[str] | None = None) -> None:
    """Looks for a snapshot in a folder and writes a new one, as training does."""
    assert arguments is not None
    folder = Path(arguments[0])
    print("nothing" if _load_snapshot(folder, OWNER, STATE) is None else "resumed")
    _save_snapshot(folder, STATE, OWNER, seconds=1.0)
    _delete_snapshots(folder)


@_guarded
def predict(arguments: list[str] | None = None) -> None:
    assert arguments is not None
    load_predictor(arguments[0])


@_guarded
def find_trials(arguments: list[str] | None = None) -> None:
    assert arguments is not None
    read_trials(Path(arguments[0]))


@pytest.mark.long
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_training_ignores_snapshots_that_are_not_files(tmp_path: Path, make) -> None:
    for epoch in (0, 3):  # the one it will write, and one that seems newer
        make(tmp_path / SNAPSHOT.replace("00003", f"{epoch:05d}"))
    outcome = within_limits(resume, [str(tmp_path)])
    assert outcome.code == 0
    assert f"note: {tmp_path / SNAPSHOT} is not used: it is not a file" in outcome.text
    assert "nothing" in outcome.text
    assert (tmp_path / SNAPSHOT).exists(), "what is not ours is not deleted"


@pytest.mark.long
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_a_trial_that_is_not_a_file_is_named(tmp_path: Path, make) -> None:
    make(tmp_path / "mnist.mlp.safetensors")
    outcome = within_limits(find_trials, [str(tmp_path / "mnist.mlp.safetensors")])
    assert outcome.code == 2
    assert "is not a file: move it away" in outcome.text


@pytest.mark.long
@pytest.mark.parametrize("layers", [3_000, 300_000])
def test_a_predictor_of_thousands_of_layers_is_refused_at_once(tmp_path: Path, layers: int) -> None:
    make_predictor(tmp_path)
    config = {"kind": "transformer_nfn", "spec": TINY_MNIST.to_dict(), "components": None, "channels": [1] * layers}
    (tmp_path / "config.json").write_text(json.dumps(config))
    outcome = within_limits(predict, [str(tmp_path)])
    assert outcome.code == 2
    assert outcome.text == f"error: Transformer-NFN has 1 to 16 equivariant layers, got {layers} channels\n"


def build_from(folder: Path) -> None:
    reader = zoo.open(folder, "mnist", split="all")
    zoo.build_model(reader.spec, reader.weights(0))


def test_a_spec_of_ten_million_tokens_is_refused_before_a_model_is_built(tmp_path: Path) -> None:
    make_zoo(tmp_path)
    tokens = {"spec": TINY_MNIST.to_dict() | {"tokens": 10_000_000}}
    change_manifest(tmp_path / "zoo", lambda manifest: manifest["details"]["configs"]["mnist"].update(tokens))
    outcome = within_limits(build_from, tmp_path / "zoo")
    assert outcome.code == 1
    assert "10,000,000 tokens" in outcome.text.splitlines()[-1]


@pytest.mark.parametrize(
    "task_file", ["a" + ".a" * 30_000 + " = 1", "a = " + "{a.a.a.a.a = " * 300 + "1" + "}" * 300], ids=["key", "tables"]
)
def test_a_task_file_of_thousands_of_levels_is_refused_at_once(tmp_path: Path, task_file: str) -> None:
    make_zoo(tmp_path)
    change = {"task": "deep", "task_file": task_file, "spec": TINY_MNIST.to_dict() | {"task": "deep"}}
    change_manifest(tmp_path / "zoo", lambda manifest: manifest["details"]["configs"]["mnist"].update(change))
    outcome = within_limits(verify.main, [str(tmp_path / "zoo")])
    assert outcome.code == 2
    assert "task_file is not TOML: " in outcome.text
    assert len(outcome.text.splitlines()) == 1


@pytest.mark.parametrize("run_id", [None, "../" * 30_000], ids=["null", "path"])
def test_every_command_refuses_faulty_runs_in_one_line(tmp_path: Path, run_id: str | None) -> None:
    change = set_value(0, run_id=run_id)
    make_shard(tmp_path / "runs")
    rewrite(tmp_path / "runs" / "mnist" / "shard-00000", "runs.arrow", change)
    make_zoo(tmp_path / "made")
    rewrite(tmp_path / "made" / "zoo", "mnist/runs.arrow", change)
    runs, made, out = (str(path) for path in (tmp_path / "runs", tmp_path / "made" / "zoo", tmp_path / "out"))
    commands = ((publish.main, [runs, out], 2), (verify.main, [made], 1), (describe.main, [made, "--details"], 2))
    for main, words, code in commands:
        outcome = within_limits(main, words)
        assert outcome.code == code
        assert "runs.arrow, row 0: the run_id is not 16 hexadecimal digits" in outcome.text
