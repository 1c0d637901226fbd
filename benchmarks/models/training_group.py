"""Trains predictors of one architecture together: several seeds and several thresholds, each with its own rows.

Every step trains all of them. Each training group (the members with the same rows) goes through its own epochs, as long
as its rows last, so no group waits for another; members that are done stay in the step with a learning rate of zero.
After each of its epochs a group is read on validation, and each member keeps the parameters of its best epoch. Nothing
here sees a test row.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Integer
from torch import Tensor
from torch.nn import functional as F

from benchmarks.data.checkpoints import Checkpoints
from benchmarks.models.schedule import EPOCHS, Recipe, Schedule
from benchmarks.statistics.ranking import many_kendall_taus
from nfn import GaugeNFN, Predictor, PredictorEnsemble, TrainingStep
from nfn.predictors.ranks import Ranks, RankTable
from nfn.training import READ_AT_ONCE
from zoo import TransformerWeights

BATCH_SIZE = 16


@dataclass(frozen=True)
class TrainingGroup:
    """Members that train on the same rows and are read on the same validation rows, one per seed."""

    rows: Integer[np.ndarray, " n"]
    validation: Integer[np.ndarray, " v"]
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class FittedPredictor:
    """A trained predictor at the epoch that did best on validation, and what maps its places to accuracies, if any."""

    predictor: Predictor
    epoch: int
    epochs: int
    validation_tau: float
    places: RankTable | None = None

    @torch.no_grad()
    def predict(self, rows: Checkpoints) -> Float[np.ndarray, " n"]:
        parts = [torch.sigmoid(self.predictor.logits(weights)) for weights in rows.pieces(READ_AT_ONCE)]
        predicted = torch.cat(parts).cpu()
        return (predicted if self.places is None else self.places(predicted.double())).numpy()

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.predictor.parameters())


def train_together(
    build: Callable[[torch.Generator], Predictor],
    groups: Sequence[TrainingGroup],
    train: Checkpoints,
    validation: Checkpoints,
    recipe: Recipe,
    epochs: int = EPOCHS,
) -> list[list[FittedPredictor]]:
    """The fitted predictors of each group, in the order of its seeds.

    A seed decides the first parameters and the order of the rows, whatever else trains at the same time. By a scaled
    recipe each group brings what it reads to unit size, by its training rows; by one of places its targets are the
    places of accuracies among those of its training rows.
    """
    predictors, targets = [], []
    all_ranks = [Ranks.among(train.truth()[group.rows]) if recipe.place else None for group in groups]
    for group, ranks in zip(groups, all_ranks, strict=True):
        unseeded = build(torch.Generator()).to(train.weights.device)
        if recipe.scaled:
            rows = train.take(group.rows).weights
            unseeded.fit_scale(TransformerWeights.from_flat(train.spec, rows, check_finite=False))
        for seed in group.seeds:
            predictor = build(torch.Generator().manual_seed(seed))
            if recipe.scaled:
                predictor.load_state_dict(dict(unseeded.named_buffers()), strict=False)
            predictors.append(predictor)
            targets.append(targets_of(train, ranks))
    ensemble = PredictorEnsemble(predictors, train.weights.device)
    step = TrainingStep(
        ensemble,
        train.weights,
        torch.stack(targets),
        batch_size=BATCH_SIZE,
        weight_decay=recipe.weight_decay,
        seeds=[seed for group in groups for seed in group.seeds],
    )
    all_progress, start = [], 0
    for group, ranks in zip(groups, all_ranks, strict=True):
        members = slice(start, start + len(group.seeds))
        schedules = [recipe.schedule(epochs) for _ in group.seeds]
        all_progress.append(GroupProgress(group, members, step, validation.take(group.validation), schedules, ranks))
        start = members.stop
    while any(progress.running for progress in all_progress):
        for progress in all_progress:
            progress.before_step()
        step()
        for progress in all_progress:
            progress.after_step()
    return [progress.fitted() for progress in all_progress]


def targets_of(rows: Checkpoints, ranks: Ranks | None) -> Float[Tensor, " n"]:
    """The accuracies, or their places among those that ``ranks`` were made of."""
    return rows.accuracy if ranks is None else torch.from_numpy(ranks.of(rows.truth())).to(rows.accuracy)


class GroupProgress:
    """How far one group, the given members of the ensemble, has come through its epochs."""

    def __init__(
        self,
        group: TrainingGroup,
        members: slice,
        step: TrainingStep,
        validation: Checkpoints,
        schedules: Sequence[Schedule],
        ranks: Ranks | None,
    ) -> None:
        self.group, self.members, self.step = group, members, step
        self.schedules, self.ranks = schedules, ranks
        self.ensemble = step.ensemble
        self.validation_inputs = self.ensemble.inputs(validation.weights, members)
        self.validation_truth, self.validation_targets = validation.accuracy, targets_of(validation, ranks)
        self.epoch = self.position = 0
        self.steps = math.ceil(len(group.rows) / BATCH_SIZE)
        self.index = self.row_weights = torch.empty(0)
        device = self.ensemble.parameters.device
        count = len(group.seeds)
        self.best_tau = torch.full((count,), -math.inf, dtype=torch.float64, device=device)
        self.best_loss = torch.full((count,), math.inf, dtype=torch.float64, device=device)
        self.best_epoch = torch.zeros(count, dtype=torch.long, device=device)
        self.best = self.ensemble.parameters.detach()[members].clone()
        self.ended = [0] * count
        self.running = True
        self._set_rates()

    def before_step(self) -> None:
        if not self.running:
            return
        if self.position == 0:
            self.index, self.row_weights = epoch_batches(self.group, self.epoch, self.ensemble.parameters.device)
        self.step.set_batches(self.index[self.position], self.row_weights[self.position], self.members)

    def after_step(self) -> None:
        if not self.running:
            return
        self.position += 1
        if self.position < self.steps:
            return
        self.position, self.epoch = 0, self.epoch + 1
        better = self._keep_best()
        # Only a schedule that needs the validation result makes the host wait for the device.
        needs_validation = any(schedule.needs_validation for schedule in self.schedules)
        all_improved = better.tolist() if needs_validation else [False] * len(self.schedules)
        for schedule, improved in zip(self.schedules, all_improved, strict=True):
            if schedule.rate() is not None:
                schedule.advance(improved)
        self._set_rates()

    def fitted(self) -> list[FittedPredictor]:
        places = None if self.ranks is None else RankTable.of(self.ranks)
        fitted = []
        for number, (tau, epoch) in enumerate(zip(self.best_tau.tolist(), self.best_epoch.tolist(), strict=True)):
            predictor = self.ensemble.member(self.members.start + number, self.best[number])
            if self.ranks is not None and isinstance(predictor, GaugeNFN):
                predictor.places.fit(self.ranks)
            known_tau = tau if tau >= -1 else math.nan
            fitted.append(FittedPredictor(predictor, epoch, self.ended[number], known_tau, places))
        return fitted

    def _set_rates(self) -> None:
        rates = [schedule.rate() for schedule in self.schedules]
        for number, rate in enumerate(rates):
            if rate is None and not self.ended[number]:
                self.ended[number] = self.epoch
        self.running = any(rate is not None for rate in rates)
        self.step.set_rates(torch.tensor([rate or 0.0 for rate in rates]), self.members)

    def _keep_best(self) -> Tensor:
        """Reads the group on validation, keeps the parameters of members that improved, and says which did.

        Better is a higher τ, and at equal τ a lower loss. Members whose training has ended no longer improve.
        """
        logits = self.ensemble.read_inputs(self.validation_inputs, self.members).double()
        targets = self.validation_targets.double().expand_as(logits)
        tau = many_kendall_taus(logits, self.validation_truth).nan_to_num(nan=-2.0)  # undefined is worse than any
        loss = F.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(1)
        training = torch.tensor([ended == 0 for ended in self.ended]).to(tau.device, non_blocking=True)
        better = ((tau > self.best_tau) | ((tau == self.best_tau) & (loss < self.best_loss))) & training
        self.best_tau = torch.where(better, tau, self.best_tau)
        self.best_loss = torch.where(better, loss, self.best_loss)
        self.best_epoch = torch.where(better, self.epoch, self.best_epoch)
        self.best = torch.where(better[:, None], self.ensemble.parameters.detach()[self.members], self.best)
        return better


def epoch_batches(
    group: TrainingGroup, epoch: int, device: torch.device
) -> tuple[Integer[Tensor, "s m b"], Float[Tensor, "s m b"]]:
    """The batches of one epoch, all rows in a new order for each seed, and what each row counts in its batch's mean.

    The last batch is filled up with rows of weight 0: a recorded step has one shape.
    """
    count = len(group.rows)
    steps = math.ceil(count / BATCH_SIZE)
    index = np.zeros((len(group.seeds), steps * BATCH_SIZE), dtype=np.int64)
    for member, seed in enumerate(group.seeds):
        index[member, :count] = np.random.default_rng([seed, epoch]).permutation(group.rows)
    real = (np.arange(steps * BATCH_SIZE) < count).reshape(steps, 1, BATCH_SIZE)
    row_weights = np.broadcast_to(real / real.sum(-1, keepdims=True), (steps, len(group.seeds), BATCH_SIZE))
    batches = index.reshape(len(group.seeds), steps, BATCH_SIZE).swapaxes(0, 1)
    return (
        torch.from_numpy(batches.copy()).to(device, non_blocking=True),
        torch.from_numpy(row_weights.astype(np.float32)).to(device, non_blocking=True),
    )
