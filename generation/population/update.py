"""One update rule for all four optimizers, so that they can be mixed in one population.

With g = gradient + weight_decay·w, every optimizer of the zoo is

    m ← β·m + γ·g          v ← α·v + (1 − α)·g²
    w ← w − lr·(m / c₁) / (√v / √c₂ + ε)      (SGD and momentum: w ← w − lr·m)

    optimizer      β     γ     α       c₁        c₂
    sgd            0     1     –       1         –
    sgd_momentum   0.9   1     –       1         –
    adam           0.9   0.1   0.999   1 − 0.9ᵗ  1 − 0.999ᵗ
    rmsprop        0     1     0.99    1         1
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from generation.protocol import ADAM_BETAS, EPSILON, MOMENTUM, RMSPROP_ALPHA, RunConfig

_Column = Float[Tensor, "P 1"]


@dataclass(frozen=True)
class UpdateRule:
    """The coefficients of the table above, one row per run."""

    beta: _Column
    gamma: _Column
    alpha: _Column
    one_minus_alpha: _Column
    first_decay: Float64[Tensor, "P 1"]  # c₁ = 1 − first_decayᵗ, in float64 because 1 − 0.999 loses five digits
    second_decay: Float64[Tensor, "P 1"]  # c₂ = 1 − second_decayᵗ
    adaptive: Bool[Tensor, "P 1"]
    weight_decay: _Column

    @classmethod
    def of(cls, configs: Sequence[RunConfig], device: torch.device, dtype: torch.dtype = torch.float32) -> "UpdateRule":
        def column(values: dict[str, float], dtype: torch.dtype = dtype) -> Tensor:
            rows = [[values.get(config.optimizer, 0.0)] for config in configs]
            return torch.tensor(rows, dtype=dtype, device=device)

        return cls(
            beta=column({"sgd_momentum": MOMENTUM, "adam": ADAM_BETAS[0]}),
            gamma=column({"sgd": 1.0, "sgd_momentum": 1.0, "adam": 1 - ADAM_BETAS[0], "rmsprop": 1.0}),
            alpha=column({"adam": ADAM_BETAS[1], "rmsprop": RMSPROP_ALPHA}),
            one_minus_alpha=column({"adam": 1 - ADAM_BETAS[1], "rmsprop": 1 - RMSPROP_ALPHA}),
            first_decay=column({"adam": ADAM_BETAS[0]}, torch.float64),
            second_decay=column({"adam": ADAM_BETAS[1]}, torch.float64),
            adaptive=column({"adam": 1.0, "rmsprop": 1.0}) > 0,
            weight_decay=torch.tensor([[config.weight_decay] for config in configs], dtype=dtype, device=device),
        )

    def rows(self, rows: slice) -> "UpdateRule":
        """The rule of some of the runs."""
        return UpdateRule(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


def update(
    rule: UpdateRule,
    weights: Float[Tensor, "P d"],
    first: Float[Tensor, "P d"],
    second: Float[Tensor, "P d"],
    gradient: Float[Tensor, "P d"],
    learning_rate: _Column,
    alive: Bool[Tensor, "P 1"],
    step: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Weights and both moments after step ``step`` (counted from 1); a run that is not alive stays as it is."""
    total = gradient + rule.weight_decay * weights
    new_first = rule.beta * first + rule.gamma * total
    new_second = rule.alpha * second + rule.one_minus_alpha * total * total
    first_correction = (1 - rule.first_decay**step).to(weights.dtype)
    second_correction = torch.sqrt(1 - rule.second_decay**step).to(weights.dtype)
    denominator = torch.where(rule.adaptive, new_second.sqrt() / second_correction + EPSILON, 1.0)
    new_weights = weights - learning_rate / first_correction * new_first / denominator
    return (
        torch.where(alive, new_weights, weights),
        torch.where(alive, new_first, first),
        torch.where(alive, new_second, second),
    )
