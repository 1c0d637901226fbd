"""Compares the fused engine with float64 autograd, the torch engine, and the model itself."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from rounded_gradient import FactorsIn, clear_of_zero, exact_gradient
from torch import Tensor

import zoo
from generation.data import TrainingInputs, epoch_batches
from generation.fused.engine import FusedEngine, _epoch_examples
from generation.population.engine import PopulationState
from generation.population.torch_engine import TorchEngine
from generation.protocol import Protocol, RunConfig
from zoo.format.hyperparameters import Optimizer
from zoo.tasks.examples import TaskData

RATES = {"sgd": 1e-2, "sgd_momentum": 1e-2, "adam": 1e-3, "rmsprop": 3e-4}
ONE_STEP = Protocol(epochs=1, warmup_epochs=1, batch_size=16)
MakeEngine = Callable[..., FusedEngine]


def config(task: str, optimizer: Optimizer = "sgd_momentum", *, dropout: float = 0.0, **changes) -> RunConfig:
    run = RunConfig(
        task=task, optimizer=optimizer, learning_rate=RATES[optimizer], init_std=0.3, dropout=dropout, protocol=ONE_STEP
    )
    return replace(run, **changes)


def initial_weights(task: TaskData, run: RunConfig) -> Tensor:
    """The same on every device."""
    return PopulationState.initial(task.spec, [run], torch.device("cpu")).weights


def check_gradients(
    make: Callable[[RunConfig], FusedEngine],
    task: TaskData,
    dropout: float,
    weights: Tensor | None = None,
    seed: int = 7,
) -> None:
    """Momentum's first moment after one step is the gradient itself; the reference rounds what the kernels round.

    The remaining errors are the kernels' sums in float32 and their gradients in halves: a few thousandths of the
    gradient, and a hundredth or two where a hidden unit falls on the other side of zero, which ``seed`` decides. Bounds
    are 2 % of the whole, 5 % of each tensor.
    """
    spec = task.spec
    run = config(spec.task, dropout=dropout, seed=seed)
    fused = make(run)
    batches = epoch_batches(fused.training_rows, run.protocol, epoch=0)
    examples = _epoch_examples(TrainingInputs.prepare(task), batches)
    order = (examples.facts & 0xFFFF).argsort()  # back to the order of the batch
    weights = initial_weights(task, run) if weights is None else weights.clone()

    def reference(seed: int = run.seed) -> tuple[Tensor, Tensor, Tensor]:
        with FactorsIn(torch.float16, spec.vocabulary) as mode:
            loss, gradient = exact_gradient(spec, weights, examples, order, dropout, seed)
        return loss, gradient, mode.last_relu[0]

    if not spec.causal:
        _, _, units = reference()
        weights[:, spec.tensors["classifier.fc1.bias"].slice] += clear_of_zero(units)
    state = PopulationState.initial(spec, [run], fused.device)
    state.weights[:] = weights
    loss = fused.train_epoch(state)
    gradient = state.first.cpu().double()
    expected_loss, expected, _ = reference()
    # a loss near zero is a small difference of logits near ten
    assert float(loss) == pytest.approx(float(expected_loss), rel=1e-3, abs=1e-4)
    assert float((gradient - expected).norm() / expected.norm()) < 0.02
    for tensor, slot in spec.tensors.items():
        own, theirs = gradient[0, slot.slice], expected[0, slot.slice]
        assert float((own - theirs).norm() / theirs.norm()) < 0.05, tensor
    if dropout:
        _, other_masks, _ = reference(seed=run.seed + 1)
        assert float((gradient - other_masks).norm() / expected.norm()) > 0.2, "the masks make no difference"


def check_two_epochs(
    make: Callable[[list[RunConfig]], FusedEngine], task: TaskData, optimizers: tuple[str, ...], **changes
) -> None:
    """With dropout, batches in three parts for the classifier's gradients, and a decay that shows in four steps."""
    protocol, decays = Protocol(epochs=2, warmup_epochs=2, batch_size=48), {"sgd": 1.0, "sgd_momentum": 1.0}
    configs = [
        config(task.spec.task, optimizer, dropout=0.1, weight_decay=decay, protocol=protocol, **changes)
        for optimizer, decay in ((optimizer, decays.get(optimizer, 1e-4)) for optimizer in optimizers)
    ]
    fused, twin = make(configs), TorchEngine(configs, task)
    ours, theirs = (PopulationState.initial(task.spec, configs, device) for device in (fused.device, twin.device))
    before = theirs.weights.clone()
    for _ in range(protocol.epochs):
        torch.testing.assert_close(fused.train_epoch(ours).cpu(), twin.train_epoch(theirs), rtol=1e-2, atol=0)
        ours.epoch += 1
        theirs.epoch += 1
    moved = (theirs.weights - before).norm(dim=1)
    apart = (ours.weights.cpu() - theirs.weights).norm(dim=1)
    assert bool((moved > 0).all())
    # adaptive optimizers take full steps for the smallest gradients, whose signs depend on rounding
    limits = {"sgd": 0.02, "sgd_momentum": 0.02, "adam": 0.2, "rmsprop": 0.3}
    limit = torch.tensor([limits[optimizer] for optimizer in optimizers])
    assert bool((apart < limit * moved).all()), (apart / moved).tolist()


def check_evaluation(fused: FusedEngine, task: TaskData, weights: Tensor) -> None:
    """Against the model that ``zoo.build_model`` makes of the weights."""
    on_device, alive = weights.to(fused.device), torch.tensor([True], device=fused.device)
    measured = zoo.evaluate(zoo.build_model(task.spec, weights[0]), task)
    accuracy, loss = fused.evaluate(on_device, alive, fused.task.test, exact=True)
    answers = len(task.test) * (task.spec.tokens if task.spec.causal else 1)
    # a GPU adds in another order: two logits that are equal up to rounding may change places
    swapped = 1.01 / answers if fused.device.type == "cuda" else 0.0
    assert float(accuracy) == pytest.approx(measured.accuracy, rel=0, abs=swapped)
    assert float(loss) == pytest.approx(measured.loss, rel=3e-6, abs=1e-6)
    accuracy, loss = fused.evaluate(on_device, alive, fused.task.test)
    assert float(accuracy) == pytest.approx(measured.accuracy, abs=1.01 / len(task.test))
    # a loss near zero is a small difference of logits near ten
    assert float(loss) == pytest.approx(measured.loss, rel=3e-3, abs=1e-4)
