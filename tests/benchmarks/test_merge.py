"""benchmarks.merge: barriers and merged losses of repeated runs, from a zoo that was really trained."""

import contextlib
from pathlib import Path

import numpy as np
import pytest
import torch

import nfn
import zoo
from benchmarks import results
from benchmarks.merge import _draw, _measure, _merged_losses, _Options, _rows_of, _ways, main
from benchmarks.speed.training import _random_task
from generation.run import main as run
from tests.fabricated import TINY_SHAKESPEARE
from tests.generation.small_tasks import write_lines
from tests.refusal import refusal
from zoo.publish import main as publish
from zoo.tasks.evaluation import load_task
from zoo.transformer.weights import TransformerWeights


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A zoo of language models, each configuration trained with three seeds."""
    folder = tmp_path_factory.mktemp("merge")
    write_lines(folder)
    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as unannounced:
        unannounced.setattr("generation.shard.estimate_seconds", lambda *_, **__: (0.0, "torch"))
        task = Path("lines.toml")
        task.write_text(task.read_text().replace('seeds = "distinct"', "seeds = 3"))
        run(["--task", "lines.toml", "--shard", "0", "--device", "cpu", "--out", "runs"])
        publish(["runs", "zoo"])
    return folder


def test_lines_and_merged_models_are_measured(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    options = ["--zoo", "zoo", "--config", "lines-repeats", "--pairs", "3", "--points", "3", "--steps", "3"]
    main([*options, "--where", "optimizer == 'adam' and dropout > 0", "--device", "cpu", "--out", str(tmp_path)])
    rows = results.read("merge", tmp_path)
    barriers = {row.variant: row for row in rows if row.metric == "barrier"}
    assert barriers.keys() == {"plain", "permutations", "paper", "whole", "answers", "data"}
    assert all(row.n == 3 and row.value > -1e-3 for row in barriers.values())
    assert {row.variant for row in rows if row.metric == "accuracy_barrier"} == barriers.keys()
    ends = {row.value for row in rows if row.metric == "loss_of_ends"}
    assert np.ptp(list(ends)) < 1e-3, "no way changes the function at the ends"
    merged = {row.variant for row in rows if row.metric == "merged_loss" and row.setting["members"] == 2}
    assert merged == {*barriers, "best member", "ensemble"}
    assert (tmp_path / "merge.lines-repeats.png").read_bytes().startswith(b"\x89PNG")


def test_the_checkpoint_is_the_last_one_that_most_runs_have(folder: Path):
    whole = zoo.open(folder / "zoo", "lines-repeats", split="all")
    assert set(_rows_of(whole, _Options(config="lines-repeats"))["checkpoint"]) == {"epoch_3"}
    thinned = zoo.open("small-transformer-zoo", "mnist", split="all")
    rows = _rows_of(thinned, _Options(config="mnist"))
    assert set(rows["checkpoint"]) == {"epoch_75"}
    assert len(rows) == rows["run_id"].nunique() == 320


def test_two_merged_runs_are_the_middle_of_the_line_between_them(folder: Path, tmp_path: Path):
    """By every way: the first run of each configuration stays as it is."""
    reader = zoo.open(folder / "zoo", "lines-repeats", split="all")
    with contextlib.chdir(folder):
        task = load_task(reader.details.definition(folder), folder, lambda: folder)
    rows = reader.metadata.query("checkpoint == 'epoch_3' and optimizer == 'adam' and dropout > 0")
    groups = [list(group) for group in rows.groupby("learning_rate").groups.values()]
    ways = _ways(task, steps=0)
    ((count, losses),) = _merged_losses(reader, task, task.test, groups, ways)
    assert count == 2
    first, second = (TransformerWeights.from_flat(reader.spec, reader.weights([g[n] for g in groups])) for n in (0, 1))
    made_up = nfn.made_up_inputs(first)
    for way, align in ways.items():
        middle = nfn.interpolate(align(second, first, made_up), first, 0.5)
        assert losses[way] == pytest.approx(_measure(task, task.test, middle.flat())[0].tolist(), rel=1e-5), way


def test_the_plain_barrier_is_that_of_the_formula(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    options = ["--zoo", "zoo", "--config", "lines-repeats", "--pairs", "1", "--points", "1", "--examples", "10000"]
    options += ["--steps", "0", "--where", "optimizer == 'adam' and dropout > 0"]
    main([*options, "--device", "cpu", "--out", str(tmp_path)])
    (row,) = [row for row in results.read("merge", tmp_path) if (row.metric, row.variant) == ("barrier", "plain")]
    reader = zoo.open("zoo", "lines-repeats", split="all")
    rows = reader.metadata.query(f"checkpoint == '{row.setting['checkpoint']}' and optimizer == 'adam' and dropout > 0")
    groups = rows.groupby(["optimizer", "learning_rate", "dropout", "train_fraction"], sort=False).groups
    ((one, other),) = _draw([list(group) for group in groups.values()], 1)
    u, v = (zoo.TransformerWeights.from_flat(reader.spec, reader.weights(number)) for number in (one, other))
    losses = [
        zoo.evaluate(zoo.build_model(reader.spec, w), "lines.toml", data=folder).loss
        for w in (u, nfn.interpolate(u, v, 0.5), v)
    ]
    assert row.value == pytest.approx(max(losses) - (losses[0] + losses[2]) / 2, abs=1e-4)


def test_the_loss_of_an_ensemble_is_that_of_the_mean_probability():
    task = _random_task(TINY_SHAKESPEARE, 4, 130)
    flat = torch.randn(3, TINY_SHAKESPEARE.num_parameters, generator=torch.Generator().manual_seed(0))
    inputs, labels = task.test.inputs.long(), task.test.labels
    with torch.no_grad():
        each = torch.stack([zoo.build_model(TINY_SHAKESPEARE, one)(inputs).double().log_softmax(-1) for one in flat])
    of_mean = -each.exp().mean(0).log().gather(-1, labels[..., None]).mean()
    ensemble = _measure(task, task.test, flat, ensemble=True)[:, 0]
    right = (each.exp().mean(0).argmax(-1) == labels).double().mean()
    assert ensemble.tolist() == pytest.approx([float(of_mean), float(right)], rel=1e-5)
    of_each = -each.gather(-1, labels[..., None].expand(3, *labels.shape, 1)).flatten(1).mean(1)
    torch.testing.assert_close(_measure(task, task.test, flat)[0].double(), of_each, rtol=1e-5, atol=0)


def test_pairs_are_of_one_group_each_and_all_different():
    groups = [[1, 2, 3], [4, 5, 6]]
    pairs = _draw(groups, 6)
    assert len(set(pairs)) == 6
    assert all(any({one, other} <= set(group) for group in groups) for one, other in pairs)
    assert _draw(groups, 4) == _draw(groups, 4)
    many = _draw([list(range(1000))], 50)
    assert len(many) == 50
    assert all(one != other for one, other in many)


def test_bad_input_gets_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(folder)
    options = ["--zoo", "zoo", "--config", "lines-repeats"]
    assert "has no checkpoint 'epoch_9': it has epoch_1" in refusal(main, [*options, "--checkpoint", "epoch_9"], capsys)
    assert "no checkpoint of lines-repeats, all splits, fits" in refusal(
        main, [*options, "--where", "seed < 0"], capsys
    )


@pytest.mark.long
def test_a_merged_model_is_a_model_of_the_zoo(folder: Path):
    reader = zoo.open(folder / "zoo", "lines-repeats", split="all")
    members = [zoo.TransformerWeights.from_flat(reader.spec, reader.weights(row)) for row in (0, 3, 6)]
    merged = nfn.merge(members)
    assert merged.flat().dtype == torch.float32
    text = zoo.build_model(reader.spec, merged)(torch.zeros(1, 4, dtype=torch.int64))
    assert bool(text.isfinite().all())
