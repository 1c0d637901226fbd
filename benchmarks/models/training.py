"""Trains neural predictors: for how long, at what learning rate, to what target, and which epoch is kept.

``train_together`` trains predictors of one architecture at once, one for each seed. ``train_one_by_one`` does the same
for plain networks, which may have what cannot be stacked: dropout, batch normalization, branches. Nothing here sees a
test row.
"""

import copy
import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.data import Checkpoints, Fitted
from benchmarks.options import EPOCHS
from benchmarks.statistics import kendall_tau, many_kendall_taus
from nfn import GaugeNFN, Predictor, PredictorEnsemble, TrainingStep
from nfn.predictors.ranks import Ranks, RankTable
from nfn.predictors.scaling import WeightScale
from nfn.training import READ_AT_ONCE
from zoo import TransformerWeights
from zoo.device import one_thread
from zoo.format.schema import direction_of

_BATCH_SIZE = 16
_WARMUP = 10
_PEAK_RATE, _LAST_RATE = 1e-3, 1e-5
_PATIENCE, _MAX_EPOCHS, _DROP = 10, 400, 0.1
_UNDEFINED = -2.0  # instead of a τ that is not defined: worse than any other


_Rates = Generator[float, bool, None]
"""The learning rate of each epoch, from which it is sent whether validation improved."""


def _paper_rates(epochs: int) -> _Rates:
    """Linear warm-up over the first fifth of the epochs to 1e-3, then a cosine to 1e-5 (appendix:training-details).

    The rate changes between epochs. The paper has 50 epochs and so 10 of warm-up.
    """
    warmup = max(1, round(epochs * _WARMUP / EPOCHS))
    for epoch in range(epochs):
        progress = (epoch - warmup + 1) / max(1, epochs - warmup)
        cosine = _LAST_RATE + (_PEAK_RATE - _LAST_RATE) * (1 + math.cos(math.pi * progress)) / 2
        yield _PEAK_RATE * (epoch + 1) / warmup if epoch < warmup else cosine


def _plateau_rates() -> _Rates:
    """The same warm-up, then the peak rate until validation has not improved for 10 epochs, then a tenth of it, …

    Training ends when the rate falls below the last rate of the paper, 1e-5, or after 400 epochs: every model gets as
    many epochs as it still learns from.
    """
    level, idle = _PEAK_RATE, 0
    for epoch in range(1, _MAX_EPOCHS + 1):
        improved = yield level * min(1.0, epoch / _WARMUP)
        idle = 0 if improved or epoch < _WARMUP else idle + 1
        if idle >= _PATIENCE:
            level, idle = level * _DROP, 0
        if level < _LAST_RATE * 0.99:
            return


@dataclass(frozen=True)
class _Recipe:
    """``converged`` trains until validation stops improving, ``scaled`` first brings what is read to unit size.

    ``place`` trains to predict an accuracy's rank among the training accuracies, and maps the prediction back. Losses
    are no shares between 0 and 1 as a network predicts them, so their ranks are the targets of every recipe.
    """

    converged: bool = False
    scaled: bool = False
    place: bool = False
    weight_decay: float = 0.0

    def rates(self, epochs: int) -> _Rates:
        """The rate of each epoch; 0 when training is over."""
        yield from _plateau_rates() if self.converged else _paper_rates(epochs)
        while True:
            yield 0.0

    def ranks(self, goodness: Float[np.ndarray, " n"], label: str) -> Ranks | None:
        return Ranks.among(goodness) if self.place or label != "test_accuracy" else None


# The paper's recipe is a fixed number of epochs on the weights as they are. The other columns' recipes change one thing
# each; "gauge" is what Gauge-NFN is trained by.
RECIPES = {
    "paper": _Recipe(),
    "converged": _Recipe(converged=True),
    "scaled": _Recipe(scaled=True),
    "place": _Recipe(place=True),
    "gauge": _Recipe(place=True, scaled=True, weight_decay=1e-2),
}


def _fitted(
    network: nn.Module, epoch: int, epochs: int, tau: float, ranks: Ranks | None, scale: WeightScale | None = None
) -> Fitted:
    """A trained network at the epoch that did best on validation; ``ranks`` map what it predicts to accuracies.

    ``scale`` brings weights to unit size for a network that cannot do so itself.
    """
    table = None if ranks is None else RankTable.of(ranks)

    def predict(rows: Checkpoints) -> Float[np.ndarray, " n"]:
        predicted = torch.sigmoid(_read(network, scale, rows)).cpu()
        return (predicted if table is None else table(predicted.double())).numpy()

    parameters = sum(parameter.numel() for parameter in network.parameters())
    return Fitted(predict, tau if tau >= -1 else math.nan, epoch, epochs, parameters, network)


