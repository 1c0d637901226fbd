"""Dropout masks from a counter: random bits that depend on the run's seed, the step and the place, and on nothing else.

Philox2x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) with 7 rounds, the fewest that pass all
of their tests. One call turns a 64-bit counter and a 32-bit key into 64 bits: four elements of 16 bits each.

    key     = seed of the run
    counter = (index of the group of four elements, stride·step + place)

The stride is 8, which leaves room for the places of three blocks; deeper transformers have the next power of two.
An element is dropped where its 16 bits, as a number, lie below p·2¹⁶.
"""

import torch
from jaxtyping import Int, Int16
from torch import Tensor

MULTIPLIER = 0xD256D193
KEY_STEP = 0x9E3779B9
ROUNDS = 7
WORD = 0xFFFFFFFF
ELEMENTS_PER_CALL = 4
PLACES_PER_STEP = 8
LOWEST = -(1 << 15)  # 16 bits are kept as signed integers: 0 becomes −2¹⁵


def philox2x32(low: Tensor, high: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """The two output words for counters (low, high) and keys, all 32-bit numbers held in int64, broadcast together."""
    for _ in range(ROUNDS):
        product = low * MULTIPLIER  # wraps modulo 2⁶⁴, which leaves all 64 bits right
        low = ((product >> 32) & WORD) ^ key ^ high
        high = product & WORD
        key = (key + KEY_STEP) & WORD
    return low, high


def place_stride(places: int) -> int:
    """By how much the counter advances in a step with this many places: the least power of two, at least 8."""
    return max(PLACES_PER_STEP, 1 << (places - 1).bit_length())


def dropout_bits(
    seeds: Int[Tensor, " seeds"], moment: Int[Tensor, ""], groups: Int[Tensor, " groups"]
) -> Int16[Tensor, "seeds n"]:
    """16 random bits, as int16, for every element of an activation and every seed.

    ``moment`` is stride·step + place; ``groups`` counts the activation's elements in fours: 0, 1, 2, …
    """
    first, second = philox2x32(groups[None], moment, seeds[:, None])
    words = torch.stack([first, first >> 16, second, second >> 16], dim=-1)
    return ((words & 0xFFFF) + LOWEST).to(torch.int16).flatten(1)


def drop_threshold(probability: float) -> int:
    """An element is kept where its bits are at least this."""
    if (dropped := round(probability * (1 << 16))) == 1 << 16:
        raise ValueError(f"dropout {probability} keeps less than one element of {1 << 16}")
    return dropped + LOWEST
