"""Predictors that probe: learned inputs are fed to the checkpoint's transformer, and its answers are read.

Such a predictor reads what a checkpoint does and not its weights, so it is unchanged by every symmetry that keeps the
function. ``ProbeNFN`` is the plain form, the logits alone. Two others, strong on large zoos, are written from their
descriptions: HiddenProbe also reads the hidden layers, ProbeGen learns a generator of the probes.
"""

import warnings
from math import isqrt, sqrt
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nfn.predictors.predictor import Predictor, normal, normalized_network
from zoo import TransformerSpec, TransformerWeights
from zoo.transformer.model import sinusoidal_positions
from zoo.transformer.population import Step, population_logits, prepare_inputs

_PROBE_TOKENS = 16  # of a probe made of word vectors; shorter than most texts, and a quarter of the work
_RUN_AT_ONCE = 32  # checkpoints whose answers are computed at once
_SMALLEST = 1e-8  # added to a mean square of activations of unit size: below this it is the rounding of float32
_CODE, _CHANNELS = 32, 16  # numbers per probe of a generator, and channels of what it makes of them
_TOKENS_PER_STEP = 4
_OVERLAP = 2  # pixels that a step's kernel is wider than its stride, so that neighbors share what they show
_Answers, _Rows = Float[Tensor, "b probes classes"], Float[Tensor, "b probes t D"]


class ProbeNFN(Predictor):
    """``probes`` learned inputs, the logits that the checkpoint gives for each, and a network that reads them all.

    Probes are images where the transformer reads images, else sequences of word vectors, or of mixtures of tokens where
    it has a vocabulary. They start as noise. Of a language model the logits after the last token are read.
    Subclasses make the probes in another way (``build_probes``, ``make_probes``) or read more of the checkpoint's
    answers (``feature_count``, ``read``).
    """

    kind = "probe_nfn"
    positions: Float[Tensor, "tokens D"]

    def __init__(
        self, spec: TransformerSpec, *, probes: int = 64, width: int = 128, generator: torch.Generator | None = None
    ) -> None:
        self.count, self.width = probes, width
        super().__init__(spec, generator=generator)

    def config(self) -> dict[str, Any]:
        return super().config() | {"probes": self.count, "width": self.width}

    def build(self, generator: torch.Generator) -> None:
        self.build_probes(generator)
        self.network = normalized_network([self.feature_count, self.width, self.width], generator)
        self.register_buffer("positions", sinusoidal_positions(self.spec.tokens, self.spec.dim))

    def build_probes(self, generator: torch.Generator) -> None:
        """Makes the parameters that ``make_probes`` uses."""
        self.probes = normal((self.count, *probe_shape(self.spec)), 1.0, generator)

    def make_probes(self) -> Float[Tensor, "probes ..."]:
        """What the inputs of the transformers are made of: pixels, word vectors, or logarithms of shares of tokens."""
        return self.probes

    @property
    def feature_count(self) -> int:
        """How many numbers ``read`` gives for a checkpoint."""
        return self.count * self.spec.classes

    def read(self, answers: _Answers, rows: list[_Rows]) -> Float[Tensor, "b features"]:
        """What the network reads, from the logits and from the LayerNorm rows after every block."""
        answers = answers - answers.mean(-1, keepdim=True)
        # Logits of different checkpoints differ in size by orders of magnitude.
        return (answers.sign() * torch.log1p(answers.abs())).flatten(1)

    def logits_of(self, inputs: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
        pieces = inputs.reshape(-1, self.spec.num_parameters).split(_RUN_AT_ONCE)
        read = torch.cat([self.read(*self._run(piece)) for piece in pieces])
        return self.network(read).reshape(inputs.shape[:-1])

    def answers(self, flat: Float[Tensor, "b d"]) -> _Answers:
        """The logits of every checkpoint for every probe."""
        return self._run(flat)[0]

    def _run(self, flat: Float[Tensor, "b d"]) -> tuple[_Answers, list[_Rows]]:
        """The logits, and the LayerNorm rows after every block."""
        steps: list[Step] = []
        probes = self.make_probes()
        x = prepare_inputs(self.spec, probes if self.spec.vocabulary is None else probes.softmax(-1))
        with warnings.catch_warnings():
            # Under vmap torch's attention on a CPU goes through the members one by one, and is still the fastest.
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            answers = population_logits(self.spec, flat, x, None, steps=steps, positions=self.positions)
        return answers[:, :, -1] if self.spec.causal else answers, [step.rows for step in steps[2::2]]

    def fit_scale(self, weights: TransformerWeights | Float[Tensor, "n d"]) -> None:
        """Nothing to fit: weights are run as they are, and logits are read on a logarithmic scale."""
        self._checked(weights)


def probe_shape(spec: TransformerSpec) -> tuple[int, ...]:
    """The shape of one input of this transformer."""
    if spec.patch_size is None:
        return min(_PROBE_TOKENS, spec.tokens), spec.vocabulary or spec.dim
    # the transformer reads patches one after the other: any rectangle of the right number of them will do
    rows = next(count for count in range(isqrt(spec.tokens), 0, -1) if spec.tokens % count == 0)
    return spec.channels, spec.patch_size * rows, spec.patch_size * (spec.tokens // rows)


class HiddenProbeNFN(ProbeNFN):
    """``ProbeNFN`` that reads, besides the logits, the Gram matrix of the probes after every block.

    The basis of a hidden layer is arbitrary, but how similar a layer finds two inputs is the same in every basis.
    With X the rows [t, D] of a probe after a block and k probes,

        z_i = mean over tokens of LN(X_i)        c = z − mean over probes        G_ij = c_i·c_j        m = Σ_i G_ii / k

    and what is read of the block are the entries i ≥ j of G / (m + ε) and log(m + ε).

    A rotation of the boundary after a block, LN(X) → LN(X)·Rᵀ, keeps G, and writer shifts end at LN. So the prediction
    is unchanged by every symmetry that keeps the function, exactly but for ``boundary_scales``, which change it by the
    ε of LN.
    """

    kind = "hidden_probe_nfn"

    @property
    def feature_count(self) -> int:
        return super().feature_count + self.spec.blocks * (self.count * (self.count + 1) // 2 + 1)

    def read(self, answers: _Answers, rows: list[_Rows]) -> Float[Tensor, "b features"]:
        return torch.cat([super().read(answers, rows), *(_similarities(block) for block in rows)], dim=1)


def _similarities(rows: _Rows) -> Float[Tensor, "b features"]:
    """What is read of one block, from its LayerNorm rows."""
    pooled = rows.mean(-2)
    centered = pooled - pooled.mean(1, keepdim=True)
    gram = centered @ centered.mT
    size = gram.diagonal(dim1=1, dim2=2).mean(1, keepdim=True) + _SMALLEST
    probes = gram.shape[-1]
    i, j = torch.tril_indices(probes, probes, device=rows.device)
    return torch.cat([gram.flatten(1).index_select(1, i * probes + j) / size, size.log()], dim=1)


class ProbeGenNFN(ProbeNFN):
    """``ProbeNFN`` whose probes come from a deep linear generator: a code of 32 numbers per probe, all else shared.

    Free pixels can fit what is particular to the training checkpoints; a shared generator holds them back.
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
