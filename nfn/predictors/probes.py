"""The probing baseline: learned inputs are fed to the checkpoint's transformer, and its logits are read.

Such a predictor reads what a checkpoint does and not its weights, so it is unchanged by every symmetry that
keeps the function. Others report probes as strong on large zoos (ProbeGen, HiddenProbe). This one is the plain form:
the logits alone, no hidden states.
"""

import warnings
from math import isqrt

import torch
from jaxtyping import Float
from torch import Tensor

from nfn.predictors.predictor import Predictor, normal, normalized_network
from zoo import TransformerSpec, TransformerWeights
from zoo.transformer.model import sinusoidal_positions
from zoo.transformer.population import Step, population_logits, prepare_inputs

_PROBE_TOKENS = 16  # of a probe made of word vectors; shorter than most texts, and a quarter of the work
_RUN_AT_ONCE = 32  # checkpoints whose answers are computed at once


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

    def read(
        self, answers: Float[Tensor, "b probes classes"], rows: list[Float[Tensor, "b probes t D"]]
    ) -> Float[Tensor, "b features"]:
        """What the network reads, from the logits and from the LayerNorm rows after every block."""
        answers = answers - answers.mean(-1, keepdim=True)
        # Logits of different checkpoints differ in size by orders of magnitude.
        return (answers.sign() * torch.log1p(answers.abs())).flatten(1)

    def logits_of(self, inputs: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
        pieces = inputs.reshape(-1, self.spec.num_parameters).split(_RUN_AT_ONCE)
        read = torch.cat([self.read(*self._run(piece)) for piece in pieces])
        return self.network(read).reshape(inputs.shape[:-1])

    def answers(self, flat: Float[Tensor, "b d"]) -> Float[Tensor, "b probes classes"]:
        """The logits of every checkpoint for every probe."""
        return self._run(flat)[0]

    def _run(
        self, flat: Float[Tensor, "b d"]
    ) -> tuple[Float[Tensor, "b probes classes"], list[Float[Tensor, "b probes t D"]]]:
        """The logits, and the LayerNorm rows after every block."""
        steps: list[Step] = []
        probes = self.make_probes()
        x = prepare_inputs(self.spec, probes if self.spec.vocabulary is None else probes.softmax(-1))
        with warnings.catch_warnings():
            # Under vmap torch's attention on a CPU goes through the members one by one, and is still the fastest.
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            answers = population_logits(
                self.spec, flat, x, None, dtype=flat.dtype, steps=steps, positions=self.positions
            )
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
