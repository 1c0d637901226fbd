"""The raw-moments baseline: a few sizes of each tensor, as it stands, and a small network. No symmetry at all."""

import torch
from jaxtyping import Float
from torch import Tensor

from nfn.predictors.predictor import Predictor, normalized_network
from nfn.predictors.scaling import Standardization
from zoo import TransformerSpec, TransformerWeights


class RawMomentsPredictor(Predictor):
    """A network on the moments of raw tensors: what sizes alone are worth, without symmetry."""

    kind = "raw_moments"

    def __init__(self, spec: TransformerSpec, *, width: int = 256, generator: torch.Generator | None = None) -> None:
        self.width, self._options = width, {"width": width}
        super().__init__(spec, generator=generator)

    def build(self, generator: torch.Generator) -> None:
        count = sum(_moment_count(slot.shape) for slot in self.spec.tensors.values())
        self.scale = Standardization(count)
        self.network = normalized_network([count, self.width, self.width], generator)

    def inputs(self, weights: TransformerWeights | Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch inputs"]:
        return _raw_moments(self._checked(weights))

    def logits_of(self, inputs: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch"]:
        return self.network(self.scale(inputs)).squeeze(-1)

    def fit_scale(self, weights: TransformerWeights | Float[Tensor, "n d"]) -> None:
        """Fits mean and standard deviation of every moment to training checkpoints."""
        self.scale.fit(self.inputs(weights))


def _moment_count(shape: tuple[int, ...]) -> int:
    return 3 if len(shape) > 1 else 1


def _raw_moments(weights: TransformerWeights) -> Float[Tensor, "*batch inputs"]:
    """Mean, standard deviation and (E(x − mean)⁴)^¼ of every matrix, the root mean square of every bias.

    52 numbers for MNIST, 48 for AG News, each as sign(x)·log(1 + 10·|x|). Computed in float64, so that large weights do
    not overflow.
    """
    flat = weights.flat().double()
    moments = []
    for slot in weights.spec.tensors.values():
        x = flat[..., slot.slice]
        if _moment_count(slot.shape) == 1:
            moments.append(x.square().mean(-1).sqrt())
            continue
        mean = x.mean(-1)
        rest = (x - mean[..., None]).square()
        moments += [mean, rest.mean(-1).sqrt(), rest.square().mean(-1).sqrt().sqrt()]
    stacked = torch.stack(moments, dim=-1)
    return (stacked.sign() * torch.log1p(10 * stacked.abs())).to(weights.flat().dtype)
