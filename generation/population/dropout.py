"""Dropout masks of a population.

They come from a counter: their random bits depend on the run's seed, the step and the layer, and on nothing
else. Philox2x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) with 7 rounds, the fewest that
pass all of their tests, turns a 64-bit counter and a 32-bit key into 64 bits: four elements of 16 bits each.

    key     = seed of the run
    counter = (index of the group of four elements, stride·step + layer)

The stride is 8, which leaves room for the dropout layers of three blocks; deeper transformers have the next power of
two. An element is dropped where its 16 bits, as a number, lie below p·2¹⁶.
"""

import torch
from jaxtyping import Float, Int, Int16
from torch import Tensor

from zoo.transformer.population import Dropout
from zoo.transformer.spec import TransformerSpec

_MULTIPLIER, _KEY_STEP, _ROUNDS, _WORD = 0xD256D193, 0x9E3779B9, 7, 0xFFFFFFFF  # of Philox2x32
ELEMENTS_PER_CALL = 4
_LEAST_STRIDE = 8
LOWEST = -(1 << 15)  # 16 bits are kept as signed integers: 0 becomes −2¹⁵


def dropout_layers(spec: TransformerSpec) -> int:
    """After the embedding, and after attention and MLP of each block."""
    return 1 + 2 * spec.blocks


def _philox2x32(low: Tensor, high: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """The two output words for counters (low, high) and keys, all 32-bit numbers held in int64, broadcast together."""
    for _ in range(_ROUNDS):
        product = low * _MULTIPLIER  # wraps modulo 2⁶⁴, which leaves all 64 bits right
        low = ((product >> 32) & _WORD) ^ key ^ high
        high = product & _WORD
        key = (key + _KEY_STEP) & _WORD
    return low, high


def counter_stride(layers: int) -> int:
    """By how much the counter advances in a step with this many layers of dropout: a power of two, at least 8."""
    return max(_LEAST_STRIDE, 1 << (layers - 1).bit_length())


def dropout_bits(
    seeds: Int[Tensor, " seeds"], moment: Int[Tensor, ""], groups: Int[Tensor, " groups"]
) -> Int16[Tensor, "seeds n"]:
    """16 random bits, as int16, for every element of an activation and every seed.

    ``moment`` is stride·step + layer; ``groups`` counts the activation's elements in fours: 0, 1, 2, …
    """
    first, second = _philox2x32(groups[None], moment, seeds[:, None])
    words = torch.stack([first, first >> 16, second, second >> 16], dim=-1)
    return ((words & 0xFFFF) + LOWEST).to(torch.int16).flatten(1)


def drop_threshold(probability: float) -> int:
    """An element is kept where its bits are at least this."""
    if (dropped := round(probability * (1 << 16))) == 1 << 16:
        raise ValueError(f"dropout {probability} keeps less than one element of {1 << 16}")
    return dropped + LOWEST


def mask_dropout(bits: list[Tensor], thresholds: Int16[Tensor, " p"], scales: Float[Tensor, " p"]) -> Dropout:
    """Dropout of each run at its own rate, by the bits of each layer."""

    def dropout(layer: int, x: Float[Tensor, "p b t D"]) -> Float[Tensor, "p b t D"]:
        elements = x.shape[1:].numel()  # their bits come in fours, so up to three too many
        keep = bits[layer][:, :elements].view(-1, *x.shape[1:]) >= thresholds[:, None, None, None]
        return torch.where(keep, x * scales.to(x.dtype)[:, None, None, None], 0.0)

    return dropout
