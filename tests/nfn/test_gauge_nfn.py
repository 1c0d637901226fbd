"""The pieces of Gauge-NFN: ranks, principal components, a cache of invariants."""

import numpy as np
import pytest
import torch

from nfn import GaugeNFN
from nfn.predictors.input_cache import InputCache
from nfn.predictors.ranks import Ranks, RankTable
from nfn.predictors.scaling import PrincipalComponents
from tests.nfn.conftest import weights_of
from zoo import AGNEWS, MNIST, TransformerSpec, TransformerWeights


@pytest.mark.parametrize("spec", [MNIST, AGNEWS], ids=lambda spec: spec.task)
def test_gauge_nfn_has_fewer_than_a_million_parameters(spec: TransformerSpec):
    assert sum(parameter.numel() for parameter in GaugeNFN(spec).parameters()) < 1_000_000


def test_dropout_must_be_a_share():
    with pytest.raises(ValueError, match=r"dropout is a share of at least 0 and below 1, got 1\.5"):
        GaugeNFN(MNIST, dropout=1.5)


def test_ranks_become_accuracies_in_the_same_order():
    accuracy = np.random.default_rng(0).beta(8, 1, 400).round(3)
    among, table = Ranks.among(accuracy), RankTable().double()
    ranks = torch.linspace(0, 1, 101, dtype=torch.float64)
    assert torch.equal(table(ranks), ranks), "nothing is mapped before it is fitted"
    table.fit(among)
    expected = among.accuracy_at(ranks.numpy())
    np.testing.assert_allclose(table(ranks).numpy(), expected, atol=0.01)
    assert bool((table(ranks).diff() >= 0).all())
    assert table(torch.tensor([0.0, 1.0]).double()).tolist() == [accuracy.min(), accuracy.max()]
    assert bool(table(torch.tensor(float("nan")).double()).isnan())


def test_principal_components_are_those_of_a_singular_value_decomposition(generator: torch.Generator):
    rows = torch.randn(30, 12, generator=generator, dtype=torch.float64) * torch.logspace(0, 2, 12)
    for count in (30, 8):  # more rows than features, and fewer
        principal = PrincipalComponents((12,), 5, generator).double()
        principal.fit(rows[:count])
        standard = principal.scale(rows[:count])
        _, values, vectors = torch.linalg.svd(standard - standard.mean(0), full_matrices=False)
        expected = (standard - standard.mean(0)) @ vectors[:5].mT
        components = principal(rows[:count])
        ratio = components.norm(dim=0) / values[:5]
        torch.testing.assert_close(ratio, ratio[:1].expand(5))
        torch.testing.assert_close((components / ratio).abs(), expected.abs())
        assert float(components.square().mean()) == pytest.approx(1)


def test_components_beyond_the_rank_are_zero(generator: torch.Generator):
    principal = PrincipalComponents((3, 4), 6, generator)
    rows = torch.randn(3, 7, generator=generator)
    principal.fit(rows)
    assert bool((principal(rows)[:, 2:].abs() < 1e-5).all())
    principal.fit(rows[:1].expand(4, 7))
    assert bool((principal(rows) == 0).all()), "nothing varies, nothing is read"


def test_a_large_group_of_features_does_not_outweigh_a_small_one(generator: torch.Generator):
    principal = PrincipalComponents((1, 100), 1, generator).double()
    rows = torch.randn(500, 101, generator=generator, dtype=torch.float64)
    rows[:, 1:] += rows[:, :1] * 0  # independent
    principal.fit(rows)
    weights = principal.directions[:, 0].square()
    assert float(weights[0]) > 10 * float(weights[1:].mean())


def test_what_was_read_is_not_computed_again():
    computed = []

    def compute(weights: TransformerWeights) -> torch.Tensor:
        computed.append(len(weights.flat()))
        return weights.flat()[:, :3] * 2

    cache, flat = InputCache(compute, max_bytes=4 * 3 * 4), weights_of(MNIST, 4).flat()

    def read(rows: torch.Tensor) -> torch.Tensor:
        return cache(TransformerWeights.from_flat(MNIST, rows))

    expected = flat[:, :3] * 2
    assert torch.equal(read(flat), expected)
    assert torch.equal(read(flat[[2, 0, 2]].clone()), expected[[2, 0, 2]])
    assert computed == [4]
    changed = flat.clone()
    changed[1, 5] += 1e-6
    read(changed)
    assert computed == [4, 1]
    assert len(cache) == 4, "the oldest goes when a fifth comes"
    read(flat.double())
    assert computed == [4, 1, 4], "another dtype is another input"
    sizes = {row.untyped_storage().nbytes() for row in cache._rows.values()}
    assert sizes == {3 * torch.float64.itemsize}, "a row does not keep those that were computed with it"


def test_gradients_reach_the_weights_and_the_memory_does_not_hold_them():
    predictor, flat = GaugeNFN(MNIST), weights_of(MNIST, 2).flat().requires_grad_()
    predictor.logits(flat).sum().backward()
    assert flat.grad is not None
    assert bool(torch.isfinite(flat.grad).all())
    assert float(flat.grad.abs().sum()) > 0
    assert not predictor.inputs(flat.detach()).requires_grad
