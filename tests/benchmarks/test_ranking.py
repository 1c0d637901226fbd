"""Kendall's τ-b against scipy, also with ties; errors against numpy; the coverage of the intervals."""

import math
import tracemalloc
from itertools import permutations
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from scipy.stats import kendalltau

from benchmarks.statistics import (
    _resampled_taus,
    bootstrap_taus,
    coefficient_of_determination,
    interval_of,
    kendall_tau,
    many_kendall_taus,
    noise_ceiling,
    resample_runs,
    standard_error,
    tau_with_interval,
)

FEW_VALUES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=12)


def scipy_tau(x: np.ndarray, y: np.ndarray) -> float:
    result: Any = kendalltau(x, y)
    return result.statistic


@given(pairs=FEW_VALUES)
def test_every_tau_equals_that_of_scipy_with_ties(pairs: list[tuple[int, int]]):
    x, y = np.array(pairs, dtype=np.float64).T
    expected = math.nan if len(set(x)) == 1 or len(set(y)) == 1 else scipy_tau(x, y)
    np.testing.assert_allclose(kendall_tau(x, y), expected, atol=1e-12)
    np.testing.assert_allclose(
        many_kendall_taus(torch.tensor(x)[None], torch.tensor(y)).numpy(), [expected], atol=1e-12
    )
    np.testing.assert_allclose(_resampled_taus(x, y, np.ones((1, len(x)))), [expected], atol=1e-12)


@pytest.mark.parametrize("decimals", [1, 6])
def test_taus_of_resamples_equal_those_of_scipy_on_repeated_rows(decimals: int):
    random = np.random.default_rng(0)
    x, y = np.round(random.normal(size=(2, 40)), decimals)
    counts = resample_runs(np.arange(40), resamples=20)
    expected = [scipy_tau(np.repeat(x, count.astype(int)), np.repeat(y, count.astype(int))) for count in counts]
    np.testing.assert_allclose(_resampled_taus(x, y, counts), expected, atol=1e-12)