@one_thread()
def train_together(
    build: Callable[[torch.Generator], Predictor],
    seeds: Sequence[int],
    train: Checkpoints,
    validation: Checkpoints,
    recipe: _Recipe,
    epochs: int = EPOCHS,
) -> list[Fitted]:
    """A fitted predictor for each seed, trained as an ensemble.

    A seed decides the first parameters and the order of the rows, whatever else trains at the same time. By a scaled
    recipe what is read is brought to unit size, by the training rows; by one of ranks the targets are the ranks of
    accuracies among those of the training rows. Better is a higher τ on validation, and at equal τ a lower loss.
    Members whose training has ended stay in the step with a learning rate of zero, and no longer improve.
    """
    device, count = train.weights.device, len(seeds)
    ranks = recipe.ranks(train.truth(), train.label)
    unseeded = build(torch.Generator()).to(device)
    if recipe.scaled:
        unseeded.fit_inputs(train.readable, train.goodness)
        unseeded.fit_scale(train.readable)
    predictors = [build(torch.Generator().manual_seed(seed)) for seed in seeds]
    for predictor in predictors:
        predictor.load_state_dict(dict(unseeded.named_buffers()), strict=False)
    ensemble = PredictorEnsemble(predictors, device)
    step = TrainingStep(
        ensemble,
        train.weights,
        _targets_of(train, ranks),
        batch_size=_BATCH_SIZE,
        weight_decay=recipe.weight_decay,
        seeds=seeds,
    )
    inputs, targets = ensemble.inputs(validation.weights), _targets_of(validation, ranks).double()
    best_tau = torch.full((count,), -math.inf, dtype=torch.float64, device=device)
    best_loss = torch.full_like(best_tau, math.inf)
    best_epoch = torch.zeros(count, dtype=torch.long, device=device)
    best = ensemble.parameters.detach().clone()
    schedules = [recipe.rates(epochs) for _ in seeds]
    rates = [next(schedule) for schedule in schedules]
    trained, epoch = [0] * count, 0
    while any(rates):
        step.set_rates(torch.tensor(rates))
        for batches in zip(*_epoch_batches(len(train), seeds, epoch, device), strict=True):
            step.set_batches(*batches)
            step()
        epoch += 1
        trained = [epoch if rate else done for done, rate in zip(trained, rates, strict=True)]
        logits = ensemble.read(inputs).double()
        tau = many_kendall_taus(logits, validation.goodness).nan_to_num(nan=_UNDEFINED)
        loss = F.binary_cross_entropy_with_logits(logits, targets.expand_as(logits), reduction="none").mean(1)
        training = torch.tensor(rates).to(device, non_blocking=True) > 0
        better = ((tau > best_tau) | ((tau == best_tau) & (loss < best_loss))) & training
        best_tau, best_loss = torch.where(better, tau, best_tau), torch.where(better, loss, best_loss)
        best_epoch = torch.where(better, epoch, best_epoch)
        best = torch.where(better[:, None], ensemble.parameters.detach(), best)
        # only a schedule that depends on validation makes the host wait for the device
        improved = better.tolist() if recipe.converged else [False] * count
        rates = [schedule.send(now) for schedule, now in zip(schedules, improved, strict=True)]
    fitted = []
    for number, (tau, epoch) in enumerate(zip(best_tau.tolist(), best_epoch.tolist(), strict=True)):
        predictor = ensemble.member(number, best[number])
        if ranks is not None and isinstance(predictor, GaugeNFN):
            predictor.places.fit(ranks, direction_of(validation.label))
        fitted.append(_fitted(predictor, epoch, trained[number], tau, ranks))
    return fitted


def _targets_of(rows: Checkpoints, ranks: Ranks | None) -> Float[Tensor, " n"]:
    """The accuracies, or their ranks."""
    return rows.goodness if ranks is None else torch.from_numpy(ranks.of(rows.truth())).to(rows.goodness)


