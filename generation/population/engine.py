"""What trains a population: the interface that the torch engine and the fused kernels share."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from generation.population.state import PopulationState
from generation.protocol import RunConfig
from zoo.tasks.examples import Examples, TaskData


@runtime_checkable
class Engine(Protocol):
    """Trains and measures a population on one device."""

    @property
    def configs(self) -> tuple[RunConfig, ...]:
        """The runs of the population."""
        ...

    @property
    def name(self) -> str: ...

    @property
    def precision(self) -> str: ...

    @property
    def exact_evaluation(self) -> bool:
        """Whether ``evaluate`` is float32 throughout, as the numbers stored beside a checkpoint are."""
        ...

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and moments."""
        ...

    @property
    def task(self) -> TaskData:
        """The data, on the device."""
        ...

    @property
    def subset(self) -> Tensor:
        """Rows of the training examples that are trained on."""
        ...

    def train_epoch(self, state: PopulationState) -> Float64[Tensor, " P"]:
        """The next epoch of every living run, in place; the mean loss of each over the epoch's batches."""
        ...

    def evaluate(
        self, weights: Float[Tensor, "P d"], alive: Bool[Tensor, " P"], examples: Examples
    ) -> tuple[Float64[Tensor, " P"], Float64[Tensor, " P"]]:
        """Accuracy and mean loss of every living run on ``examples``; NaN for the others."""
        ...
