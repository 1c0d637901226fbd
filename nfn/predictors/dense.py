"""Linear layers whose starting weights come from a generator."""

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt

import torch
from torch import nn
from torch.nn.utils import skip_init


def linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """torch's default initialization, weights and bias uniform in ±1/√inputs, drawn from ``generator``."""
    layer = skip_init(nn.Linear, inputs, outputs, device=torch.get_default_device())
    assert isinstance(layer, nn.Linear)
    bound = 1 / sqrt(inputs)
    with torch.no_grad():
        layer.weight.uniform_(-bound, bound, generator=generator)
        layer.bias.uniform_(-bound, bound, generator=generator)
    return layer


def dense(widths: Sequence[int], generator: torch.Generator) -> nn.Sequential:
    """Linear layers between the given widths, a ReLU after each."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [linear(inputs, outputs, generator), nn.ReLU()]
    return nn.Sequential(*layers)


def normalized_network(widths: Sequence[int], generator: torch.Generator) -> nn.Sequential:
    """Linear layers between the given widths, LayerNorm and GELU after each, and a linear layer to one number."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [linear(inputs, outputs, generator), nn.LayerNorm(outputs), nn.GELU()]
    return nn.Sequential(*layers, linear(widths[-1], 1, generator))