def _epoch_batches(
    rows: int, seeds: Sequence[int], epoch: int, device: torch.device
) -> tuple[Integer[Tensor, "s m b"], Float[Tensor, "s m b"]]:
    """The batches of one epoch, all rows in a new order for each seed, and what each row counts in its batch's mean.

    The last batch is filled up with rows of weight 0: a recorded step has one shape.
    """
    orders = np.stack([np.random.default_rng([seed, epoch]).permutation(rows) for seed in seeds])
    padded = torch.from_numpy(np.pad(orders, ((0, 0), (0, -rows % _BATCH_SIZE))))
    index = padded.unflatten(1, (-1, _BATCH_SIZE)).transpose(0, 1).contiguous()
    real = (torch.arange(padded.shape[1]) < rows).float().view(-1, 1, _BATCH_SIZE)
    row_weights = (real / real.sum(-1, keepdim=True)).expand(index.shape).contiguous()
    return index.to(device, non_blocking=True), row_weights.to(device, non_blocking=True)


@one_thread()
def train_one_by_one(
    build: Callable[[torch.Generator], nn.Module],
    seeds: Sequence[int],
    train: Checkpoints,
    validation: Checkpoints,
    recipe: _Recipe,
    epochs: int = EPOCHS,
) -> list[Fitted]:
    """A fitted network for each seed.

    Batches, targets, learning rates and the choice of the epoch are those of ``train_together``: the highest τ on
    validation, and at equal τ the lowest loss.
    """
    device, ranks = train.weights.device, recipe.ranks(train.truth(), train.label)
    scale = None
    if recipe.scaled:
        scale = WeightScale(train.spec).to(device)
        scale.fit(TransformerWeights.from_flat(train.spec, train.weights, check_finite=False))
    targets, validation_targets = _targets_of(train, ranks), _targets_of(validation, ranks).double()

    def fit(seed: int) -> Fitted:
        torch.manual_seed(seed)
        module = build(torch.Generator().manual_seed(seed)).to(device)
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if not parameters:
            raise ValueError(f"{type(module).__name__} has no parameters to train: give it fit and predict instead")
        optimizer = torch.optim.Adam(parameters, weight_decay=recipe.weight_decay, decoupled_weight_decay=True)
        rates, epoch = recipe.rates(epochs), 0
        rate = next(rates)
        best, best_epoch, best_merit = copy.deepcopy(module.state_dict()), 0, (-math.inf, -math.inf)
        while rate:
            optimizer.param_groups[0]["lr"] = rate
            module.train()
            index, row_weights = _epoch_batches(len(train), (seed,), epoch, device)
            for padded, counted in zip(index[:, 0], row_weights[:, 0] > 0, strict=True):
                batch = padded[counted]
                weights = TransformerWeights.from_flat(train.spec, train.weights[batch], check_finite=False)
                loss = F.binary_cross_entropy_with_logits(_logits(module, scale, weights), targets[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            epoch += 1
            predicted = _read(module, scale, validation).double()
            tau = np.nan_to_num(kendall_tau(predicted.cpu().numpy(), validation.truth()), nan=_UNDEFINED)
            merit = (float(tau), -float(F.binary_cross_entropy_with_logits(predicted, validation_targets)))
            if merit > best_merit:
                best, best_epoch, best_merit = copy.deepcopy(module.state_dict()), epoch, merit
            rate = rates.send(best_epoch == epoch)
        module.load_state_dict(best)
        return _fitted(module, best_epoch, epoch, best_merit[0], ranks, scale)

    # torch's own random numbers, which dropout draws from, follow the seed and are put back afterwards
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        return [fit(seed) for seed in seeds]


@torch.no_grad()
def _read(module: nn.Module, scale: WeightScale | None, rows: Checkpoints) -> Float[Tensor, " n"]:
    """The logits of all rows, a few hundred at a time, as the network predicts and not as it trains."""
    module.eval()
    return torch.cat([_logits(module, scale, weights) for weights in rows.pieces(READ_AT_ONCE)])


def _logits(module: nn.Module, scale: WeightScale | None, weights: TransformerWeights) -> Float[Tensor, " b"]:
    """One number for each checkpoint; anything else that a network of the user's returns is a ValueError."""
    network: Any = module
    result = network.logits(weights if scale is None else scale(weights))
    expected = list(weights.batch_shape)
    if not isinstance(result, Tensor) or list(result.shape) != expected:
        got = f"shape {list(result.shape)}" if isinstance(result, Tensor) else f"a {type(result).__name__}"
        name = type(module).__name__
        raise ValueError(f"{name}.logits must return one number per checkpoint, {expected} here, got {got}")
    return result
