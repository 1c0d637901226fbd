"""The population trainer against its slow twin, and each run against its neighbors."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from slow_twin import train_single
from small_tasks import few_digits, few_photos
from torch import Tensor

import zoo
from generation.population.engine import checkpoint_labels
from generation.population.torch_engine import TorchEngine, _bytes_per_example, _plan_passes
from generation.population.trainer import PopulationTrainer
from generation.protocol import Protocol, RunConfig
from generation.shard import _checkpoint_tables
from generation.single import _SingleEngine
from zoo.format.hyperparameters import Optimizer
from zoo.tasks.examples import TaskData
from zoo.transformer.population import population_logits, population_losses, prepare_inputs

OPTIMIZERS: dict[Optimizer, float] = {"sgd": 1e-2, "sgd_momentum": 1e-2, "adam": 1e-3, "rmsprop": 3e-4}


@pytest.fixture(scope="module")
def digits() -> TaskData:
    """Fewer than elsewhere: backward passes of these transformers are slow on a CPU."""
    return few_digits(train=80, test=40)


def runs(task: str, protocol: Protocol, dropout: float = 0.0) -> list[RunConfig]:
    return [
        RunConfig(
            task=task,
            optimizer=optimizer,
            learning_rate=rate,
            weight_decay=1e-4,
            init_std=0.2,
            dropout=dropout,
            protocol=protocol,
        )
        for optimizer, rate in OPTIMIZERS.items()
    ]


def train(configs: list[RunConfig], task: TaskData, **options) -> PopulationTrainer:
    trainer = PopulationTrainer(TorchEngine(configs, task, **options))
    while not trainer.finished:
        trainer.train_epoch()
    return trainer


@pytest.mark.parametrize(
    ("task", "examples"),
    [
        pytest.param("digits", 64, marks=pytest.mark.long),
        pytest.param("news", 64, marks=pytest.mark.long),
        pytest.param("photos", 160, marks=pytest.mark.long),
        ("lines", 32),
        ("words", 32),
    ],
    indirect=["task"],
    ids=str,
)
def test_every_step_equals_the_slow_twins_for_every_optimizer(task: TaskData, examples: int) -> None:
    """Ten to fifty steps in float64: adaptive optimizers magnify the rounding of float32 to 1e-3 in fifty."""
    task = replace(task, train=task.train[slice(0, examples)])
    configs = runs(task.spec.task, Protocol(epochs=5, warmup_epochs=2, batch_size=16))
    trainer = train(configs, task, precision="float64", models_per_pass=4)
    for row, config in enumerate(configs):
        twin = train_single(config, task, dtype=torch.float64)
        for index, label in enumerate(checkpoint_labels(config)):
            expected, actual = twin.checkpoints[label].weights, trainer.state.checkpoints[index, row]
            assert float((actual - expected).norm() / expected.norm()) < 1e-6, (config.optimizer, label)
        assert trainer.state.test_accuracy[row].tolist() == pytest.approx(twin.test_accuracy)
        assert trainer.state.test_loss[row].tolist() == pytest.approx(twin.test_loss, rel=1e-5)
        assert trainer.state.train_loss[row].tolist() == pytest.approx(twin.train_loss, rel=1e-5)
        assert int(trainer.state.best_epoch[row]) == twin.best_epoch
        losses = trainer.measure_checkpoints()["train_loss"][:, row].tolist()
        assert losses == pytest.approx(
            [twin.checkpoints[label].train_loss for label in checkpoint_labels(config)], rel=1e-5
        )


@pytest.mark.parametrize("task", ["digits", "lines", "words"], indirect=True)
def test_one_run_at_a_time_is_the_slow_twin(task: TaskData) -> None:
    task = replace(task, train=task.train[slice(0, 64)])
    for config in runs(task.spec.task, Protocol(epochs=3, warmup_epochs=1, batch_size=16)):
        trainer, twin = PopulationTrainer(_SingleEngine(config, task, torch.device("cpu"))), train_single(config, task)
        while not trainer.finished:
            trainer.train_epoch()
        for index, label in enumerate(checkpoint_labels(config)):
            assert torch.equal(trainer.state.checkpoints[index, 0], twin.checkpoints[label].weights), label
        for name in ("test_accuracy", "test_loss", "train_loss"):
            assert getattr(trainer.state, name)[0].tolist() == getattr(twin, name)
        assert trainer.state.best_epoch.tolist() == [twin.best_epoch]
        losses = trainer.measure_checkpoints()["train_loss"][:, 0].tolist()
        assert losses == [twin.checkpoints[label].train_loss for label in checkpoint_labels(config)]


@pytest.mark.parametrize("task", ["digits", "news", "photos", "lines", "words"], indirect=True)
def test_gradients_are_those_of_the_model_itself_in_float64(task: TaskData) -> None:
    spec, generator = task.spec, torch.Generator().manual_seed(0)
    flat = 0.2 * torch.randn(3, spec.num_parameters, generator=generator, dtype=torch.float64)
    (x, mask), labels = task.model_inputs(task.train.inputs[:20]), task.train.labels[:20]

    def gradient(dtype: torch.dtype) -> Tensor:
        weights = flat.to(dtype).requires_grad_()
        losses = population_losses(population_logits(spec, weights, prepare_inputs(spec, x), mask, dtype=dtype), labels)
        return torch.autograd.grad(losses.sum(), weights)[0].double()

    for row, expected in enumerate(flat):
        model = zoo.build_model(spec, expected)
        logits = model(x if spec.vocabulary else x.double(), mask)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
        exact = torch.cat([part.flatten() for part in torch.autograd.grad(loss, tuple(model.parameters()))])
        for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-4)):
            assert float((gradient(dtype)[row] - exact).norm() / exact.norm()) < tolerance, (row, dtype)


def test_chosen_crops_and_checkpoints_are_those_of_the_slow_twin(photos: TaskData) -> None:
    protocol = Protocol(epochs=3, warmup_epochs=1, batch_size=32, crop_padding=0, checkpoint_epochs=(1, 3))
    config, photos = runs("photos", protocol)[2], replace(photos, train=photos.train[slice(0, 64)])
    trainer, twin = train([config], photos, precision="float64"), train_single(config, photos, dtype=torch.float64)
    assert checkpoint_labels(config) == ("epoch_1", "epoch_3", "best")
    assert {label: checkpoint.epoch for label, checkpoint in twin.checkpoints.items()} == {
        "epoch_1": 1,
        "epoch_3": 3,
        "best": twin.best_epoch,
    }
    for index, label in enumerate(checkpoint_labels(config)):
        torch.testing.assert_close(trainer.state.checkpoints[index, 0], twin.checkpoints[label].weights)
    padded = train([replace(config, protocol=replace(protocol, crop_padding=2))], photos, precision="float64")
    assert not torch.allclose(padded.state.weights, trainer.state.weights)
    tables = list(_checkpoint_tables(trainer, trainer.measure_checkpoints()))
    assert [table["checkpoint"].to_pylist() for table in tables] == [["epoch_1", "epoch_3", "best"]]
    assert tables[0]["epoch"].to_pylist()[:2] == [1, 3]
    assert len(tables[0]["weights"][0]) == photos.spec.num_parameters


@pytest.mark.parametrize("dim", [10, 5])
def test_dropout_of_nine_layers_repeats_no_mask(dim: int, photos: TaskData) -> None:
    """Four blocks have more layers than the paper's stride of eight; 5·6·3 elements are not a multiple of four."""
    task = replace(photos, spec=replace(photos.spec, dim=dim), train=photos.train[slice(0, 12)])
    config = replace(runs("photos", Protocol(1, 1, batch_size=3))[0], dropout=0.2)
    engine = TorchEngine([config], task)
    groups = torch.arange(30)
    bits = [mask for step in range(3) for mask in engine._all_bits(engine.seeds, torch.tensor(step), groups)]
    assert len({tuple(mask.flatten().tolist()) for mask in bits}) == 3 * 9
    weights = train([config, replace(config, dropout=0.0)], task).state.weights
    assert bool(weights.isfinite().all())
    assert not torch.equal(weights[0], weights[1])


