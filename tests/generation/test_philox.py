"""Counter-based dropout: the published generator, the right rates, and nothing but the counter."""

import pytest
import torch

from generation.population import dropout
from generation.population.dropout import LOWEST, _philox2x32, counter_stride, drop_threshold, dropout_bits


def literal_philox(low: int, high: int, key: int, rounds: int) -> tuple[int, int]:
    """The definition, in Python's exact integers."""
    for _ in range(rounds):
        product = 0xD256D193 * low
        low, high = (product >> 32) ^ key ^ high, product % 2**32
        key = (key + 0x9E3779B9) % 2**32
    return low, high


@pytest.mark.parametrize(
    ("low", "high", "key", "expected"),
    [
        (0, 0, 0, (0xFF1DAE59, 0x6CD10DF2)),
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, (0x2C3F628B, 0xAB4FD7AD)),
        (0x243F6A88, 0x85A308D3, 0x13198A2E, (0xDD7CE038, 0xF62A4C12)),
    ],
)
def test_ten_rounds_give_the_authors_known_answers(
    monkeypatch: pytest.MonkeyPatch, low: int, high: int, key: int, expected: tuple[int, int]
) -> None:
    assert literal_philox(low, high, key, rounds=10) == expected
    monkeypatch.setattr(dropout, "_ROUNDS", 10)
    words = _philox2x32(torch.tensor(low), torch.tensor(high), torch.tensor(key))
    assert tuple(int(word) for word in words) == expected


def test_bits_are_philox_of_seed_step_layer_and_index() -> None:
    seeds = torch.tensor([5, 2**32 - 1])
    bits = dropout_bits(seeds, torch.tensor(1234 * counter_stride(5) + 3), torch.arange(10))
    assert bits.shape == (2, 40)
    for row, seed in enumerate(seeds.tolist()):
        for index in (0, 1, 17, 38, 39):
            words = literal_philox(index // 4, 1234 * 8 + 3, seed, rounds=7)
            bits16 = (words[index % 4 // 2] >> 16 * (index % 2)) % 2**16
            assert int(bits[row, index]) == bits16 + LOWEST


def test_steps_are_eight_counters_apart_or_as_many_as_a_deep_transformer_needs() -> None:
    assert [counter_stride(1 + 2 * blocks) for blocks in (1, 2, 3, 4, 7, 8)] == [8, 8, 8, 16, 16, 32]


@pytest.mark.parametrize("probability", [0.05, 0.1, 0.15, 0.2])
def test_keep_rates_are_right_within_sampling_error(probability: float) -> None:
    bits = dropout_bits(torch.tensor([7]), torch.tensor(11), torch.arange(250_000))
    kept = float((bits >= drop_threshold(probability)).double().mean())
    deviation = (probability * (1 - probability) / bits.numel()) ** 0.5
    assert abs(kept - (1 - probability)) < 4 * deviation + 2**-17


def test_no_dropout_keeps_everything() -> None:
    bits = dropout_bits(torch.tensor([7]), torch.tensor(11), torch.arange(250_000))
    assert bool((bits >= drop_threshold(0.0)).all())


def test_masks_of_other_seeds_steps_layers_and_positions_are_uncorrelated() -> None:
    groups = torch.arange(50_000)
    streams = [
        dropout_bits(torch.tensor([seed]), torch.tensor(8 * step + place), groups)[0] >= drop_threshold(0.2)
        for seed, step, place in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (2**31, 0, 0)]
    ]
    streams.append(streams[0].roll(1))
    correlations = torch.corrcoef(torch.stack(streams).double()) - torch.eye(len(streams))
    assert float(correlations.abs().max()) < 5 / len(streams[0]) ** 0.5


def test_a_dropout_that_keeps_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="keeps less than one element of 65536"):
        drop_threshold(0.999999)
