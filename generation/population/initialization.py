"""The weights a run starts from."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from zoo.transformer.spec import TransformerSpec

CUT = 2.0


def initial_weights(spec: TransformerSpec, std: float, seed: int) -> Float[Tensor, " d"]:
    """Weights from a normal distribution of this standard deviation, cut at ±2; biases zero.

    The cut is absolute, not in standard deviations. Runs of one seed draw the same quantiles, so they start from the
    same weights up to the factor ``std`` (exactly so except for the cut, which only matters from std 0.4 on).
    """
    generator = torch.Generator().manual_seed(seed)
    flat = torch.zeros(spec.num_parameters)
    for name, slot in spec.tensors.items():
        if name.endswith(".weight"):
            nn.init.trunc_normal_(flat[slot.slice], std=std, a=-CUT, b=CUT, generator=generator)
    return flat
