"""The probing baseline: learned inputs are fed to the checkpoint's transformer, and its logits are read.

Such a predictor reads what a checkpoint does and not its weights, so it is unchanged by every symmetry that
keeps the function. Others report probes as strong on large zoos (ProbeGen, HiddenProbe). This one is the plain form:
the logits alone, no hidden states.
"""

from math import isqrt

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from nfn.predictors.predictor import Predictor, normalized_network
from zoo import TransformerSpec, TransformerWeights
from zoo.transformer.model import ZooTransformer, sinusoidal_positions

_PROBE_TOKENS = 16  # of a probe made of word vectors; shorter than most texts, and a quarter of the work
_RUN_AT_ONCE = 32  # checkpoints whose answers are computed at once


class ProbeNFN(Predictor):
    """``probes`` learned inputs, the logits that the checkpoint gives for each, and a network that reads them all.

    Probes are images where the transformer reads images, else sequences of word vectors. They start as noise.
    """

    kind = "probe_nfn"
    positions: Float[Tensor, "tokens D"]

    def __init__(
        self,
        spec: TransformerSpec,
        *,
        probes: int = 64,
        width: int = 128,
        generator: torch.Generator | None = None,
    ) -> None:
        self.count, self.width, self._options = probes, width, {"probes": probes, "width": width}
        super().__init__(spec, generator=generator)

    def build(self, generator: torch.Generator) -> None:
        noise = torch.empty(self.count, *_probe_shape(self.spec), device=torch.get_default_device())
        self.probes = nn.Parameter(noise.normal_(generator=generator))
        self.network = normalized_network([self.count * self.spec.classes, self.width, self.width], generator)
        self.register_buffer("positions", sinusoidal_positions(self.spec.tokens, self.spec.dim))
        # In a tuple, since its weights are those of checkpoints, not parameters of this predictor.
        self._transformer = (_empty_transformer(self.spec),)

    def logits_of(self, inputs: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
        rows = inputs.reshape(-1, self.spec.num_parameters)
        answers = torch.cat([self.answers(piece) for piece in rows.split(_RUN_AT_ONCE)])
        answers = answers - answers.mean(-1, keepdim=True)
        # Logits of different checkpoints differ in size by orders of magnitude.
        read = (answers.sign() * torch.log1p(answers.abs())).flatten(1)
        return self.network(read).reshape(inputs.shape[:-1])

    def answers(self, flat: Float[Tensor, "b d"]) -> Float[Tensor, "b probes classes"]:
        """The logits of every checkpoint for every probe, by the zoo's own transformer."""
        (transformer,) = self._transformer
        words = self.spec.patch_size is None
        mask = (torch.ones(self.probes.shape[:2], dtype=torch.bool, device=flat.device),) if words else ()

        def one(row: Float[Tensor, " d"]) -> Float[Tensor, "k classes"]:
            state = TransformerWeights.from_flat(self.spec, row, check_finite=False).state_dict()
            return functional_call(transformer, state | {"positions": self.positions}, (self.probes, *mask))

        return vmap(one)(flat)

    def fit_scale(self, weights: TransformerWeights | Float[Tensor, "n d"]) -> None:
        """Nothing to fit: weights are run as they are, and logits are read on a logarithmic scale."""
        self._checked(weights)


def _probe_shape(spec: TransformerSpec) -> tuple[int, ...]:
    """The shape of one input of this transformer."""
    if spec.patch_size is None:
        return min(_PROBE_TOKENS, spec.tokens), spec.dim
    # the transformer reads patches one after the other: any rectangle of the right number of them will do
    rows = next(count for count in range(isqrt(spec.tokens), 0, -1) if spec.tokens % count == 0)
    return spec.channels, spec.patch_size * rows, spec.patch_size * (spec.tokens // rows)


def _empty_transformer(spec: TransformerSpec) -> ZooTransformer:
    """The zoo's transformer without memory for weights, to be run with those of any checkpoint."""
    with torch.device("meta"):
        transformer = ZooTransformer(spec).eval()
        if spec.patch_size is not None:
            transformer.embedding = _PatchEmbedding(spec.channels, spec.dim, spec.patch_size, spec.patch_size)
    return transformer


class _PatchEmbedding(nn.Conv2d):
    """The convolution of ``ZooTransformer`` as a matrix product, which computes many checkpoints at once."""

    def forward(self, input: Float[Tensor, "k c height width"]) -> Float[Tensor, "k D rows columns"]:
        assert self.bias is not None
        size = self.kernel_size[0]
        rows, columns = (side // size for side in input.shape[-2:])
        patches = F.unfold(input, size, stride=size)
        return (self.weight.flatten(1) @ patches + self.bias[:, None]).unflatten(-1, (rows, columns))
