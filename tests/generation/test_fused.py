"""The fused engine against float64 autograd, the torch engine and itself, on the emulator and on a GPU."""

import ctypes
import os
import re
import signal
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from emulated import EmulatedKernels
from fused_checks import RATES, MakeEngine, check_evaluation, check_gradients, check_two_epochs, config
from rounded_gradient import FactorsIn, exact_gradient
from small_tasks import few_digits, few_news, few_windows
from torch import Tensor

import zoo
from generation.data import TrainingInputs, TrainingRows, epoch_batches
from generation.fused.compiled import (
    _KERNELS,
    _SOURCES,
    Arguments,
    CudaKernels,
    _layout,
    _macros,
)
from generation.fused.engine import FusedEngine, _adam_corrections, _arrange, _epoch_examples, _optimizer_rules
from generation.fused.variants import _LARGEST, _SMALLEST, _VARIANTS, Variant, best_variant, misfits, obstacle
from generation.population import trainer
from generation.population.engine import PopulationState
from generation.population.torch_engine import TorchEngine
from generation.population.trainer import PopulationTrainer, make_engine
from generation.protocol import Protocol, RunConfig
from generation.shard import _load_snapshot, _save_snapshot
from zoo.tasks.examples import TaskData
from zoo.transformer.spec import AGNEWS, MNIST, PAPER_SPECS, SHAKESPEARE, SPECS, TransformerSpec


@pytest.fixture(scope="module")
def tasks() -> dict[str, TaskData]:
    return {name: few_examples(name, train=16, test=60) for name in SPECS}


def few_examples(name: str, train: int, test: int) -> TaskData:
    if name == "shakespeare":
        return few_windows(train, test, SHAKESPEARE)
    return few_digits(train, test) if name == "mnist" else few_news(train, test)


def with_few_tests(task: TaskData) -> TaskData:
    return replace(task, test=task.test[slice(0, 8)])


def trained_weights(spec: TransformerSpec) -> Tensor:
    """A well-trained transformer of the bundled sample."""
    reader = zoo.open("small-transformer-zoo", spec.task, split="train")
    best = int(reader.metadata["test_accuracy"].argmax())
    return reader.weights([best]).clone()


