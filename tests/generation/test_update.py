"""One update rule against the four optimizers of torch."""

from dataclasses import replace

import pytest
import torch

from generation.population.engine import UpdateRule, update
from generation.protocol import RunConfig
from generation.single import make_model, make_optimizer
from zoo.transformer.spec import MNIST

CONFIGS = [
    RunConfig(task="mnist", optimizer=optimizer, learning_rate=3e-2, weight_decay=1e-2, init_std=0.1)
    for optimizer in ("sgd", "sgd_momentum", "adam", "rmsprop")
]


@pytest.mark.parametrize("steps", [1, 2, 30])
def test_mixed_update_is_each_optimizer_of_torch(steps: int) -> None:
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn(steps, len(CONFIGS), 18_506, generator=generator, dtype=torch.float64)
    rule = UpdateRule.of(CONFIGS, torch.device("cpu"), torch.float64)
    models = [make_model(MNIST, config, torch.device("cpu")).double() for config in CONFIGS]
    optimizers = [make_optimizer(config, model) for config, model in zip(CONFIGS, models, strict=True)]
    weights = torch.stack([torch.cat([p.detach().flatten() for p in model.parameters()]) for model in models])
    first, second = torch.zeros_like(weights), torch.zeros_like(weights)
    alive, rates = torch.ones(4, 1, dtype=torch.bool), torch.full((4, 1), 3e-2, dtype=torch.float64)
    for step, gradient in enumerate(gradients, start=1):
        weights, first, second = update(rule, weights, first, second, gradient, rates, alive, torch.tensor(step))
        for row, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            parts = gradient[row].split([p.numel() for p in model.parameters()])
            for parameter, part in zip(model.parameters(), parts, strict=True):
                parameter.grad = part.view_as(parameter)
            optimizer.step()
    expected = torch.stack([torch.cat([p.detach().flatten() for p in model.parameters()]) for model in models])
    torch.testing.assert_close(weights, expected, rtol=1e-10, atol=1e-12)


def test_a_frozen_run_stays_and_its_neighbor_is_unaffected() -> None:
    configs = [replace(CONFIGS[2], learning_rate=rate) for rate in (1e-3, 1e-2)]
    rule = UpdateRule.of(configs, torch.device("cpu"))
    weights, gradient = torch.randn(2, 10), torch.randn(2, 10)
    gradient[0] = torch.nan
    zeros, rates = torch.zeros(2, 10), torch.tensor([[1e-3], [1e-2]])
    frozen = update(rule, weights, zeros, zeros, gradient, rates, torch.tensor([[False], [True]]), torch.tensor(1))
    free = update(rule, weights, zeros, zeros, gradient, rates, torch.tensor([[True], [True]]), torch.tensor(1))
    assert torch.equal(frozen[0][0], weights[0])
    assert bool(free[0][0].isnan().all())
    for with_frozen, with_free in zip(frozen, free, strict=True):
        assert torch.equal(with_frozen[1], with_free[1])
