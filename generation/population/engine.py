"""A population's state, which changes while it trains, the rule that updates it, and the interface of the engines.

One rule holds for all four optimizers, so that they can be mixed in one population. With g = gradient + weight_decay·w
it is

    m ← β·m + γ·g          v ← α·v + (1 − α)·g²
    w ← w − lr·(m / c₁) / (√v / √c₂ + ε)      (SGD and momentum: w ← w − lr·m)

    optimizer      β     γ     α       c₁        c₂
    sgd            0     1     –       1         –
    sgd_momentum   0.9   1     –       1         –
    adam           0.9   0.1   0.999   1 − 0.9ᵗ  1 − 0.999ᵗ
    rmsprop        0     1     0.99    1         1
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor, nn

from generation.data import TrainingInputs, TrainingRows
from generation.protocol import ADAM_BETAS, EPSILON, MOMENTUM, RMSPROP_ALPHA, RunConfig
from zoo.format.schema import BEST
from zoo.tasks.examples import Examples, TaskData
from zoo.transformer.spec import TransformerSpec

_CUT = 2.0
_Column = Float[Tensor, "P 1"]
Measured = tuple[Float64[Tensor, " P"], Float64[Tensor, " P"]]
"""Accuracy and mean loss of each run."""


def initial_weights(spec: TransformerSpec, std: float, seed: int) -> Float[Tensor, " d"]:
    """Weights from a normal distribution of this standard deviation, cut at ±2; biases zero.

    The cut is absolute, not in standard deviations. Runs of one seed draw the same quantiles, so they start from the
    same weights up to the factor ``std`` (exactly so except for the cut, which only matters from std 0.4 on).
    """
    generator = torch.Generator().manual_seed(seed)
    flat = torch.zeros(spec.num_parameters)
    for name, slot in spec.tensors.items():
        if name.endswith(".weight"):
            nn.init.trunc_normal_(flat[slot.slice], std=std, a=-_CUT, b=_CUT, generator=generator)
    return flat


@dataclass
class PopulationState:
    """Everything that changes while a population trains; saved and restored as it is."""

    epoch: int  # epochs done
    weights: Float[Tensor, "P d"]
    first: Float[Tensor, "P d"]
    second: Float[Tensor, "P d"]
    alive: Bool[Tensor, " P"]
    test_accuracy: Float64[Tensor, "P epochs"]
    test_loss: Float64[Tensor, "P epochs"]
    train_loss: Float64[Tensor, "P epochs"]
    best_epoch: Int[Tensor, " P"]
    checkpoints: Float[Tensor, "labels P d"]

    @classmethod
    def initial(
        cls,
        spec: TransformerSpec,
        configs: Sequence[RunConfig],
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> "PopulationState":
        runs = len(configs)
        keys = [(config.init_std, config.seed) for config in configs]
        starts = {key: initial_weights(spec, *key) for key in dict.fromkeys(keys)}  # few, where runs share a seed
        weights = torch.stack([starts[key] for key in keys])
        weights = weights.to(device, dtype)
        curve = torch.full((runs, configs[0].protocol.epochs), torch.nan, dtype=torch.float64, device=device)
        return cls(
            epoch=0,
            weights=weights,
            first=torch.zeros_like(weights),
            second=torch.zeros_like(weights),
            alive=torch.ones(runs, dtype=torch.bool, device=device),
            test_accuracy=curve,
            test_loss=curve.clone(),
            train_loss=curve.clone(),
            best_epoch=torch.zeros(runs, dtype=torch.int64, device=device),
            checkpoints=weights.new_zeros(len(checkpoint_labels(configs[0])), *weights.shape),
        )

    def tensors(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "epoch"}


def checkpoint_labels(config: RunConfig) -> tuple[str, ...]:
    """The checkpoints in the order of ``PopulationState.checkpoints``, the best one last."""
    return (*config.protocol.checkpoints, BEST)


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


class Engine(ABC):
    """Trains and measures a population on one device."""

    name: str
    precision: str
    dtype: torch.dtype  # of weights and moments

    def __init__(self, configs: Sequence[RunConfig], task: TaskData, device: torch.device) -> None:
        self.configs, self.device = tuple(configs), device
        self.spec, self.protocol = task.spec, configs[0].protocol
        self.task = task.to(device)
        self.inputs = TrainingInputs.prepare(self.task, self.protocol.crop_padding)
        self.training_rows = TrainingRows.of(task, configs[0].train_fraction)

    @abstractmethod
    def train_epoch(self, state: PopulationState) -> Float64[Tensor, " P"]:
        """The next epoch of every run that is alive, in place; the mean loss of each over the epoch's batches."""

    @abstractmethod
    def evaluate(
        self, weights: Float[Tensor, "P d"], alive: Bool[Tensor, " P"], examples: Examples, *, exact: bool = False
    ) -> Measured:
        """Accuracy and mean loss on ``examples`` of every run that is alive; NaN for the others.

        ``exact``: in float32 throughout, as the numbers stored with a checkpoint are.
        """

    def train_and_test(self, state: PopulationState) -> tuple[Float64[Tensor, " P"], Measured]:
        """The next epoch and its losses, then accuracy and mean loss on the test split."""
        return self.train_epoch(state), self.evaluate(state.weights, state.alive, self.task.test)