def test_larger_transformers_share_a_pass_with_fewer() -> None:
    assert _bytes_per_example(zoo.MNIST) == _bytes_per_example(zoo.AGNEWS) == 400_000
    assert 800_000 < _bytes_per_example(replace(zoo.AGNEWS, blocks=5)) < 1_100_000


def test_images_that_do_not_fit_the_transformer_are_refused(photos: TaskData) -> None:
    wrong = replace(photos, spec=replace(photos.spec, tokens=8))
    with pytest.raises(ValueError, match="images must cut into 8 patches, got 6 from 8 × 12"):
        train(runs("photos", Protocol(1, 1, batch_size=16))[:1], wrong)


def test_float32_products_stay_near_the_slow_twin(digits: TaskData) -> None:
    config = runs("mnist", Protocol(epochs=1, warmup_epochs=1, batch_size=16))[1]
    trainer = train([config], digits)
    expected = train_single(config, digits).checkpoints["epoch_100"].weights
    assert float((trainer.state.weights[0] - expected).norm() / expected.norm()) < 1e-4


@pytest.mark.long
def test_a_run_is_the_same_bytes_alone_and_in_any_company(digits: TaskData) -> None:
    protocol = Protocol(epochs=1, warmup_epochs=1, batch_size=32)
    company = [
        replace(config, dropout=dropout, init_std=std, seed=seed)
        for seed in (0, 9)
        for std, dropout in ((0.1, 0.2), (0.3, 0.0), (0.2, 0.05), (0.15, 0.1))
        for config in runs("mnist", protocol)
    ]
    assert len(company) == 32
    chosen, task = company[6], replace(digits, train=digits.train[slice(0, 64)])
    alone = train([chosen], task).state
    for size in (7, 32):
        state = train(company[:size], task).state
        assert torch.equal(state.weights[6], alone.weights[0]), size
        assert torch.equal(state.checkpoints[:, 6], alone.checkpoints[:, 0]), size
        assert torch.equal(state.test_loss[6], alone.test_loss[0]), size


