"""Trains networks of the user's own one after the other, by the same recipes as the predictors that train together.

A plain ``nn.Module`` may have what cannot be stacked with others of its kind: dropout, batch normalization, branches.
Batches, targets, learning rates and the choice of the epoch are those of ``train_together``.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.data.checkpoints import Checkpoints
from benchmarks.models.schedule import EPOCHS, Recipe, Schedule
from benchmarks.models.training_group import TrainingGroup, epoch_batches, targets_of
from benchmarks.statistics.ranking import kendall_tau
from nfn.predictors.ranks import Ranks, RankTable
from nfn.predictors.scaling import WeightScale
from nfn.training import READ_AT_ONCE
from zoo import TransformerWeights


@dataclass(frozen=True)
class FittedModule:
    """A trained network at the epoch that did best on validation, and what maps its places to accuracies, if any."""

    module: nn.Module
    scale: WeightScale | None
    epoch: int
    epochs: int
    validation_tau: float
    places: RankTable | None = None

    def predict(self, rows: Checkpoints) -> Float[np.ndarray, " n"]:
        predicted = torch.sigmoid(read(self.module, self.scale, rows)).cpu()
        return (predicted if self.places is None else self.places(predicted.double())).numpy()

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.module.parameters())


def train_apart(
    build: Callable[[torch.Generator], nn.Module],
    groups: Sequence[TrainingGroup],
    train: Checkpoints,
    validation: Checkpoints,
    recipe: Recipe,
    epochs: int = EPOCHS,
) -> list[list[FittedModule]]:
    """The fitted networks of each group, in the order of its seeds; the arguments are those of ``train_together``."""
    all_fitted = []
    for group in groups:
        rows, held_out = train.take(group.rows), validation.take(group.validation)
        ranks = Ranks.among(rows.truth()) if recipe.place else None
        scale = WeightScale(train.spec).to(train.weights.device) if recipe.scaled else None
        if scale is not None:
            scale.fit(TransformerWeights.from_flat(train.spec, rows.weights, check_finite=False))
        fitted = []
        for seed in group.seeds:
            alone = TrainingGroup(group.rows, group.validation, (seed,))
            with seeded(seed, train.weights.device):
                module = build(torch.Generator().manual_seed(seed)).to(train.weights.device)
                schedule = recipe.schedule(epochs)
                fitted.append(train_one(module, scale, alone, train, held_out, schedule, ranks, recipe.weight_decay))
        all_fitted.append(fitted)
    return all_fitted


def train_one(
    module: nn.Module,
    scale: WeightScale | None,
    group: TrainingGroup,
    train: Checkpoints,
    validation: Checkpoints,
    schedule: Schedule,
    ranks: Ranks | None,
    weight_decay: float,
) -> FittedModule:
    """The network at its best epoch: that of the highest τ on validation, and at equal τ of the lowest loss."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not parameters:
        raise ValueError(f"{type(module).__name__} has no parameters to train: give it fit and predict instead")
    optimizer = torch.optim.Adam(parameters, weight_decay=weight_decay, decoupled_weight_decay=True)
    targets, truth = targets_of(train, ranks), validation.truth()
    validation_targets = targets_of(validation, ranks).double()
    best, best_epoch, best_merit, epoch = copy.deepcopy(module.state_dict()), 0, (-math.inf, -math.inf), 0
    while (rate := schedule.rate()) is not None:
        optimizer.param_groups[0]["lr"] = rate
        module.train()
        index, row_weights = epoch_batches(group, epoch, train.weights.device)
        for rows, counted in zip(index[:, 0], row_weights[:, 0] > 0, strict=True):
            batch = rows[counted]
            loss = F.binary_cross_entropy_with_logits(logits(module, scale, train, batch), targets[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        epoch += 1
        predicted = read(module, scale, validation).double()
        tau = np.nan_to_num(kendall_tau(predicted.cpu().numpy(), truth), nan=-2.0)  # undefined is worse than any
        merit = (float(tau), -float(F.binary_cross_entropy_with_logits(predicted, validation_targets)))
        if merit > best_merit:
            best, best_epoch, best_merit = copy.deepcopy(module.state_dict()), epoch, merit
        schedule.advance(best_epoch == epoch)
    module.load_state_dict(best)
    places = None if ranks is None else RankTable.of(ranks)
    return FittedModule(module, scale, best_epoch, epoch, best_merit[0] if best_merit[0] >= -1 else math.nan, places)


@torch.no_grad()
def read(module: nn.Module, scale: WeightScale | None, rows: Checkpoints) -> Float[Tensor, " n"]:
    """The logits of all rows, a few hundred at a time, as the network predicts and not as it trains."""
    module.eval()
    pieces = torch.arange(len(rows), device=rows.weights.device).split(READ_AT_ONCE)
    return torch.cat([logits(module, scale, rows, piece) for piece in pieces])


def logits(module: nn.Module, scale: WeightScale | None, rows: Checkpoints, index: Tensor) -> Float[Tensor, " b"]:
    """What the network says of some rows; one number for each is asked of it."""
    weights = TransformerWeights.from_flat(rows.spec, rows.weights[index], check_finite=False)
    network: Any = module
    result = network.logits(weights if scale is None else scale(weights))
    if not isinstance(result, Tensor) or result.shape != index.shape:
        got = f"shape {list(result.shape)}" if isinstance(result, Tensor) else f"a {type(result).__name__}"
        name = type(module).__name__
        raise ValueError(f"{name}.logits must return one number per checkpoint, [{len(index)}] here, got {got}")
    return result


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Torch's own random numbers, which dropout draws from, follow the seed and are put back afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
