"""Trains predictors of one architecture together: several seeds, several thresholds, each with rows of its own.

Every step is one step of all. Classes (the members with the same rows) progress through epochs of their own, as long as
their rows last, so nobody waits for anybody; who is done goes on at rate zero. After each of its epochs a class is
read on validation, and each member keeps the parameters of its best epoch. Nothing here sees a test row.
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
from benchmarks.models.schedule import Schedule
from benchmarks.models.stacked import READ_AT_ONCE, StackedPredictors, StackedStep
from benchmarks.statistics.ranking import many_kendall_taus
from nfn import Predictor
from zoo import TransformerWeights

BATCH_SIZE = 16


@dataclass(frozen=True)
class TrainingGroup:
    """Members that train on the same rows and are read on the same validation rows, one a seed."""

    rows: Integer[np.ndarray, " n"]
    validation: Integer[np.ndarray, " v"]
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class FittedPredictor:
    """A trained predictor at the epoch that did best on validation."""

    predictor: Predictor
    epoch: int
    epochs: int
    validation_tau: float

    @torch.no_grad()
    def predict(self, rows: Checkpoints) -> Float[np.ndarray, " n"]:
        parts = [torch.sigmoid(self.predictor.logits(weights)) for weights in rows.pieces(READ_AT_ONCE)]
        return torch.cat(parts).cpu().numpy()

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.predictor.parameters())


def train_together(
    build: Callable[[torch.Generator], Predictor],
    classes: Sequence[TrainingGroup],
    train: Checkpoints,
    validation: Checkpoints,
    schedule: Callable[[], Schedule],
    *,
    scaled: bool = False,
) -> list[list[FittedPredictor]]:
    """The fitted predictors of each class, in the order of its seeds.

    A seed decides the first parameters and the order of the rows, whatever else trains at the same time. With
    ``scaled`` each class brings the weights it reads to unit size, by its training rows.
    """
    predictors = []
    for one in classes:
        scale = build(torch.Generator()).to(train.weights.device).scale
        if scaled:
            scale.fit(TransformerWeights.from_flat(train.spec, train.take(one.rows).weights, check_finite=False))
        for seed in one.seeds:
            predictor = build(torch.Generator().manual_seed(seed))
            predictor.scale.load_state_dict(scale.state_dict())
            predictors.append(predictor)
    stack = StackedPredictors(predictors, train.weights.device)
    step = StackedStep(stack, train, BATCH_SIZE)
    all_progress, start = [], 0
    for one in classes:
        members = slice(start, start + len(one.seeds))
        all_progress.append(GroupProgress(one, members, stack, step, validation.take(one.validation), schedule))
        start = members.stop
    while any(progress.running for progress in all_progress):
        for progress in all_progress:
            progress.before_step()
        step()
        for progress in all_progress:
            progress.after_step()
    return [progress.fitted() for progress in all_progress]


class GroupProgress:
    """One class on its way through its epochs."""

    def __init__(
        self,
        own: TrainingGroup,
        members: slice,
        stack: StackedPredictors,
        step: StackedStep,
        validation: Checkpoints,
        schedule: Callable[[], Schedule],
    ) -> None:
        self.own, self.members, self.stack, self.step, self.validation = own, members, stack, step, validation
        self.schedules = [schedule() for _ in own.seeds]
        self.epoch = self.position = 0
        self.steps = math.ceil(len(own.rows) / BATCH_SIZE)
        self.index = self.share = torch.empty(0)
        device = stack.parameters.device
        count = len(own.seeds)
        self.best_tau = torch.full((count,), -math.inf, dtype=torch.float64, device=device)
        self.best_loss = torch.full((count,), math.inf, dtype=torch.float64, device=device)
        self.best_epoch = torch.zeros(count, dtype=torch.long, device=device)
        self.best = stack.parameters.detach()[members].clone()
        self.ended = [0] * count
        self.running = True
        self._set_rates()

    def before_step(self) -> None:
        if not self.running:
            return
        if self.position == 0:
            self.index, self.share = epoch_batches(self.own, self.epoch, self.stack.parameters.device)
        self.step.index[self.members] = self.index[self.position]
        self.step.share[self.members] = self.share[self.position]

    def after_step(self) -> None:
        if not self.running:
            return
        self.position += 1
        if self.position < self.steps:
            return
        self.position, self.epoch = 0, self.epoch + 1
        better = self._keep_best()
        # Only a schedule that listens to validation makes the host wait for the device.
        listens = any(schedule.needs_validation for schedule in self.schedules)
        improved = better.tolist() if listens else [False] * len(self.schedules)
        for schedule, news in zip(self.schedules, improved, strict=True):
            if schedule.rate() is not None:
                schedule.advance(news)
        self._set_rates()

    def fitted(self) -> list[FittedPredictor]:
        found = []
        for number, (tau, epoch) in enumerate(zip(self.best_tau.tolist(), self.best_epoch.tolist(), strict=True)):
            predictor = self.stack.predictor(self.best[number], self.members.start + number)
            found.append(FittedPredictor(predictor, epoch, self.ended[number], tau if tau >= -1 else math.nan))
        return found

    def _set_rates(self) -> None:
        rates = [schedule.rate() for schedule in self.schedules]
        for number, rate in enumerate(rates):
            if rate is None and not self.ended[number]:
                self.ended[number] = self.epoch
        self.running = any(rate is not None for rate in rates)
        self.step.rates[self.members] = torch.tensor([rate or 0.0 for rate in rates]).to(self.step.rates.device)

    def _keep_best(self) -> Tensor:
        """Reads the class on validation. Better is a higher τ, at equal τ a lower loss. Who has ended stays so."""
        logits = self.stack.read(self.members, self.validation).double()
        truth = self.validation.accuracy
        tau = many_kendall_taus(logits, truth).nan_to_num(nan=-2.0)  # undefined is worse than any
        loss = F.binary_cross_entropy_with_logits(logits, truth.double().expand_as(logits), reduction="none").mean(1)
        alive = torch.tensor([ended == 0 for ended in self.ended]).to(tau.device, non_blocking=True)
        better = ((tau > self.best_tau) | ((tau == self.best_tau) & (loss < self.best_loss))) & alive
        self.best_tau = torch.where(better, tau, self.best_tau)
        self.best_loss = torch.where(better, loss, self.best_loss)
        self.best_epoch = torch.where(better, self.epoch, self.best_epoch)
        self.best = torch.where(better[:, None], self.stack.parameters.detach()[self.members], self.best)
        return better


def epoch_batches(
    own: TrainingGroup, epoch: int, device: torch.device
) -> tuple[Integer[Tensor, "s m b"], Float[Tensor, "s m b"]]:
    """The batches of one epoch, all rows in a new order for each seed, and what each row counts in its batch's mean.

    The last batch is filled up with rows that count nothing: a recorded step has one shape.
    """
    count = len(own.rows)
    steps = math.ceil(count / BATCH_SIZE)
    index = np.zeros((len(own.seeds), steps * BATCH_SIZE), dtype=np.int64)
    for member, seed in enumerate(own.seeds):
        index[member, :count] = np.random.default_rng([seed, epoch]).permutation(own.rows)
    real = (np.arange(steps * BATCH_SIZE) < count).reshape(steps, 1, BATCH_SIZE)
    share = np.broadcast_to(real / real.sum(-1, keepdims=True), (steps, len(own.seeds), BATCH_SIZE))
    batches = index.reshape(len(own.seeds), steps, BATCH_SIZE).swapaxes(0, 1)
    return (
        torch.from_numpy(batches.copy()).to(device, non_blocking=True),
        torch.from_numpy(share.astype(np.float32)).to(device, non_blocking=True),
    )
