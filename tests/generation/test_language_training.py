"""Training of language models: which windows are read, which epoch is the best, what is measured, what is resumed."""

import math
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import torch
from slow_twin import RunResult
from small_tasks import TINY_LINES, few_lines, write_lines, write_texts
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import zoo
from generation.data import TrainingRows, epoch_batches, load_task_data
from generation.job import Job
from generation.population.torch_engine import TorchEngine, _bytes_per_example
from generation.population.trainer import PopulationTrainer
from generation.protocol import Preset, Protocol, RunConfig
from generation.run import main as run
from generation.shard import _runs_table, train_shard
from generation.sweep import Sweep
from generation.task import named_task
from zoo.format.schema import LANGUAGE_LABELS
from zoo.format.shard import CHECKPOINTS_FILE
from zoo.publish import main as publish
from zoo.tasks.evaluation import measure
from zoo.tasks.examples import RawCharacters, TaskData
from zoo.tasks.language import language_labels
from zoo.verify import main as verify

CONFIG = RunConfig(
    task="lines", optimizer="adam", learning_rate=1e-2, init_std=0.2, protocol=Protocol(4, 1, batch_size=16)
)


def test_an_epoch_passes_through_a_part_of_the_text_again_and_again() -> None:
    task, protocol = few_lines(train=100, test=20), Protocol(batch_size=16)
    whole, part = TrainingRows.of(task, 1.0), TrainingRows.of(task, 0.3)
    assert part.rows.tolist() == list(range(30)), "the first part of the text"
    seen = [epoch_batches(part, protocol, epoch).rows for epoch in (0, 1)]
    assert len(seen[0]) == len(epoch_batches(whole, protocol, 0)) == 100 // 16
    assert not torch.equal(*seen)
    for batches in seen:
        order = batches.flatten().tolist()
        assert set(Counter(order).values()) == {3, 4}, "96 windows are read, each of the 30 equally often, up to one"
        passes = [order[start : start + 30] for start in (0, 30, 60)]
        assert all(sorted(each) == list(range(30)) for each in passes)
        assert len({tuple(each) for each in passes}) == 3, "each time in another order"
    assert max(Counter(epoch_batches(whole, protocol, 0).rows.flatten().tolist()).values()) == 1


def test_best_is_the_first_epoch_of_the_lowest_loss_as_it_is_stored(lines: TaskData) -> None:
    """The curve is stored in float32: losses that are equal there are equal, or the zoo would contradict itself."""
    trainer = PopulationTrainer(TorchEngine([CONFIG], lines))
    losses = [2.0, 1.5, 1.5 - 1e-9, 1.6]
    for epoch, loss in enumerate(losses):
        trainer.state.weights[:] = epoch + 1
        accuracy = torch.tensor([0.1 * epoch], dtype=torch.float64)
        trainer._record(torch.ones(1, dtype=torch.float64), accuracy, torch.tensor([loss], dtype=torch.float64))
    assert trainer.state.best_epoch.tolist() == [2]
    assert set(trainer.state.checkpoints[-1].flatten().tolist()) == {2.0}
    stored = _runs_table(trainer, shard=0)["test_loss"].to_pylist()[0]
    assert stored.index(min(stored)) + 1 == 2
    assert RunResult(test_loss=losses, test_accuracy=[0.0, 0.1, 0.2, 0.3], by_loss=True).best_epoch == 2


@pytest.mark.parametrize(("fraction", "windows"), [(1.0, 20), (0.1, 10)])
def test_train_loss_is_that_of_the_first_windows_at_most_as_many_as_to_test(fraction: float, windows: int) -> None:
    task, config = few_lines(train=100, test=20), replace(CONFIG, train_fraction=fraction)
    trainer = PopulationTrainer(TorchEngine([replace(config, protocol=Protocol(1, 1, batch_size=16))], task))
    trainer.train_epoch()
    model = zoo.build_model(task.spec, trainer.state.checkpoints[-1, 0])
    expected = measure(model, task, task.train[slice(windows)], 100).loss
    assert float(trainer.measure_checkpoints()["train_loss"][-1, 0]) == pytest.approx(expected, rel=1e-5)
    assert expected != pytest.approx(measure(model, task, task.train, 100).loss, rel=1e-3)


