"""A population's state, which changes while it trains, and the interface of the engines that train it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor, nn

from generation.data import TrainingInputs, train_subset
from generation.protocol import RunConfig
from zoo.format.schema import BEST
from zoo.tasks.examples import Examples, TaskData
from zoo.transformer.spec import TransformerSpec

_CUT = 2.0


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
        weights = torch.stack([initial_weights(spec, config.init_std, config.seed) for config in configs])
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
    """The checkpoints in the order of ``PopulationState.checkpoints``."""
    return (*config.protocol.checkpoints, BEST)


class Engine(ABC):
    """Trains and measures a population on one device."""

    name: str
    precision: str
    exact_evaluation: bool  # whether ``evaluate`` is float32 throughout, as the numbers stored with a checkpoint are
    dtype: torch.dtype  # of weights and moments

    def __init__(self, configs: Sequence[RunConfig], task: TaskData, device: torch.device) -> None:
        self.configs, self.device = tuple(configs), device
        self.spec, self.protocol = task.spec, configs[0].protocol
        self.task = task.to(device)
        self.inputs = TrainingInputs.prepare(self.task, self.protocol.crop_padding)
        self.subset = train_subset(len(task.train), configs[0].train_fraction)

    @abstractmethod
    def train_epoch(self, state: PopulationState) -> Float64[Tensor, " P"]:
        """The next epoch of every run that is alive, in place; the mean loss of each over the epoch's batches."""

    @abstractmethod
    def evaluate(
        self, weights: Float[Tensor, "P d"], alive: Bool[Tensor, " P"], examples: Examples
    ) -> tuple[Float64[Tensor, " P"], Float64[Tensor, " P"]]:
        """Accuracy and mean loss on ``examples`` of every run that is alive; NaN for the others."""
