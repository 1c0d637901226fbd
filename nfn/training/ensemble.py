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
from zoo.device import fast_small_products

READ_AT_ONCE = 256  # checkpoints in one forward pass: 1 GB of hidden layers for five Transformer-NFN


class PredictorEnsemble:
    """Predictors of one architecture, trained and read together: ``parameters`` is [m, p] for m predictors.

    Parameters and buffers are copies of those of ``predictors``, on ``device``; for None, on that of the first one.
    """

    def __init__(self, predictors: Sequence[Predictor], device: torch.device | None = None) -> None:
        if not predictors or any(predictor.config() != predictors[0].config() for predictor in predictors):
            raise ValueError("an ensemble needs at least one predictor, all of the same architecture")
        first = predictors[0]
        device = next(first.parameters()).device if device is None else device
        self.spec = first.spec
        self._shapes = {name: parameter.shape for name, parameter in first.named_parameters()}
        self._sizes = [shape.numel() for shape in self._shapes.values()]
        self._skeleton = copy.deepcopy(first).to(device).requires_grad_(False)
        rows = [torch.cat([p.detach().flatten() for p in predictor.parameters()]) for predictor in predictors]
        self.parameters = torch.stack(rows).to(device).requires_grad_(True)
        buffers = [dict(predictor.named_buffers()) for predictor in predictors]
        self._buffers = {name: torch.stack([own[name] for own in buffers]).to(device) for name in buffers[0]}

    def __len__(self) -> int:
        return len(self.parameters)

    def inputs(self, flat: Float[Tensor, "*batch d"], members: slice = slice(None)) -> Float[Tensor, "*rows inputs"]:
        """What the members read of checkpoints, which depends on no parameter.

        It is the same for all of them, except that where inputs are fitted each member has its own: [m, b, inputs].
        """
        if not self._skeleton.own_inputs:
            return self._skeleton.inputs(flat)
        numbers = range(len(self))[members]
        all_flat = flat if flat.ndim == 3 else [flat] * len(numbers)
        return torch.stack([self._call("inputs", number, one) for number, one in zip(numbers, all_flat, strict=True)])

    def logits(self, flat: Float[Tensor, "*batch d"], members: slice = slice(None)) -> Float[Tensor, "m b"]:
        """One row of logits per member: for [b, d] of the same checkpoints, for [m, b, d] each of its own."""
        count = len(self.parameters[members])
        if flat.ndim not in (2, 3) or (flat.ndim == 3 and len(flat) != count):
            raise ValueError(
                f"an ensemble of {count} reads checkpoints [batch, d] or [{count}, batch, d], got {list(flat.shape)}"
            )
        return self.logits_of(self.inputs(flat, members), members)

    def logits_of(self, inputs: Float[Tensor, "*batch inputs"], members: slice = slice(None)) -> Float[Tensor, "m b"]:
        """The same from inputs [b, inputs] or [m, b, inputs]."""
        return self.votes(inputs, members).mean(-1)

    def votes(
        self,
        inputs: Float[Tensor, "*batch inputs"],
        members: slice = slice(None),
        keep: Float[Tensor, "m b units"] | None = None,
    ) -> Float[Tensor, "m b votes"]:
        """The logits of each network of each member, from inputs [b, inputs] or [m, b, inputs], with its dropout."""
        pieces = self.parameters[members].split(self._sizes, dim=1)
        state = {
            f"predictor.{name}": piece.unflatten(1, shape)
            for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)
        } | {f"predictor.{name}": buffers[members] for name, buffers in self._buffers.items()}

        def member_votes(state: dict[str, Tensor], inputs: Tensor, keep: Tensor | None) -> Tensor:
            return functional_call(Method(self._skeleton, "votes"), state, (inputs, keep))

        axes = (0, 0 if inputs.ndim == 3 else None, None if keep is None else 0)
        return vmap(member_votes, in_dims=axes)(state, inputs, keep)

    @property
    def dropout(self) -> tuple[int, float]:
        """How many activations of a member have a dropout, and its probability."""
        return self._skeleton.dropped_units, self._skeleton.dropout

    def _call(self, method: str, number: int, argument: Tensor) -> Tensor:
        """A method of one member that reads its buffers and no parameter."""
        state = {f"predictor.{name}": buffers[number] for name, buffers in self._buffers.items()}
        return functional_call(Method(self._skeleton, method), state, (argument,))

    def read(self, flat: Float[Tensor, "n d"], members: slice = slice(None)) -> Float[Tensor, "m n"]:
        """The members' logits of any number of checkpoints, a few hundred at a time, without gradients."""
        with torch.no_grad():
            return self.read_inputs(self.inputs(flat, members), members)

    @torch.no_grad()
    @fast_small_products()
    def read_inputs(self, inputs: Float[Tensor, "*m n inputs"], members: slice = slice(None)) -> Float[Tensor, "m n"]:
        """The same from inputs."""
        return torch.cat([self.logits_of(part, members) for part in inputs.split(READ_AT_ONCE, dim=-2)], dim=1)

    def member(self, index: int, parameters: Float[Tensor, " p"] | None = None) -> Predictor:
        """One predictor on its own, as it is now or with the given parameters."""
        row = self.parameters[index] if parameters is None else parameters
        pieces = row.detach().split(self._sizes)
        state = {name: piece.view(shape) for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)}
        predictor = copy.deepcopy(self._skeleton).requires_grad_(True)
        predictor.load_state_dict(state | {name: buffers[index] for name, buffers in self._buffers.items()})
        return predictor


class Method(nn.Module):
    """A predictor whose forward is one of its methods, for ``functional_call``."""

    def __init__(self, predictor: Predictor, name: str) -> None:
        super().__init__()
        self.predictor = predictor
        self.name = name

    def forward(self, *arguments: Tensor | None) -> Tensor:
        return getattr(self.predictor, self.name)(*arguments)
