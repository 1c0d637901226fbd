"""Predictors of one architecture as one matrix of parameters, one row per predictor.

On a GPU a predictor this small leaves most of the device idle; five of them together take hardly longer than one.
Nothing mixes the rows, so each predictor computes what it would compute alone. They are one matrix instead of a tensor
per layer, because then Adam is one kernel per predictor.
"""

import copy
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, vmap

from nfn.predictors.predictor import Predictor
from zoo import TransformerWeights
from zoo.transformer.onednn import fast_small_products

READ_AT_ONCE = 256  # checkpoints in one forward pass: 1 GB of hidden layers for five Transformer-NFN


class PredictorEnsemble:
    """``parameters`` [m, p] and ``scales`` [m, d] of m predictors, copied from them.

    They are on ``device``, for None on the device of the first predictor.
    """

    def __init__(self, predictors: Sequence[Predictor], device: torch.device | None = None) -> None:
        if not predictors or any(predictor.config() != predictors[0].config() for predictor in predictors):
            raise ValueError("an ensemble needs at least one predictor, all of the same architecture")
        first = predictors[0]
        device = first.scale.factor.device if device is None else device
        self.spec = first.spec
        self._shapes = {name: parameter.shape for name, parameter in first.named_parameters()}
        self._sizes = [shape.numel() for shape in self._shapes.values()]
        (self._scale_name,) = (name for name, _ in first.named_buffers())
        self._skeleton = copy.deepcopy(first).to(device).requires_grad_(False)
        rows = [torch.cat([p.detach().flatten() for p in predictor.parameters()]) for predictor in predictors]
        self.parameters = torch.stack(rows).to(device).requires_grad_(True)
        self.scales = torch.stack([predictor.scale.factor for predictor in predictors]).to(device)

    def __len__(self) -> int:
        return len(self.parameters)

    def logits(self, flat: Float[Tensor, "*batch d"], members: slice = slice(None)) -> Float[Tensor, "m b"]:
        """One row of logits per member: for [b, d] of the same checkpoints, for [m, b, d] each of its own."""
        parameters, scales = self.parameters[members], self.scales[members]
        if flat.ndim not in (2, 3) or (flat.ndim == 3 and len(flat) != len(parameters)):
            raise ValueError(
                f"an ensemble of {len(parameters)} reads checkpoints [batch, d] or [{len(parameters)}, batch, d], "
                f"got {list(flat.shape)}"
            )
        pieces = parameters.split(self._sizes, dim=1)
        state = {
            f"predictor.{name}": piece.unflatten(1, shape)
            for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)
        } | {f"predictor.{self._scale_name}": scales}

        def member_logits(state: dict[str, Tensor], flat: Tensor) -> Tensor:
            weights = TransformerWeights.from_flat(self.spec, flat, check_finite=False)
            return functional_call(Logits(self._skeleton), state, weights)

        return vmap(member_logits, in_dims=(0, 0 if flat.ndim == 3 else None))(state, flat)

    @torch.no_grad()
    @fast_small_products()
    def read(self, flat: Float[Tensor, "n d"], members: slice = slice(None)) -> Float[Tensor, "m n"]:
        """The members' logits of any number of checkpoints, a few hundred at a time, without gradients."""
        return torch.cat([self.logits(part, members) for part in flat.split(READ_AT_ONCE)], dim=1)

    def member(self, index: int, parameters: Float[Tensor, " p"] | None = None) -> Predictor:
        """One predictor on its own, as it is now or with the given parameters."""
        row = self.parameters[index] if parameters is None else parameters
        pieces = row.detach().split(self._sizes)
        state = {name: piece.view(shape) for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)}
        predictor = copy.deepcopy(self._skeleton).requires_grad_(True)
        predictor.load_state_dict(state | {self._scale_name: self.scales[index]})
        return predictor


class Logits(nn.Module):
    """A predictor whose forward is ``logits``, for ``functional_call``."""

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.predictor = predictor

    def forward(self, weights: TransformerWeights) -> Tensor:
        return self.predictor.logits(weights)
