"""Predictors that train together: each as if alone, for as long as its schedule says, at its best epoch."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from benchmarks.data import Fitted
from benchmarks.models import training
from benchmarks.models.training import (
    RECIPES,
    _epoch_batches,
    _paper_rates,
    _Recipe,
    train_together,
)
from benchmarks.statistics import kendall_tau
from nfn import GaugeNFN, MLPPredictor, Predictor, StatNN, TransformerNFN
from tests.benchmarks.synthetic import SMALL, invariant_label, invent
from zoo import TransformerWeights

KINDS: list[type[Predictor]] = [TransformerNFN, MLPPredictor, StatNN, GaugeNFN]
TRAIN, VALIDATION = invent(48, 0, invariant_label), invent(20, 1, invariant_label)


def build(kind: type[Predictor], generator: torch.Generator, *, dropout: bool = True) -> Predictor:
    predictor = kind(SMALL, generator=generator)
    if not dropout:
        predictor.dropout = 0.0
    return predictor


def fit(
    kind: type[Predictor], seeds: tuple[int, ...], epochs: int = 3, *, scaled: bool = False, dropout: bool = True
) -> list[Fitted]:
    return train_together(
        lambda generator: build(kind, generator, dropout=dropout),
        seeds,
        TRAIN,
        VALIDATION,
        _Recipe(scaled=scaled),
        epochs,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_training_together_changes_nothing_but_rounding(kind: type[Predictor]):
    seeds = (0, 1, 5)
    alone = [fit(kind, (seed,))[0] for seed in seeds]
    for fitted, reference in zip(fit(kind, seeds), alone, strict=True):
        assert (fitted.epoch, fitted.epochs) == (reference.epoch, reference.epochs)
        np.testing.assert_allclose(fitted.predict(VALIDATION), reference.predict(VALIDATION), atol=2e-3)
        assert fitted.validation_tau == pytest.approx(reference.validation_tau, abs=0.05)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_member_is_trained_as_by_a_plain_loop_in_torch(kind: type[Predictor], scaled: bool):
    """The same predictor, rows and rates with torch's Adam; 48 rows are three whole batches."""
    (fitted,) = fit(kind, (4,), epochs=2, scaled=scaled, dropout=False)
    predictor = build(kind, torch.Generator().manual_seed(4), dropout=False)
    predictor.load_state_dict(dict(build(kind, torch.Generator()).named_buffers()), strict=False)  # of no seed
    if scaled:
        predictor.fit_scale(TransformerWeights.from_flat(SMALL, TRAIN.weights))
    optimizer = torch.optim.Adam(predictor.parameters())
    taus, read = [], []
    for epoch, rate in enumerate(_paper_rates(2)):
        optimizer.param_groups[0]["lr"] = rate
        for rows in _epoch_batches(48, (4,), epoch, torch.device("cpu"))[0][:, 0]:
            optimizer.zero_grad()
            votes = predictor.votes(predictor.inputs(TransformerWeights.from_flat(SMALL, TRAIN.weights[rows])))
            F.binary_cross_entropy_with_logits(votes, TRAIN.accuracy[rows, None].expand_as(votes)).backward()
            optimizer.step()
        with torch.no_grad():
            read.append(predictor(TransformerWeights.from_flat(SMALL, VALIDATION.weights)).numpy())
        taus.append(kendall_tau(read[-1], VALIDATION.truth()))
    np.testing.assert_allclose(fitted.predict(VALIDATION), read[(fitted.epoch or 0) - 1], atol=1e-4)
    assert fitted.validation_tau == pytest.approx(max(taus), abs=1e-6)


def test_an_epoch_has_every_row_once_and_padding_has_weight_zero():
    index, row_weights = _epoch_batches(35, (0, 7), 3, torch.device("cpu"))
    assert index.shape == row_weights.shape == (3, 2, training._BATCH_SIZE)
    for member in range(2):
        real = index[:, member][row_weights[:, member] > 0]
        assert sorted(real.tolist()) == list(range(35))
    assert torch.allclose(row_weights.sum(-1), torch.ones(3, 2))
    assert not torch.equal(index[:, 0], index[:, 1])


def test_the_learning_rates_of_the_paper():
    rates = list(_paper_rates(50))
    assert len(rates) == 50
    np.testing.assert_allclose(rates[:10], np.arange(1, 11) * 1e-4)
    assert rates[-1] == pytest.approx(1e-5)
    assert all(later < earlier for earlier, later in pairwise(rates[9:]))


def test_training_goes_on_while_validation_improves_and_ends_when_it_does_not():
    for improved, expected in ((False, 9 + 3 * 10), (True, 400)):
        rates, epochs = RECIPES["converged"].rates(0), 1
        next(rates)
        while rates.send(improved):
            epochs += 1
        assert epochs == expected


@pytest.mark.long
def test_a_longer_training_is_never_worse_on_validation():
    all_fitted = train_together(
        lambda generator: MLPPredictor(SMALL, generator=generator),
        (0, 1),
        TRAIN,
        VALIDATION,
        RECIPES["converged"],
    )
    for fitted in all_fitted:
        assert fitted.epoch is not None
        assert fitted.epochs is not None
        assert 39 <= fitted.epochs <= 400
        assert 1 <= fitted.epoch <= fitted.epochs
        tau = kendall_tau(fitted.predict(VALIDATION), VALIDATION.truth())
        assert math.isclose(fitted.validation_tau, tau, abs_tol=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", KINDS)
def test_the_recorded_step_trains_like_the_one_on_the_cpu(kind: type[Predictor]):
    device = torch.device("cuda")
    train, validation = (replace(rows, weights=rows.weights.to(device)) for rows in (TRAIN, VALIDATION))
    on_gpu = train_together(lambda generator: kind(SMALL, generator=generator), (0, 1), train, validation, _Recipe(), 3)
    for fitted, reference in zip(on_gpu, fit(kind, (0, 1)), strict=True):
        np.testing.assert_allclose(fitted.predict(validation), reference.predict(VALIDATION), atol=5e-2)
        assert fitted.epochs == reference.epochs == 3


def skewed_label(weights: TransformerWeights, generator: torch.Generator) -> torch.Tensor:
    """Nearly all accuracies within 2 % of each other, a few far below, in the order of an invariant."""
    return 0.96 + 0.02 * invariant_label(weights, generator) ** 4


@pytest.mark.parametrize("kind", KINDS)
def test_places_as_target_are_mapped_back_to_accuracies(kind: type[Predictor]):
    train, validation = invent(48, 0, skewed_label), invent(20, 1, skewed_label)
    (fitted,) = train_together(
        lambda generator: kind(SMALL, generator=generator),
        (0,),
        train,
        validation,
        _Recipe(place=True),
        epochs=3,
    )
    predicted = fitted.predict(validation)
    assert train.truth().min() <= predicted.min() < predicted.max() <= train.truth().max()
    with torch.no_grad():
        assert isinstance(fitted.predictor, Predictor)
        places = torch.sigmoid(fitted.predictor.logits(validation.weights)).numpy()
        assert np.ptp(places) > 0.02, "before they are mapped back, predictions are places in [0, 1]"
        assert bool((np.diff(predicted[places.argsort()]) > 0).all()), "in the same order, without ties"
        if isinstance(fitted.predictor, GaugeNFN):
            np.testing.assert_allclose(fitted.predictor(validation.weights).numpy(), predicted, atol=1e-6)


def test_the_paper_recipe_has_no_places_and_no_weight_decay():
    assert not RECIPES["paper"].place
    assert RECIPES["paper"].weight_decay == 0
    assert RECIPES["place"] == replace(RECIPES["paper"], place=True)
