"""Everything that changes while a population trains."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from generation.population.initialization import initial_weights
from generation.protocol import RunConfig
from zoo.format.schema import BEST
from zoo.transformer.spec import TransformerSpec


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
        protocol = configs[0].protocol
        weights = torch.stack([initial_weights(spec, config.init_std, config.seed) for config in configs])
        weights = weights.to(device, dtype)
        curve = torch.full((len(configs), protocol.epochs), torch.nan, dtype=torch.float64, device=device)
        labels = len(checkpoint_labels(configs[0]))
        return cls(
            epoch=0,
            weights=weights,
            first=torch.zeros_like(weights),
            second=torch.zeros_like(weights),
            alive=torch.ones(len(configs), dtype=torch.bool, device=device),
            test_accuracy=curve,
            test_loss=curve.clone(),
            train_loss=curve.clone(),
            best_epoch=torch.zeros(len(configs), dtype=torch.int64, device=device),
            checkpoints=weights.new_zeros(labels, *weights.shape),
        )

    def tensors(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "epoch"}


def checkpoint_labels(config: RunConfig) -> tuple[str, ...]:
    """The checkpoints in the order of ``PopulationState.checkpoints``."""
    return (*config.protocol.checkpoints, BEST)