@pytest.fixture
def torch_threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("task", ["digits", "lines"], indirect=True)
def test_a_run_is_the_same_bytes_with_any_number_of_threads(
    task: TaskData, torch_threads: Callable[[int], None]
) -> None:
    """Four runs on one thread, shared by three, and one of them alone with four threads that it does not use."""
    configs = runs(task.spec.task, Protocol(epochs=1, warmup_epochs=1, batch_size=40), dropout=0.1)
    states = []
    for threads in (1, 3):
        torch_threads(threads)
        trainer = train(configs, task)
        states.append(trainer.state.tensors() | trainer.measure_checkpoints())
    torch_threads(4)
    alone = train(configs[:1], task).state
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name]), name
    assert torch.equal(alone.weights[0], states[0]["weights"][0])
    assert torch.get_num_threads() == 4, "the threads of other work are left alone"


@pytest.mark.parametrize("task", ["photos", "lines", "words"], indirect=True)
def test_a_small_run_is_the_same_bytes_alone_and_stacked_with_others(
    task: TaskData, torch_threads: Callable[[int], None]
) -> None:
    """16 models of these are stacked, so 20 are two passes, the second of them filled up, and so is one run alone."""
    task = replace(task, train=task.train[slice(0, 48)])
    few = runs(task.spec.task, Protocol(epochs=1, warmup_epochs=1, batch_size=16), dropout=0.1)
    company = [replace(config, seed=seed) for seed in range(20 // len(few)) for config in few]
    torch_threads(2)
    trainer = train(company, task)
    assert isinstance(trainer.engine, TorchEngine)
    assert [rows.stop for rows in trainer.engine.passes] == [16, 20]
    stored = trainer.measure_checkpoints()
    for index in (0, 19):
        alone = train([company[index]], task)
        for name, tensor in alone.state.tensors().items():
            dim = 1 if name == "checkpoints" else 0
            assert torch.equal(tensor, trainer.state.tensors()[name].narrow(dim, index, 1)), name
        for name, tensor in alone.measure_checkpoints().items():
            assert torch.equal(tensor[:, 0], stored[name][:, index]), name


@pytest.mark.parametrize(("error", "thread"), [(KeyboardInterrupt, 0), (ValueError, 1)])
def test_what_ends_one_thread_ends_all(
    error: type[BaseException],
    thread: int,
    digits: TaskData,
    monkeypatch: pytest.MonkeyPatch,
    torch_threads: Callable[[int], None],
) -> None:
    torch_threads(2)
    configs = runs("mnist", Protocol(epochs=1, warmup_epochs=1, batch_size=16))
    engine = TorchEngine(configs, digits, models_per_pass=1)
    side_by_side, steps = engine._side_by_side, []

    def step(number: int, passes: Sequence[slice]) -> None:
        steps.append(number)
        if passes[0].start == thread:
            raise error
        time.sleep(0.2)

    monkeypatch.setattr(engine, "_side_by_side", lambda work, count, alive: side_by_side(step, count, alive))
    with pytest.raises(error):
        engine.train_epoch(PopulationTrainer(engine).state)
    assert len(steps) < 5, "five steps of either thread"


@pytest.mark.long
def test_models_in_one_pass_agree_with_models_one_by_one(digits: TaskData) -> None:
    configs = [replace(config, dropout=0.1) for config in runs("mnist", Protocol(2, 1, batch_size=80))]
    together = train(configs, digits, precision="float64", models_per_pass=3).state
    apart = train(configs, digits, precision="float64", models_per_pass=1).state
    torch.testing.assert_close(together.weights, apart.weights, rtol=1e-9, atol=1e-9)


def test_dropout_masks_differ_between_seeds_and_rates(digits: TaskData) -> None:
    protocol = Protocol(1, 1, batch_size=80)
    base = replace(runs("mnist", protocol)[0], dropout=0.2)
    same_start = train([base, replace(base, dropout=0.0), replace(base, dropout=0.1)], digits).state.weights
    assert not torch.equal(same_start[0], same_start[1])
    assert not torch.equal(same_start[0], same_start[2])
    trainer = PopulationTrainer(TorchEngine([base, replace(base, seed=1)], digits))
    trainer.state.weights[1] = trainer.state.weights[0]
    trainer.train_epoch()
    assert not torch.equal(trainer.state.weights[0], trainer.state.weights[1])


def test_a_diverged_run_is_frozen_recorded_and_disturbs_no_other(digits: TaskData) -> None:
    protocol = Protocol(epochs=3, warmup_epochs=1, batch_size=40)
    healthy = runs("mnist", protocol)[:2]
    wild = replace(healthy[0], learning_rate=1e30)
    trainer = train([healthy[0], wild, healthy[1]], digits)
    alone = train(healthy, digits)
    assert trainer.state.alive.tolist() == [True, False, True]
    assert torch.equal(trainer.state.weights[[0, 2]], alone.state.weights)
    assert int((~trainer.state.test_accuracy[1].isnan()).sum()) == 1
    assert not bool(trainer.state.checkpoints[3, 1].any())
    twin = train_single(wild, digits)
    assert twin.diverged
    assert len(twin.test_accuracy) == 1
    assert twin.checkpoints == {}


def test_stored_accuracy_can_be_measured_again_from_the_weights(digits: TaskData) -> None:
    trainer = train(runs("mnist", Protocol(2, 1, batch_size=40)), digits)
    last = checkpoint_labels(trainer.configs[0]).index("epoch_100")
    for row in range(4):
        measured = zoo.evaluate(zoo.build_model(zoo.MNIST, trainer.state.checkpoints[last, row]), digits)
        assert measured.accuracy == pytest.approx(float(trainer.state.test_accuracy[row, -1]))
        assert measured.loss == pytest.approx(float(trainer.state.test_loss[row, -1]), rel=1e-5)


@pytest.mark.long
def test_with_dropout_losses_are_distributed_as_the_slow_twins() -> None:
    """Eight configurations trained both ways, with masks of different generators.

    The training loss is measured under dropout, so it shows what is dropped: without any it is 0.07 lower.
    """
    photos = few_photos(train=320, test=300)
    task = replace(photos, spec=replace(photos.spec, blocks=2))
    protocol = Protocol(epochs=5, warmup_epochs=1, batch_size=32)
    rates: dict[Optimizer, float] = {"sgd": 1e-1, "sgd_momentum": 3e-2, "adam": 1e-2, "rmsprop": 3e-3}
    configs = [
        RunConfig(
            task="photos",
            optimizer=optimizer,
            learning_rate=rate,
            weight_decay=1e-6,
            init_std=std,
            dropout=dropout,
            protocol=protocol,
        )
        for optimizer, rate in rates.items()
        for std, dropout in ((0.1, 0.4), (0.2, 0.2))
    ]
    twins = [train_single(config, task) for config in configs]
    accuracy = torch.tensor([twin.test_accuracy[-1] for twin in twins])
    loss = torch.tensor([twin.train_loss for twin in twins]).mean(1)
    assert float(accuracy.max()) > 0.9, "nothing was learned, so nothing was compared"

    def deviation(population: PopulationTrainer) -> tuple[float, float]:
        state = population.state
        differences = state.test_accuracy[:, -1] - accuracy, state.train_loss.mean(1) - loss
        return float(differences[0].abs().mean()), float(differences[1].abs().mean())

    accuracy_off, loss_off = deviation(train(configs, task, models_per_pass=8))
    assert accuracy_off < 0.03
    assert loss_off < 0.03
    _, without_dropout = deviation(train([replace(run, dropout=0.0) for run in configs], task, models_per_pass=8))
    assert without_dropout > 0.05, "a population that drops nothing would pass unseen"


def test_passes_cover_the_population_evenly() -> None:
    assert _plan_passes(7, 3) == (slice(0, 3), slice(3, 6), slice(6, 7))
    assert _plan_passes(500, 4000) == (slice(0, 500),)
    with pytest.raises(AssertionError):
        _plan_passes(8, -1)
    assert _plan_passes(9, 4) == (slice(0, 3), slice(3, 6), slice(6, 9))


def test_runs_that_cannot_share_batches_are_refused(digits: TaskData) -> None:
    first = runs("mnist", Protocol())[0]
    with pytest.raises(ValueError, match="share task, train fraction and protocol, got 2 kinds"):
        PopulationTrainer(TorchEngine([first, replace(first, train_fraction=0.7)], digits))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("task", ["noise", "news", "lines", "words"], indirect=True)
def test_compiled_gpu_training_follows_the_cpu(task: TaskData) -> None:
    configs = runs(task.spec.task, Protocol(2, 1, batch_size=32), dropout=0.1)
    exact = train(configs, task, precision="float64").state
    on_gpu = train(configs, task, device="cuda", precision="float64").state
    torch.testing.assert_close(on_gpu.weights.cpu(), exact.weights, rtol=1e-6, atol=1e-6)
    rough = train(configs, task, device="cuda").state
    assert float((rough.train_loss.cpu() - exact.train_loss).abs().max()) < 0.05