def slow_labels(task: TaskData, weights: torch.Tensor) -> tuple[float, float, float, float]:
    """Early and late loss, divergence from the bigrams and loss of repeated sequences, one position at a time."""
    spec, model = task.spec, zoo.build_model(task.spec, weights.double())
    follows = Counter(zip(task.train.inputs.flatten().tolist(), task.train.labels.flatten().tolist(), strict=True))
    leads = Counter(task.train.inputs.flatten().tolist())
    early, late, divergence, repeated = [], [], [], []
    everything = torch.log_softmax(model(task.test.inputs), dim=-1).tolist()
    for window in range(min(256, len(task.test))):
        inputs, labels = task.test.inputs[window].tolist(), task.test.labels[window].tolist()
        for place, (token, label, logs) in enumerate(zip(inputs, labels, everything[window], strict=True)):
            if place < max(1, spec.tokens // 8):
                early.append(-logs[label])
            if place >= spec.tokens // 2:
                late.append(-logs[label])
            table = [(follows[token, other] + 1) / (leads[token] + spec.classes) for other in range(spec.classes)]
            divergence.append(sum(math.exp(log) * (log - math.log(p)) for log, p in zip(logs, table, strict=True)))
    half = spec.tokens // 2
    first = torch.randint(spec.classes, (64, half), generator=torch.Generator().manual_seed(0)).tolist()
    everything = torch.log_softmax(model(torch.tensor([(row + row)[:-1] for row in first])), dim=-1).tolist()
    for row, likelihoods in zip(first, everything, strict=True):
        repeated += [-likelihoods[half + place - 1][row[place]] for place in range(half)]
    early, late, divergence, repeated = (sum(each) / len(each) for each in (early, late, divergence, repeated))
    return early, late, divergence, repeated


@pytest.mark.parametrize(("tokens", "test", "logits"), [(8, 10, 1 << 24), (17, 40, 5000), (2, 260, 1 << 24)])
def test_labels_are_those_of_plain_loops(tokens: int, test: int, logits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoo.transformer.population._MOST_LOGITS", logits)
    task = few_lines(train=60, test=test, spec=replace(TINY_LINES, tokens=tokens))
    weights = 0.5 * torch.randn(18, task.spec.num_parameters)  # more than are measured at once
    measured = language_labels(task, weights)
    assert tuple(measured) == LANGUAGE_LABELS
    for index in (0, 17):
        actual = [float(values[index]) for values in measured.values()]
        assert actual == pytest.approx(slow_labels(task, weights[index]), abs=1e-5)


class LargestTensor(TorchDispatchMode):
    """How many numbers the largest tensor has that torch makes."""

    numbers = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        made = [part for part in tree_leaves(result) if isinstance(part, torch.Tensor) and not part.is_sparse]
        self.numbers = max([self.numbers, *(part.untyped_storage().nbytes() // part.itemsize for part in made)])
        return result


def test_a_large_vocabulary_is_measured_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """60 windows have 4.8 million logits per model, and a table of bigrams would have 25 million counts."""
    monkeypatch.setattr("zoo.transformer.population._MOST_LOGITS", 1 << 22)
    monkeypatch.setattr("zoo.tasks.evaluation.single_threaded_workers", lambda _: nullcontext(SimpleNamespace(map=map)))
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    characters = "".join(chr(0x4E00 + index) for index in range(5000))
    order = torch.randint(5000, (60 * 16 + 1,), generator=torch.Generator().manual_seed(0)).tolist()
    spec = replace(TINY_LINES, tokens=16, classes=5000, vocabulary=5000)
    task = RawCharacters(2 * characters, "".join(characters[i] for i in order), characters, "", "").as_task(spec)
    weights, alive = 0.5 * torch.randn(2, spec.num_parameters), torch.ones(2, dtype=torch.bool)
    engine, model = TorchEngine([CONFIG] * 2, task), zoo.build_model(spec, weights[0])

    def measured() -> tuple[dict[str, torch.Tensor], list[float]]:
        accuracy, loss = measure(model, task, task.test, 100)
        accuracies, losses = engine.evaluate(weights, alive, task.test)
        return language_labels(task, weights), [accuracy, float(accuracies[0]), loss, float(losses[0])]

    with LargestTensor() as largest:
        labels, evaluations = measured()
    assert largest.numbers <= 1 << 22
    assert evaluations[::2] == pytest.approx(evaluations[1::2], rel=1e-6)
    monkeypatch.setattr("zoo.transformer.population._MOST_LOGITS", 1 << 40)
    with LargestTensor() as largest:
        whole, whole_evaluations = measured()
    assert largest.numbers > 1 << 22, "at once it is too much"
    assert whole_evaluations == pytest.approx(evaluations, rel=1e-6)
    for name, values in labels.items():
        torch.testing.assert_close(values, whole[name], rtol=1e-6, atol=0)


def test_the_logits_of_a_large_vocabulary_count_for_the_memory_of_a_pass() -> None:
    """64 positions of 4,000 logits each are more than all activations of the blocks."""
    large = replace(zoo.SHAKESPEARE, classes=4000, vocabulary=4000)
    assert _bytes_per_example(large) > 3 * _bytes_per_example(zoo.SHAKESPEARE)


def test_the_vector_of_the_padding_of_learned_words_is_never_trained(tmp_path: Path) -> None:
    task = load_task_data(named_task(write_texts(tmp_path, train=32, test=8)).file, None)
    texts = [line.split(",")[1].split() for line in (tmp_path / "train.csv").read_text().splitlines()]
    numbers, mask = task.model_inputs(task.train.inputs)
    assert mask is not None
    assert mask.sum(1).tolist() == [min(6, len(words)) for words in texts]
    assert not bool(numbers[~mask].any())
    config = replace(CONFIG, task="words", protocol=Protocol(1, 1, batch_size=16))
    trainer = PopulationTrainer(TorchEngine([config], task))
    before = trainer.state.weights.clone()
    trainer.train_epoch()
    changed = (trainer.state.weights != before)[0, : task.spec.tensors["positions.weight"].offset]
    rows = changed.view(-1, task.spec.dim).any(1).tolist()
    assert rows == [number in set(numbers[mask].tolist()) for number in range(len(rows))]
    assert not rows[0]
    assert sum(rows) > 10


# ------------------------------------------------------------------------------------------------------ a whole shard


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both shards of the task, trained by the command."""
    folder = tmp_path_factory.mktemp("lines")
    path = write_lines(folder)
    for shard in "01":
        run(["--task", str(path), "--shard", shard, "--device", "cpu", "--out", str(folder / "runs")])
    return folder


def contents(runs: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (runs / "lines/shard-00000").iterdir() if path.suffix != ".json"}


def test_stored_labels_are_measured_again_from_the_weights(folder: Path) -> None:
    task = load_task_data(named_task(folder / "lines.toml").file, None)
    assert (len(task.train), len(task.test)) == (101, 11)
    for shard in ("shard-00000", "shard-00001"):  # the second trains on five windows, less than a batch
        with pa.ipc.open_stream(folder / "runs/lines" / shard / CHECKPOINTS_FILE) as reader:
            rows = reader.read_all().to_pylist()
        assert len(rows) == 8 * 3
        measured = language_labels(task, torch.tensor([row["weights"] for row in rows]))
        for index, row in enumerate(rows):
            for name, values in measured.items():
                assert row[name] == pytest.approx(float(values[index]), abs=1e-4), name
        for row in rows[::5]:
            evaluation = zoo.evaluate(zoo.build_model(task.spec, row["weights"]), task)
            assert evaluation.loss == pytest.approx(row["test_loss"], abs=1e-4)
            assert evaluation.accuracy == pytest.approx(row["test_accuracy"], abs=1e-4)
        assert min(row["test_loss"] for row in rows) < math.log(11) - 0.3, "something was learned"


def interrupt(epoch: int, *_: object) -> None:
    if epoch == 2:
        raise KeyboardInterrupt


def test_a_long_training_of_an_own_task_does_not_point_to_a_preset(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("generation.shard.estimate_seconds", lambda *_, **__: (3600.0, "torch"))
    words = ["--task", str(folder / "lines.toml"), "--shard", "0", "--runs", "1", "--out", str(tmp_path)]
    run([*words, "--device", "cpu"])
    assert " on this CPU; a GPU takes far less\n" in capsys.readouterr().err


@pytest.mark.parametrize("way", ["interrupted", "continued"])
def test_a_shard_that_was_interrupted_or_had_fewer_runs_ends_with_the_same_bytes(
    way: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("generation.shard.estimate_seconds", lambda *_, **__: (0.0, "torch"))  # takes as long
    task = named_task(folder / "lines.toml")
    job = Job(Sweep(task, Preset("own", task.protocol), task.seeds), tmp_path, device="cpu", snapshot_seconds=0.0)
    if way == "continued":
        train_shard(replace(job, runs=3), 0)
    else:
        with pytest.raises(KeyboardInterrupt):
            train_shard(job, 0, interrupt)
        assert list(tmp_path.rglob("state-*"))
    train_shard(job, 0)
    assert contents(tmp_path) == contents(folder / "runs")


@pytest.mark.long
def test_shakespeare_from_the_command_to_a_published_zoo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["--task", "shakespeare", "--preset", "demo", "--runs", "2", "--shard", "0", "--out", str(tmp_path / "runs")])
    publish([str(tmp_path / "runs"), str(tmp_path / "zoo")])
    verify([str(tmp_path / "zoo"), "--evaluate", "3"])
    assert "accuracy of 3 random rows per config measured again" in capsys.readouterr().out
    reader = zoo.open(tmp_path / "zoo", "shakespeare", split="all")
    assert reader.spec == zoo.SHAKESPEARE
    row = int(reader.metadata["test_loss"].argmin())
    measured = zoo.evaluate(zoo.build_model(reader.spec, reader.weights(row)), "shakespeare")
    assert measured.loss == pytest.approx(float(reader.metadata["test_loss"].iloc[row]), abs=1e-4)
