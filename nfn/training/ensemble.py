"""Several predictors of one architecture as one: their parameters stacked along a leading dimension.

On a GPU a predictor this small leaves most of the device idle; five seeds in one take hardly longer than one. Because
nothing mixes the members, and Adam works entry by entry, each is trained exactly as it would be alone.
"""

import copy
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from nfn.predictors.predictor import Predictor
from zoo import TransformerWeights


class PredictorEnsemble(nn.Module):
    """Predictors that read the same checkpoints, or each its own, in one pass."""

    def __init__(self, members: Sequence[Predictor]) -> None:
        super().__init__()
        if not members or any(member.config() != members[0].config() for member in members):
            raise ValueError("an ensemble needs at least one predictor, all of the same architecture")
        self.spec = members[0].spec
        self.size = len(members)
        parameters, buffers = stack_module_state(list(members))
        self._names = {name: name.replace(".", "/") for name in (*parameters, *buffers)}
        self.stacked = nn.ParameterDict({self._names[name]: nn.Parameter(p.detach()) for name, p in parameters.items()})
        for name, buffer in buffers.items():
            self.register_buffer(self._names[name], buffer)
        # Kept in a list so that its parameters are not counted as ours.
        self._skeleton = [copy.deepcopy(members[0]).requires_grad_(False)]

    def logits(self, weights: TransformerWeights) -> Float[Tensor, "seeds batch"]:
        """One row of logits a member: of the same checkpoints for weights [batch], of its own for [seeds, batch]."""
        spec, skeleton = self.spec, self._skeleton[0]
        shared = len(weights.batch_shape) == 1
        if not shared and (len(weights.batch_shape) != 2 or weights.batch_shape[0] != self.size):
            raise ValueError(
                f"an ensemble of {self.size} reads checkpoints [batch] or [{self.size}, batch], "
                f"got {list(weights.batch_shape)}"
            )

        def one(state: dict[str, Tensor], flat: Tensor) -> Tensor:
            checkpoints = TransformerWeights.from_flat(spec, flat, check_finite=False)
            return functional_call(Logits(skeleton), {f"predictor.{name}": t for name, t in state.items()}, checkpoints)

        return vmap(one, in_dims=(0, None if shared else 0))(self._state(), weights.flat())

    def forward(self, weights: TransformerWeights) -> Float[Tensor, "seeds batch"]:
        """The predicted accuracies, a row for each member."""
        return torch.sigmoid(self.logits(weights))

    def member(self, index: int) -> Predictor:
        """One of the predictors as it is now, on its own."""
        predictor = copy.deepcopy(self._skeleton[0]).requires_grad_(True)
        predictor.load_state_dict({name: tensor[index] for name, tensor in self._state().items()})
        return predictor

    def _state(self) -> dict[str, Tensor]:
        buffers = dict(self.named_buffers())
        return {name: self.stacked[own] if own in self.stacked else buffers[own] for name, own in self._names.items()}


class Logits(nn.Module):
    """A predictor whose forward is ``logits``, for ``functional_call``."""

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.predictor = predictor

    def forward(self, weights: TransformerWeights) -> Tensor:
        return self.predictor.logits(weights)
