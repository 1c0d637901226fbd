"""Probes from a learned generator, after the idea of ProbeGen; written from its description.

Free pixels can fit what is particular to the training checkpoints. A generator that all probes share, with the
structure of the inputs built in, holds them back; ProbeGen found that one without nonlinearities does so best.
"""

from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nfn.predictors.predictor import normal
from nfn.predictors.probes import ProbeNFN, probe_shape

_CODE, _CHANNELS = 32, 16
_TOKENS_PER_STEP = 4
_OVERLAP = 2  # pixels that a step's kernel is wider than its stride, so that neighbors share what they show


class ProbeGenNFN(ProbeNFN):
    """``ProbeNFN`` whose probes come from a deep linear generator: a code of 32 numbers per probe, all else shared.

    For images a matrix turns the code into a grid of 16 channels, one cell per patch, and transposed convolutions, one
    for each prime factor of the patch size, enlarge it to the image; their kernels overlap. For word vectors the
    matrix makes a sequence of a quarter of the tokens, one more matrix stretches it to all tokens, and one maps its
    channels to D. There is no nonlinearity and no bias. Away from the border, probes start with unit variance.
    """

    kind = "probe_gen_nfn"

    def build_probes(self, generator: torch.Generator) -> None:
        shape, size = probe_shape(self.spec), self.spec.patch_size
        self.codes = normal((self.count, _CODE), 1.0, generator)
        cells = -(-shape[0] // _TOKENS_PER_STEP) if size is None else self.spec.tokens
        self.grid = normal((_CODE, _CHANNELS * cells), 1 / sqrt(_CODE), generator)
        self.steps = nn.ParameterList()
        if size is None:
            tokens, dim = shape
            self.steps.append(normal((tokens, cells), 1 / sqrt(cells), generator))
            self.steps.append(normal((_CHANNELS, dim), 1 / sqrt(_CHANNELS), generator))
            return
        self.strides = _prime_factors(size) or (1,)
        for number, stride in enumerate(self.strides, start=1):
            outputs = self.spec.channels if number == len(self.strides) else _CHANNELS
            kernel = stride + _OVERLAP
            summed = _CHANNELS * (kernel / stride) ** 2  # products per pixel
            self.steps.append(normal((_CHANNELS, outputs, kernel, kernel), 1 / sqrt(summed), generator))

    def make_probes(self) -> Float[Tensor, "probes ..."]:
        grid = self.codes @ self.grid
        if (size := self.spec.patch_size) is None:
            stretch, channels = self.steps
            return stretch @ grid.unflatten(1, (-1, _CHANNELS)) @ channels
        _, height, width = probe_shape(self.spec)
        image = grid.unflatten(1, (_CHANNELS, height // size, width // size))
        for stride, kernel in zip(self.strides, self.steps, strict=True):
            image = F.conv_transpose2d(image, kernel, stride=stride, padding=_OVERLAP // 2)
        return image


def _prime_factors(number: int) -> tuple[int, ...]:
    for factor in range(2, number + 1):
        if number % factor == 0:
            return factor, *_prime_factors(number // factor)
    return ()