def direct_taus(x: np.ndarray, y: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The formula as it stands, with all n² signs."""
    s, t = (np.sign(values[:, None] - values[None, :]).astype(np.float64) for values in (x, y))
    agreeing, left, right = (((counts @ pairs) * counts).sum(1) for pairs in (s * t, s**2, t**2))
    return agreeing / np.sqrt(left * right)


@pytest.mark.parametrize("decimals", [1, 9])
def test_taus_of_thousands_of_rows_are_the_direct_formulas_to_the_last_bit(decimals: int):
    random = np.random.default_rng(4)
    x, y = np.round(random.normal(size=(2, 2500)), decimals).astype(np.float32)
    counts = resample_runs(np.repeat(np.arange(500), 5), resamples=8)
    assert np.array_equal(_resampled_taus(x, y, counts), direct_taus(x, y, counts))


def test_the_memory_of_resampled_taus_does_not_grow_with_the_square_of_the_rows():
    rows = 4000
    x, y = np.round(np.random.default_rng(5).normal(size=(2, rows)), 1)
    counts = resample_runs(np.arange(rows), resamples=4)
    tracemalloc.start()
    try:
        _resampled_taus(x, y, counts)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100e6 < rows**2 * x.itemsize


def test_many_taus_in_single_precision_equal_those_of_scipy():
    random = np.random.default_rng(1)
    predicted, truth = random.random((3, 300), dtype=np.float32), random.random(300, dtype=np.float32)
    taus = many_kendall_taus(torch.from_numpy(predicted), torch.from_numpy(truth))
    np.testing.assert_allclose(taus.numpy(), [scipy_tau(row, truth) for row in predicted], atol=1e-12)


def test_the_standard_error_equals_that_of_numpy():
    values = [0.1, 0.4, 0.35, 0.8]
    assert standard_error(values) == pytest.approx(np.std(values, ddof=1) / np.sqrt(4))
    assert standard_error([0.5]) is None


def test_r2_of_a_perfect_a_mean_and_a_wrong_prediction():
    truth = np.array([0.1, 0.5, 0.9])
    assert coefficient_of_determination(truth, truth) == 1
    assert coefficient_of_determination(np.full(3, 0.5), truth) == pytest.approx(0)
    assert coefficient_of_determination(truth[::-1], truth) == pytest.approx(-3)
    assert math.isnan(coefficient_of_determination(truth, np.full(3, 0.5)))


def test_checkpoints_of_a_run_are_drawn_together():
    runs = np.repeat(np.arange(10), 4)
    counts = resample_runs(runs, resamples=50)
    assert (counts.sum(1) == 40).all()
    per_run = counts.reshape(50, 10, 4)
    assert (per_run == per_run[:, :, :1]).all()


def test_the_interval_over_runs_is_wider_than_over_rows():
    random = np.random.default_rng(2)
    truth = np.repeat(random.random(30), 4)
    predicted = truth + np.repeat(random.normal(size=30) * 0.3, 4) + random.normal(size=120) * 1e-3
    widths = []
    for runs in (np.repeat(np.arange(30), 4), np.arange(120)):
        interval = interval_of(bootstrap_taus([predicted], truth, resample_runs(runs)))
        assert interval is not None
        widths.append(interval[1] - interval[0])
    assert widths[0] > 1.5 * widths[1]


def test_copies_of_a_unit_are_not_compared():
    random = np.random.default_rng(5)
    units, truth, predicted = np.repeat(np.arange(6), 3), *random.integers(0, 9, (2, 18)).astype(np.float32)
    counts = resample_runs(units, resamples=20)
    for drawn, found in zip(counts, bootstrap_taus([predicted], truth, counts, units=units), strict=True):
        sums = np.zeros(3)
        for i, j in permutations(range(18), 2):
            weight = drawn[i] * (1 if units[i] == units[j] else drawn[j])
            x, y = np.sign(predicted[i] - predicted[j]), np.sign(truth[i] - truth[j])
            sums += weight * np.array([x * y, x * x, y * y])
        assert found == pytest.approx(sums[0] / np.sqrt(sums[1] * sums[2]))


def test_the_interval_over_repeated_configurations_holds_the_tau_of_all():
    """Easy pairs between twelve configurations, none of the order within one: τ must not drift with what is drawn."""
    random = np.random.default_rng(6)
    units = np.repeat(np.arange(12), 12)
    truth, predicted = (units + 0.4 * random.random(len(units)) for _ in range(2))
    tau, interval = tau_with_interval(predicted, truth, units)
    resampled = bootstrap_taus([predicted], truth, resample_runs(units), units=units)
    assert interval is not None
    assert interval[0] < tau < interval[1]
    assert abs(np.median(resampled) - tau) < 0.01


def test_the_interval_covers_the_tau_of_the_population():
    """100 samples of 60 rows with a known correlation: τ = 2/π·arcsin ρ."""
    random = np.random.default_rng(3)
    covered = 0
    for _ in range(100):
        x, noise = random.normal(size=(2, 60))
        y = 0.6 * x + 0.8 * noise
        interval = interval_of(bootstrap_taus([x], y, resample_runs(np.arange(60), resamples=200)))
        assert interval is not None
        covered += interval[0] <= 2 / math.pi * math.asin(0.6) <= interval[1]
    assert covered >= 85


def test_a_constant_prediction_ranks_nothing():
    truth = np.linspace(0, 1, 9)
    counts = resample_runs(np.arange(9))
    assert interval_of(bootstrap_taus([np.full(9, 0.3)], truth, counts)) == (0.0, 0.0)
    assert interval_of(bootstrap_taus([truth], np.full(9, 0.3), counts)) is None
    assert tau_with_interval(np.full(9, 0.3), truth, np.arange(9)) == (0.0, (0.0, 0.0))
    tau, interval = tau_with_interval(truth, np.full(9, 0.3), np.arange(9))
    assert math.isnan(tau)
    assert interval is None


def test_the_noise_ceiling_falls_with_fewer_examples_and_closer_accuracies():
    spread, close = np.linspace(0.1, 0.9, 50), np.linspace(0.90, 0.91, 50)
    many, some, few = (noise_ceiling(spread, examples) for examples in (10**7, 10_000, 100))
    near = noise_ceiling(close, 10_000)
    assert many is not None
    assert some is not None
    assert few is not None
    assert near is not None
    assert many > 0.99
    assert many > some > few
    assert near < 0.6
    assert near == noise_ceiling(close, 10_000)
    assert noise_ceiling(np.array([0.0, 1e-9]), 10) is None