@pytest.mark.parametrize(
    ("trained", "dropout"),
    [
        pytest.param(False, 0.0, id="initial", marks=pytest.mark.long),
        pytest.param(False, 0.2, id="initial with dropout"),
        pytest.param(True, 0.0, id="trained"),
        pytest.param(True, 0.2, id="trained with dropout", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("name", ["mnist", "agnews"])
def test_gradients_are_those_of_float64_autograd(
    name: str, trained: bool, dropout: float, tasks: dict[str, TaskData], engine: MakeEngine
) -> None:
    weights = trained_weights(PAPER_SPECS[name]) if trained else None
    # with the masks of seed 7 a hidden unit of the trained MNIST transformer is too near to zero
    check_gradients(lambda run: engine([run], tasks[name]), tasks[name], dropout, weights, seed=8 if trained else 7)


def with_mistake(folder: Path, header: str, right: str, wrong: str) -> Path:
    """The kernels' sources with one change."""
    for source in _SOURCES.iterdir():
        (folder / source.name).write_bytes(source.read_bytes())
    text = (folder / header).read_text()
    assert text.count(right) == 1
    (folder / header).write_text(text.replace(right, wrong))
    return folder


@pytest.mark.long
def test_gradients_of_a_head_with_the_other_heads_sums_are_found(tasks: dict[str, TaskData], tmp_path: Path) -> None:
    """Tests the tester: each score's gradient has the δ of the other head, and is right otherwise."""
    right, wrong = "log_sum[head], delta[head], c", "log_sum[head], delta[1 - head], c"
    sources = with_mistake(tmp_path, "backward.cuh", right, wrong)
    kernels, task = EmulatedKernels(MNIST, sources=sources), tasks["mnist"]
    with pytest.raises(AssertionError):
        check_gradients(lambda run: FusedEngine([run], task, kernels), task, dropout=0.0)


@pytest.mark.parametrize("name", ["mnist", "agnews"])
def test_the_reference_of_the_gradients_changes_nothing_but_the_rounding(name: str, tasks: dict[str, TaskData]) -> None:
    run, task, spec = config(name), tasks[name], PAPER_SPECS[name]
    batches = epoch_batches(TrainingRows(torch.arange(16), 16), run.protocol, epoch=0)
    examples = _epoch_examples(TrainingInputs.prepare(task), batches)
    weights = PopulationState.initial(spec, [run], torch.device("cpu")).weights
    loss, gradient = exact_gradient(spec, weights, examples, torch.arange(16), 0.2, run.seed)
    with FactorsIn(torch.float64):
        same_loss, same = exact_gradient(spec, weights, examples, torch.arange(16), 0.2, run.seed)
    with FactorsIn(torch.float16):
        _, rounded = exact_gradient(spec, weights, examples, torch.arange(16), 0.2, run.seed)
    torch.testing.assert_close((same_loss, same), (loss, gradient), rtol=1e-9, atol=1e-12)
    assert 1e-5 < float((rounded - gradient).norm() / gradient.norm()) < 0.1


@pytest.mark.long
@pytest.mark.parametrize(("name", "optimizers"), [("mnist", ("sgd", "rmsprop")), ("agnews", ("sgd_momentum", "adam"))])
def test_two_epochs_follow_the_torch_engine(name: str, optimizers: tuple[str, ...], engine: MakeEngine) -> None:
    """Every optimizer for one of the tasks: its code is the same for both."""
    task = few_digits(train=96, test=10) if name == "mnist" else few_news(train=96, test=10)
    check_two_epochs(lambda configs: engine(configs, task), task, optimizers)


@pytest.mark.long
@pytest.mark.parametrize("name", ["agnews", "shakespeare"])
def test_a_run_has_the_same_bytes_alone_in_company_and_whatever_the_order_of_warps(
    name: str, tasks: dict[str, TaskData], engine: MakeEngine
) -> None:
    task = tasks[name]
    run = config(name, "adam", dropout=0.1, seed=3)
    company = [config(name, "rmsprop"), run, config(name, "sgd", dropout=0.2, seed=5)]

    def result(configs: list[RunConfig], schedule: int) -> Tensor:
        fused = engine(configs, task, schedule)
        state = PopulationState.initial(task.spec, configs, fused.device)
        losses, measured = fused.train_and_test(state)
        row = configs.index(run)
        numbers = [column[row, None] for column in (losses, *measured)]
        return torch.cat([state.weights[row], state.first[row], state.second[row], *numbers])

    alone = result([run], schedule=0)
    fused = engine([run], task)
    state = PopulationState.initial(task.spec, [run], fused.device)
    one_by_one = fused.train_epoch(state), *fused.evaluate(state.weights, state.alive, fused.task.test)
    assert torch.equal(alone, torch.cat([state.weights[0], state.first[0], state.second[0], *one_by_one]))
    assert torch.equal(alone, result([run], schedule=1))
    assert torch.equal(alone, result(company, schedule=2))


@pytest.mark.long
@pytest.mark.parametrize("name", ["mnist", "agnews", "shakespeare"])
def test_every_variant_gives_the_same_bytes(name: str, tasks: dict[str, TaskData], engine: MakeEngine) -> None:
    """However many examples a thread block has at a time, they are added in the same order, in any order of warps."""
    run = config(name, "adam", dropout=0.1, seed=3)

    def result(variant: Variant, schedule: int = 0) -> Tensor:
        fused = engine([run], tasks[name], schedule, variant)
        state = PopulationState.initial(tasks[name].spec, [run], fused.device)
        trained = fused.train_epoch(state)
        measured = fused.evaluate(state.weights, state.alive, fused.task.test)
        return torch.cat([state.weights[0], state.first[0], state.second[0], trained, *measured])

    expected = result(_LARGEST)
    for schedule, variant in enumerate(_VARIANTS[1:], 1):
        assert torch.equal(result(variant, schedule), expected), variant.name


def test_the_best_variant_is_the_first_that_fits() -> None:
    kib = 1024
    assert best_variant(MNIST, 227 * kib, (9, 0)) == best_variant(MNIST, 227 * kib, (10, 0)) == _LARGEST
    assert best_variant(MNIST, 227 * kib, (8, 0)) == best_variant(MNIST, 163 * kib, (8, 0)) == _VARIANTS[1]
    assert best_variant(MNIST, 99 * kib, (8, 6)) == best_variant(MNIST, 99 * kib, (12, 0)) == _SMALLEST
    assert best_variant(MNIST, 64 * kib, (7, 5)) is None


def test_models_beyond_the_last_full_round_of_thread_blocks_have_a_stream_of_their_own(
    tasks: dict[str, TaskData], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five models on a GPU that trains two at once, without the GPU: what starts, on which stream, in which order."""
    started: list[object] = []

    class Stream(nullcontext):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def __enter__(self) -> None:
            started.append(self.name)

        def wait_stream(self, other: "Stream") -> None:
            started.append(f"{self.name} waits for {other.name}")

    kernels = object.__new__(CudaKernels)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: Stream("first"))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(kernels, "_start", lambda *arguments: started.append(arguments[:2]), raising=False)
    kernels.device, kernels.workspace_words, kernels.examples_at_once = torch.device("cpu"), 1, 3
    kernels.models_at_once = 2
    monkeypatch.setattr(kernels, "_beside", Stream("second"), raising=False)
    kernels._kernels = {name: (name, 32, 0) for name in ("train_epoch", "evaluate")}
    runs = [config("mnist", seed=seed) for seed in range(5)]
    fused = FusedEngine(runs, tasks["mnist"], kernels)
    fused.train_and_test(PopulationState.initial(MNIST, runs, kernels.device))
    assert started == [
        "second waits for first",
        *("first", ("train_epoch", (4, 1)), "second", ("train_epoch", (1, 1))),
        *("first", ("evaluate", (4, 1)), "second", ("evaluate", (1, 1))),
        "first waits for second",
    ]


def test_a_dead_run_is_left_as_it_is(tasks: dict[str, TaskData], engine: MakeEngine) -> None:
    runs = [config("mnist"), config("mnist", "adam")]
    fused = engine(runs, with_few_tests(tasks["mnist"]))
    state = PopulationState.initial(MNIST, runs, fused.device)
    state.alive[0] = False
    before = state.weights.clone()
    fused.train_epoch(state)
    assert torch.equal(state.weights[0], before[0])
    assert not torch.equal(state.weights[1], before[1])
    accuracy, loss = fused.evaluate(state.weights, state.alive, fused.task.test)
    assert accuracy.isnan().tolist() == loss.isnan().tolist() == [True, False]


@pytest.mark.parametrize("name", ["mnist", "agnews"])
def test_evaluation_agrees_with_the_model_itself(name: str, tasks: dict[str, TaskData], engine: MakeEngine) -> None:
    check_evaluation(engine([config(name)], tasks[name]), tasks[name], trained_weights(PAPER_SPECS[name]))


@pytest.mark.long
@pytest.mark.parametrize("name", ["mnist", "agnews", "shakespeare"])
def test_evaluation_in_parts_is_that_of_every_model(
    name: str, tasks: dict[str, TaskData], engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three models, 60 examples in parts of 8, the last of them short."""
    monkeypatch.setattr("generation.fused.engine._EXAMPLES_PER_PART", 8)
    runs, task = [config(name, init_std=std, seed=seed) for seed, std in enumerate((0.2, 0.3, 0.5))], tasks[name]
    fused, twin = engine(runs, task), TorchEngine(runs, task)
    weights, alive = PopulationState.initial(task.spec, runs, twin.device).weights, torch.tensor([True, True, True])
    accuracy, loss = fused.evaluate(weights.to(fused.device), alive.to(fused.device), fused.task.test)
    twin_accuracy, twin_loss = twin.evaluate(weights, alive, twin.task.test)
    assert len(set(twin_loss.tolist())) == 3
    torch.testing.assert_close(accuracy.cpu(), twin_accuracy, atol=2.01 / len(task.test), rtol=0)
    torch.testing.assert_close(loss.cpu(), twin_loss, rtol=3e-3, atol=0)
    accuracy, loss = fused.evaluate(weights.to(fused.device), alive.to(fused.device), fused.task.test, exact=True)
    torch.testing.assert_close(accuracy.cpu(), twin_accuracy, rtol=0, atol=1e-12)  # the same answers, divided otherwise
    torch.testing.assert_close(loss.cpu(), twin_loss, rtol=3e-6, atol=0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "header", "right", "wrong"),
    [
        pytest.param(
            "shakespeare",
            "backward.cuh",
            "after_logits = CAUSAL && !is_earlier(block)",
            "after_logits = false",
            id="attention overwrites logits that are still being added",
        ),
        pytest.param(
            "mnist",
            "forward.cuh",
            "    group_barrier(me.group);\n    #pragma unroll\n",
            "    #pragma unroll\n",
            id="attention reads keys that are still being written",
        ),
        pytest.param(
            "mnist",
            "warp_specialized.cuh",
            """                    wait(MLP_FULL + group);
                    gradients.add_part<MLP>(mlp, memory.example(group), block, pack.all_tiles());
                    arrive(MLP_EMPTY + group);
""",
            """                    wait(MLP_FULL + group);
                    arrive(MLP_EMPTY + group);
                    gradients.add_part<MLP>(mlp, memory.example(group), block, pack.all_tiles());
""",
            id="producers overwrite rows that consumers still read",
        ),
    ],
)
def test_the_emulator_finds_an_access_that_is_too_early(
    name: str, header: str, right: str, wrong: str, tmp_path: Path
) -> None:
    """Tests the tester: a barrier is missing, or a warp arrives at one too early."""
    sources = with_mistake(tmp_path, header, right, wrong)
    script = Path(__file__).parent / "one_step.py"
    environment = os.environ | {"PYTHONPATH": str(script.parents[2])}
    done = subprocess.run([sys.executable, script, sources, name], capture_output=True, text=True, env=environment)
    assert done.returncode == -signal.SIGABRT
    assert "emulator: race" in done.stderr


def test_nan_ends_a_run(tasks: dict[str, TaskData], engine: MakeEngine) -> None:
    run = config("mnist", protocol=Protocol(epochs=2, warmup_epochs=1, batch_size=16))
    trainer = PopulationTrainer(engine([run], with_few_tests(tasks["mnist"])))
    trainer.state.weights[0, 0] = torch.nan
    trainer.train_epoch()
    assert not bool(trainer.state.alive[0])


def test_stored_numbers_are_measured_in_float32(tasks: dict[str, TaskData], engine: MakeEngine) -> None:
    run, task = config("mnist"), with_few_tests(tasks["mnist"])
    trainer = PopulationTrainer(engine([run], task))
    trainer.train_epoch()
    measures = trainer.measure_checkpoints()
    measured = zoo.evaluate(zoo.build_model(MNIST, trainer.state.checkpoints[-1, 0].cpu()), task)
    assert float(measures["test_accuracy"][-1, 0]) == pytest.approx(measured.accuracy)
    assert float(measures["test_loss"][-1, 0]) == pytest.approx(measured.loss, rel=1e-5)
    assert float(measures["test_loss"][-1, 0]) == pytest.approx(float(trainer.state.test_loss[0, -1]), rel=3e-3)


@pytest.mark.long
@pytest.mark.parametrize("name", ["agnews", "shakespeare"])
def test_a_resumed_run_ends_with_the_same_bytes(
    name: str, tasks: dict[str, TaskData], engine: MakeEngine, tmp_path: Path
) -> None:
    run = config(name, "adam", dropout=0.1, seed=3, protocol=Protocol(epochs=3, warmup_epochs=1, batch_size=16))

    def trainer() -> PopulationTrainer:
        return PopulationTrainer(engine([run], tasks[name]))

    undisturbed = trainer()
    while not undisturbed.finished:
        undisturbed.train_epoch()
        if undisturbed.state.epoch == 1:
            _save_snapshot(tmp_path, undisturbed.state, "owner", seconds=1.0)
    resumed = trainer()
    snapshot = _load_snapshot(tmp_path, "owner", resumed.state)
    assert snapshot is not None
    resumed.state, _ = snapshot
    while not resumed.finished:
        resumed.train_epoch()
    expected = undisturbed.state.tensors()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in resumed.state.tensors().items())


def test_examples_hold_what_the_batches_hold_and_texts_are_sorted_by_length(tasks: dict[str, TaskData]) -> None:
    task = tasks["agnews"]
    protocol = Protocol(batch_size=4)
    twin = TorchEngine([config("agnews")], task)
    batches = epoch_batches(twin.training_rows, protocol, epoch=1)
    examples = _epoch_examples(twin.inputs, batches)
    ids = task.train.inputs[batches.rows.flatten()]
    lengths = (examples.facts >> 24).view(4, 4)
    assert bool((lengths.diff(dim=1) >= 0).all())
    for step in range(4):
        places = (examples.facts.view(4, 4)[step] & 0xFFFF).long()
        assert sorted(places.tolist()) == [0, 1, 2, 3]
        assert torch.equal(lengths[step].long(), (ids.view(4, 4, -1)[step][places] != 0).sum(dim=1))
        labels = task.train.labels[batches.rows[step]][places]
        assert torch.equal((examples.facts.view(4, 4)[step] >> 16 & 0xFF).long(), labels)
    images = _arrange(tasks["mnist"], tasks["mnist"].test)
    assert images.tokens.shape == (60, 49, 16)
    assert torch.equal(images.facts >> 24, torch.full((60,), 49, dtype=torch.int32))


def test_rules_of_the_optimizers_as_the_kernel_reads_them() -> None:
    rules = _optimizer_rules(
        [config("mnist", optimizer, weight_decay=1e-3) for optimizer in RATES], torch.device("cpu")
    )
    decay = torch.tensor(1e-3).item()
    expected = {
        "sgd": [0, 0, 1, 0, 0, decay, 0, 0],
        "sgd_momentum": [0, 0.9, 1, 0, 0, decay, 0, 0],
        "adam": [0, 0.9, 0.1, 0.999, 0.001, decay, 1, 1],
        "rmsprop": [0, 0, 1, 0.99, 0.01, decay, 1, 0],
    }
    torch.testing.assert_close(rules, torch.tensor(list(expected.values())))
    corrections = _adam_corrections(first_step=9, steps=2)
    torch.testing.assert_close(corrections[0], torch.tensor([1 - 0.9**10, (1 - 0.999**10) ** 0.5]))


@pytest.mark.parametrize("kind", _KERNELS)
def test_the_kernels_and_python_agree_about_the_arguments(kind: type[Arguments]) -> None:
    """Names, order, and which are addresses; the emulator and the GPU compare the sizes of the structs as well."""
    name = "TrainArguments" if kind.kernel == "train_epoch" else "EvaluateArguments"
    sources = (path.read_text(encoding="utf-8") for path in _SOURCES.iterdir())
    (rest,) = (text.partition(f"struct {name} {{\n")[2] for text in sources if f"struct {name} {{" in text)
    body, _, _ = rest.partition("\n\n")
    members = re.findall(r"^ +(?:const )?\w+(\*?) (\w+);", body, flags=re.MULTILINE)
    assert len(members) == len(body.splitlines())
    assert [(name, ctypes.c_void_p if star else ctypes.c_int32) for star, name in members] == _layout(kind)._fields_


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_the_kernels_have_every_tensor_of_the_flat_vector(spec: TransformerSpec) -> None:
    first_block_and_rest = {name for name in spec.tensors if not name.startswith("blocks.") or ".0." in name}
    values = dict(_macros(spec, _LARGEST))
    offsets = sorted(int(value) for name, value in values.items() if name.startswith("FLAT_"))
    assert offsets == sorted(spec.tensors[name].offset for name in first_block_and_rest)
    assert int(values["FLAT_FC2_BIAS"]) + int(values["BLOCK_STRIDE"]) == spec.tensors["blocks.1.fc2.bias"].offset
    assert ("FLAT_EMBEDDING_BIAS" in values) == (spec.patch_size is not None)


def test_what_the_kernels_cannot_train_is_one_line() -> None:
    cpu = torch.device("cpu")
    assert obstacle(MNIST, [config("mnist")], cpu) == "it needs a CUDA device, got cpu"
    odd = config("mnist", protocol=Protocol(batch_size=100))
    assert obstacle(MNIST, [odd], cpu) == "it needs a batch size that is a multiple of 16 below 65536, got 100"


@pytest.mark.parametrize(
    ("spec", "misfit"),
    [
        (replace(MNIST, tokens=81), "it takes at most 64 tokens, this one has 81"),
        (replace(AGNEWS, classes=20), "it takes at most 16 classes, this one has 20"),
        (replace(MNIST, blocks=6), "it takes at most 4 blocks, this one has 6"),
        (replace(AGNEWS, heads=6), "it takes at most 4 heads, this one has 6"),
        (replace(AGNEWS, dim=40), "it takes a dim that is a multiple of 16 up to 64, this one has 40"),
        (replace(MNIST, dim=80), "it takes a dim that is a multiple of 16 up to 64, this one has 80"),
        (replace(MNIST, hidden_dim=144), "it takes a hidden_dim that is a multiple of 16 up to 128, this one has 144"),
        (replace(AGNEWS, value_dim=32), "it takes a value_dim that is the key_dim, this one has 32 and 16"),
        (
            replace(AGNEWS, heads=3, key_dim=32, value_dim=32),
            "it takes heads of 64 together at most, this one has 3 of 32",
        ),
        (
            replace(MNIST, patch_size=2, channels=3, blocks=5, residual=True),
            "it takes at most 4 blocks, this one has 5; it takes patches whose channels × pixels are a multiple of 16 "
            "up to 64, this one has 12",
        ),
        (
            replace(SHAKESPEARE, classes=300, vocabulary=300, tokens=128),
            "it takes at most 64 tokens, this one has 128; it takes at most 256 classes, this one has 300",
        ),
        (
            replace(AGNEWS, vocabulary=500),
            "it takes learned word vectors in language models only, this one classifies texts",
        ),
        (SHAKESPEARE, None),
        (replace(MNIST, task="digits", tokens=64, classes=16, blocks=1), None),
        (replace(AGNEWS, task="reviews", tokens=1, classes=2, blocks=1), None),
        (replace(AGNEWS, task="deep", blocks=4, residual=True), None),
        (replace(AGNEWS, task="wide", dim=64, heads=4, hidden_dim=128, blocks=4), None),
        (replace(MNIST, task="photos", dim=16, heads=1, channels=3), None),
    ],
)
def test_a_transformer_that_does_not_fit_is_one_line(spec: TransformerSpec, misfit: str | None) -> None:
    expected = "it needs a CUDA device, got cpu" if misfit is None else misfit
    assert obstacle(spec, [config(spec.task)], torch.device("cpu")) == expected


def test_whatever_is_within_the_limits_has_room_in_the_largest_variant() -> None:
    widest = replace(MNIST, patch_size=8, dim=64, heads=4, hidden_dim=128, blocks=4)
    assert misfits(widest) == []
    for tokens_of, dim, heads, hidden, blocks in product((MNIST, AGNEWS), (16, 48, 64), (1, 4), (16, 128), (1, 4)):
        spec = replace(tokens_of, dim=dim, heads=heads, hidden_dim=hidden, blocks=blocks)
        assert misfits(spec) == []
        assert _LARGEST.use(spec), spec
    assert _LARGEST.use(widest)
    largest = {"dim": 64, "heads": 4, "hidden_dim": 128, "blocks": 4, "classes": 256, "vocabulary": 256}
    assert _LARGEST.use(replace(SHAKESPEARE, **largest))


def test_a_gpu_too_small_for_a_wide_transformer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    wide, card = replace(AGNEWS, dim=64, heads=4, hidden_dim=128), SimpleNamespace(name="RTX 4090", major=8, minor=9)
    card.shared_memory_per_block_optin = 99 * 1024
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    assert obstacle(wide, [config("agnews")], torch.device("cuda")) == (
        "it needs 163 KiB of shared memory per thread block for this transformer, RTX 4090 has 99 KiB"
    )
    card.shared_memory_per_block_optin = 163 * 1024
    small, large = (
        obstacle(wide, [config("agnews")], torch.device("cuda"), variant) for variant in (_SMALLEST, _LARGEST)
    )
    assert small == "its small variant does not fit this transformer or RTX 4090"
    assert large == "its large variant does not fit this transformer or RTX 4090"


def test_examples_are_cropped_by_the_protocol(tasks: dict[str, TaskData]) -> None:
    task, protocol = tasks["mnist"], Protocol(batch_size=16, crop_padding=0)
    batches = epoch_batches(TrainingRows.of(task, 1.0), protocol, epoch=0)
    examples = _epoch_examples(TrainingInputs.prepare(task, protocol.crop_padding), batches)
    assert torch.equal(examples.tokens, _arrange(task, task.train[batches.rows.flatten()]).tokens)


@pytest.mark.parametrize("spec", [MNIST, replace(MNIST, task="digits", tokens=4, blocks=1)], ids=["mnist", "digits"])
def test_a_gpu_that_is_too_old_or_too_small_is_one_line(spec: TransformerSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    def on(name: str, capability: tuple[int, int], kib: int) -> str | None:
        card = SimpleNamespace(
            name=name, major=capability[0], minor=capability[1], shared_memory_per_block_optin=kib * 1024
        )
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
        return obstacle(spec, [config(spec.task)], torch.device("cuda"))

    assert on("T4", (7, 5), 64) == "it needs compute capability 8.0, T4 has 7.5"
    assert on("a card", (8, 9), 48) == (
        "it needs 99 KiB of shared memory per thread block for this transformer, a card has 48 KiB"
    )
    if find_spec("cuda") is not None:
        assert on("RTX 4090", (8, 9), 99) is None
        assert on("A100", (8, 0), 163) is None


def test_engines_by_name(tasks: dict[str, TaskData]) -> None:
    cpu, runs = torch.device("cpu"), [config("mnist")]
    assert make_engine("auto", runs, tasks["mnist"], cpu).name == "torch"
    with pytest.raises(ValueError, match="the fused engine cannot train here: it needs a CUDA device, got cpu"):
        make_engine("fused", runs, tasks["mnist"], cpu)
    with pytest.raises(ValueError, match="unknown engine 'abacus': one of auto, fused, torch"):
        make_engine("abacus", runs, tasks["mnist"], cpu)


def test_auto_takes_the_fused_engine_where_it_can_train(
    tasks: dict[str, TaskData], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, runs, task = torch.device("cuda"), [config("mnist")], tasks["mnist"]
    monkeypatch.setattr(trainer, "TorchEngine", lambda configs, task, **options: TorchEngine(configs, task))
    monkeypatch.setattr(trainer, "obstacle", lambda spec, configs, device, variant: None)
    monkeypatch.setattr(trainer, "CudaKernels", lambda spec, device, variant: EmulatedKernels(spec))
    assert make_engine("auto", runs, task, gpu).name == "fused"
    assert make_engine("auto", runs, task, gpu, models_per_pass=4).name == "torch"
    with pytest.raises(ValueError, match="--models-per-pass is for --engine torch"):
        make_engine("fused", runs, task, gpu, models_per_pass=4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestOnAGpu:
    """Tests that take too long on the emulator."""

    device = torch.device("cuda")

    def float32_twin(self, configs: list[RunConfig], task: TaskData) -> PopulationTrainer:
        exact = TorchEngine(configs, task, device=self.device, precision="float32", compiled=False)
        return PopulationTrainer(exact)

    @pytest.mark.parametrize("dropout", [0.0, 0.2])
    @pytest.mark.parametrize("trained", [False, True], ids=["initial", "trained"])
    @pytest.mark.parametrize("name", ["mnist", "agnews"])
    @pytest.mark.parametrize("variant", _VARIANTS[1:], ids=lambda variant: variant.name)
    def test_gradients_of_the_smaller_variants(
        self, variant: Variant, name: str, trained: bool, dropout: float, tasks: dict[str, TaskData]
    ) -> None:
        task, weights = tasks[name], trained_weights(PAPER_SPECS[name]) if trained else None
        kernels = CudaKernels(task.spec, self.device, variant)
        check_gradients(lambda run: FusedEngine([run], task, kernels), task, dropout, weights)

    @pytest.mark.parametrize("name", ["mnist", "agnews", "shakespeare"])
    def test_the_same_bytes_in_populations_of_1_8_and_300(self, name: str) -> None:
        """Those that do not fill a round of thread blocks train on a stream of their own: the last of the 300."""
        task = few_examples(name, 640, 60)
        protocol = Protocol(epochs=1, warmup_epochs=1, batch_size=128)
        optimizers = list(RATES)
        runs = [config(name, optimizers[i % 4], dropout=0.05 * (i % 5), seed=i, protocol=protocol) for i in range(300)]

        def result(configs: list[RunConfig]) -> Tensor:
            fused = make_engine("fused", configs, task, self.device)
            state = PopulationState.initial(task.spec, configs, fused.device)
            losses, measured = fused.train_and_test(state)
            measured_again = fused.evaluate(state.weights, state.alive, fused.task.test)
            torch.testing.assert_close(measured, measured_again, rtol=0, atol=0, equal_nan=True)
            numbers = torch.stack([losses, *measured], dim=1)
            return torch.cat([state.weights, state.first, state.second, numbers], dim=1)

        together = result(runs)
        for some in slice(1), slice(8), slice(-40, None):
            torch.testing.assert_close(result(runs[some]), together[some], rtol=0, atol=0, equal_nan=True)

    @pytest.mark.parametrize("name", ["mnist", "agnews", "shakespeare"])
    def test_two_hundred_steps_follow_the_torch_engine(self, name: str) -> None:
        """Losses of ten epochs of twenty steps, each optimizer with dropout; the twin multiplies in float32."""
        task = few_examples(name, 640, 100)
        protocol = Protocol(epochs=10, warmup_epochs=2, batch_size=32)
        configs = [config(name, optimizer, dropout=0.1, protocol=protocol) for optimizer in RATES]
        ours = PopulationTrainer(make_engine("fused", configs, task, self.device))
        twin = self.float32_twin(configs, task)
        while not ours.finished:
            ours.train_epoch()
            twin.train_epoch()
        torch.testing.assert_close(ours.state.train_loss, twin.state.train_loss, rtol=0.05, atol=0.02)

    @pytest.mark.parametrize("name", ["mnist", "agnews", "shakespeare"])
    def test_high_learning_rates_and_wide_weights_stay_finite(self, name: str) -> None:
        """As long as the twin's do: padding and large numbers must not turn a healthy run into NaN."""
        task = few_examples(name, 640, 100)
        protocol = Protocol(epochs=20, warmup_epochs=2, batch_size=32)
        configs = [
            config(name, optimizer, dropout=dropout, learning_rate=rate, init_std=std, protocol=protocol, seed=seed)
            for optimizer, rate in {"sgd": 1.0, "sgd_momentum": 0.3, "adam": 3e-2, "rmsprop": 1e-2}.items()
            for dropout in (0.0, 0.2)
            for std in (0.05, 0.5, 1.0)
            for seed in (0, 1)
        ]
        ours = PopulationTrainer(make_engine("fused", configs, task, self.device))
        twin = self.float32_twin(configs, task)
        while not ours.finished:
            ours.train_epoch()
            twin.train_epoch()
        died = int((~ours.state.alive & twin.state.alive).sum())
        assert died <= 1, f"{died} of {len(configs)} runs became not-a-number, the twin's did not"
