"""Predictors that train together: each as if alone, for as long as its schedule says, at its best epoch."""

import math
from dataclasses import replace
from itertools import chain, pairwise

import numpy as np
import pytest
import torch

from benchmarks.models import training_group as cohort
from benchmarks.models.schedule import RECIPES, PaperSchedule, PlateauSchedule
from benchmarks.models.training_group import FittedPredictor, TrainingGroup, epoch_batches, train_together
from benchmarks.statistics.ranking import kendall_tau
from nfn import MLPPredictor, Predictor, StatNN, TrainingStep, TransformerNFN
from tests.benchmarks.synthetic import SMALL, invariant_label, invent
from zoo import TransformerWeights

KINDS: list[type[Predictor]] = [TransformerNFN, MLPPredictor, StatNN]
TRAIN, VALIDATION = invent(48, 0, invariant_label), invent(20, 1, invariant_label)


def fit(
    kind: type[Predictor], classes: list[TrainingGroup], epochs: int = 3, *, scaled: bool = False
) -> list[list[FittedPredictor]]:
    return train_together(
        lambda generator: kind(SMALL, generator=generator),
        classes,
        TRAIN,
        VALIDATION,
        lambda: PaperSchedule(epochs),
        scaled=scaled,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_company_changes_nothing_but_rounding(kind: type[Predictor]):
    many = TrainingGroup(np.arange(48), np.arange(20), (0, 1))
    few = TrainingGroup(np.arange(5, 26), np.arange(3, 20), (1,))
    together = fit(kind, [many, few])
    alone = [fit(kind, [TrainingGroup(c.rows, c.validation, (seed,))])[0][0] for c in (many, few) for seed in c.seeds]
    for one, other in zip([*together[0], *together[1]], alone, strict=True):
        assert (one.epoch, one.epochs) == (other.epoch, other.epochs)
        np.testing.assert_allclose(one.predict(VALIDATION), other.predict(VALIDATION), atol=2e-3)
        assert one.validation_tau == pytest.approx(other.validation_tau, abs=0.05)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_member_is_trained_by_torch_s_own_adam(kind: type[Predictor], scaled: bool):
    """The same predictor, rows and rates through the plain training step; 48 rows are three whole batches."""
    own = TrainingGroup(np.arange(48), np.arange(20), (4,))
    fitted = fit(kind, [own], epochs=2, scaled=scaled)[0][0]
    predictor = kind(SMALL, generator=torch.Generator().manual_seed(4))
    if scaled:
        predictor.fit_scale(TransformerWeights.from_flat(SMALL, TRAIN.weights))
    step = TrainingStep(predictor)
    schedule, taus, read = PaperSchedule(2), [], []
    for epoch in range(2):
        rate = schedule.rate()
        assert rate is not None
        step.set_learning_rate(rate)
        for rows in epoch_batches(own, epoch, torch.device("cpu"))[0]:
            step(TRAIN.weights[rows[0]], TRAIN.accuracy[rows[0]])
        schedule.advance(improved=False)
        with torch.no_grad():
            read.append(predictor(TransformerWeights.from_flat(SMALL, VALIDATION.weights)).numpy())
        taus.append(kendall_tau(read[-1], VALIDATION.truth()))
    np.testing.assert_allclose(fitted.predict(VALIDATION), read[fitted.epoch - 1], atol=1e-4)
    assert fitted.validation_tau == pytest.approx(max(taus), abs=1e-6)


def test_an_epoch_has_every_row_once_and_the_filling_counts_nothing():
    own = TrainingGroup(np.arange(10, 45), np.arange(1), (0, 7))
    index, share = epoch_batches(own, 3, torch.device("cpu"))
    assert index.shape == share.shape == (3, 2, cohort.BATCH_SIZE)
    for member in range(2):
        real = index[:, member][share[:, member] > 0]
        assert sorted(real.tolist()) == list(range(10, 45))
    assert torch.allclose(share.sum(-1), torch.ones(3, 2))
    assert not torch.equal(index[:, 0], index[:, 1])


def test_the_paper_s_rates():
    schedule, rates = PaperSchedule(), []
    while (rate := schedule.rate()) is not None:
        rates.append(rate)
        schedule.advance(improved=False)
    assert len(rates) == 50
    np.testing.assert_allclose(rates[:10], np.arange(1, 11) * 1e-4)
    assert rates[-1] == pytest.approx(1e-5)
    assert all(later < earlier for earlier, later in pairwise(rates[9:]))


def test_training_goes_on_while_validation_improves_and_ends_when_it_does_not():
    idle, epochs = PlateauSchedule(), 0
    while idle.rate() is not None:
        idle.advance(improved=False)
        epochs += 1
    assert epochs == 9 + 3 * 10
    eager, epochs = PlateauSchedule(), 0
    while eager.rate() is not None:
        eager.advance(improved=True)
        epochs += 1
    assert epochs == 400


def test_a_longer_training_is_never_worse_on_validation():
    own = TrainingGroup(np.arange(48), np.arange(20), (0, 1))
    found = train_together(
        lambda generator: MLPPredictor(SMALL, generator=generator),
        [own],
        TRAIN,
        VALIDATION,
        lambda: RECIPES["converged"].schedule(0),
    )[0]
    for one in found:
        assert 39 <= one.epochs <= 400
        assert 1 <= one.epoch <= one.epochs
        assert math.isclose(one.validation_tau, kendall_tau(one.predict(VALIDATION), VALIDATION.truth()), abs_tol=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", KINDS)
def test_the_recorded_step_trains_like_the_one_on_the_cpu(kind: type[Predictor]):
    """Two classes of different length, so that one goes on when the other is done."""
    classes = [TrainingGroup(np.arange(48), np.arange(20), (0, 1)), TrainingGroup(np.arange(21), np.arange(20), (0,))]
    device = torch.device("cuda")
    train, validation = (
        replace(rows, weights=rows.weights.to(device), accuracy=rows.accuracy.to(device))
        for rows in (TRAIN, VALIDATION)
    )
    on_gpu = train_together(
        lambda generator: kind(SMALL, generator=generator), classes, train, validation, lambda: PaperSchedule(3)
    )
    for one, other in zip(chain(*on_gpu), chain(*fit(kind, classes)), strict=True):
        np.testing.assert_allclose(one.predict(validation), other.predict(VALIDATION), atol=5e-2)
        assert one.epochs == other.epochs == 3
