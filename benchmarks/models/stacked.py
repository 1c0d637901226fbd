"""Predictors of one architecture as one matrix of parameters, a row each, and their step as one.

Nothing mixes the rows, and each has an Adam of its own, with a learning rate of its own: every predictor is trained
exactly as it would be alone. One matrix instead of a tensor per layer, because then Adam is one kernel a predictor.
"""

import copy
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call, vmap

from benchmarks.data.checkpoints import Checkpoints
from nfn import Predictor
from nfn.training.cuda_graph import record
from nfn.training.ensemble import Logits
from zoo import TransformerWeights
from zoo.transformer.onednn import fast_small_products

READ_AT_ONCE = 256  # checkpoints in one forward pass: 1 GB of hidden layers for five Transformer-NFN


class StackedPredictors:
    """``parameters`` [m, p] and ``scales`` [m, d] of m predictors."""

    def __init__(self, predictors: Sequence[Predictor], device: torch.device) -> None:
        first = predictors[0]
        self.spec = first.spec
        self.shapes = {name: parameter.shape for name, parameter in first.named_parameters()}
        self.sizes = [shape.numel() for shape in self.shapes.values()]
        (self.buffer,) = (name for name, _ in first.named_buffers())
        self.skeleton = copy.deepcopy(first).to(device).requires_grad_(False)
        rows = [torch.cat([p.detach().flatten() for p in one.parameters()]) for one in predictors]
        self.parameters = torch.stack(rows).to(device).requires_grad_(True)
        self.scales = torch.stack([one.scale.factor for one in predictors]).to(device)

    def logits(
        self,
        parameters: Float[Tensor, "m p"],
        scales: Float[Tensor, "m d"],
        flat: Float[Tensor, "m b d"] | Float[Tensor, "b d"],
    ) -> Float[Tensor, "m b"]:
        """A row of logits a predictor, of its own checkpoints or of the same for all."""
        pieces = parameters.split(self.sizes, dim=1)
        state = {
            f"predictor.{name}": piece.unflatten(1, shape)
            for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        } | {f"predictor.{self.buffer}": scales}

        def one(state: dict[str, Tensor], flat: Tensor) -> Tensor:
            weights = TransformerWeights.from_flat(self.spec, flat, check_finite=False)
            return functional_call(Logits(self.skeleton), state, weights)

        return vmap(one, in_dims=(0, 0 if flat.ndim == 3 else None))(state, flat)

    @torch.no_grad()
    @fast_small_products()
    def read(self, members: slice, rows: Checkpoints) -> Float[Tensor, "m n"]:
        """The logits of some of the predictors for the same checkpoints."""
        parameters, scales = self.parameters[members], self.scales[members]
        parts = [self.logits(parameters, scales, weights.flat()) for weights in rows.pieces(READ_AT_ONCE)]
        return torch.cat(parts, dim=1)

    def predictor(self, parameters: Float[Tensor, " p"], member: int) -> Predictor:
        """One predictor on its own, with these parameters."""
        alone = copy.deepcopy(self.skeleton)
        pieces = parameters.split(self.sizes)
        state = {name: piece.view(shape) for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)}
        alone.load_state_dict(state | {self.buffer: self.scales[member]})
        return alone


class StackedStep:
    """One training step of all predictors, each on its own batch; on a GPU recorded once and then replayed.

    ``index`` [m, b] are the rows of the batches, ``share`` [m, b] what each counts in its mean (0 for the filling of an
    epoch's last batch), ``rates`` [m] the learning rates. They are tensors that the recorded step reads anew.
    """

    def __init__(self, stack: StackedPredictors, train: Checkpoints, batch_size: int) -> None:
        self.stack, self.train = stack, train
        self.device = stack.parameters.device
        members = len(stack.parameters)
        self.index: Int[Tensor, "m b"] = torch.zeros(members, batch_size, dtype=torch.long, device=self.device)
        self.share: Float[Tensor, "m b"] = torch.full((members, batch_size), 1 / batch_size, device=self.device)
        self.rates: Float[Tensor, " m"] = torch.zeros(members, device=self.device)
        # Each row of the matrix once more as a parameter of its own, on the same memory.
        self.rows = [nn.Parameter(row) for row in stack.parameters.detach()]
        self.optimizer = torch.optim.Adam(
            [{"params": [row], "lr": rate} for row, rate in zip(self.rows, self.rates, strict=True)],
            fused=True,
            capturable=self.device.type == "cuda",
        )
        self.recorded: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if self.device.type != "cuda":
            self._step()
            return
        if self.recorded is None:
            self.recorded, _ = record(self._step, [self.stack.parameters], self.optimizer)
        self.recorded.replay()

    @fast_small_products()
    def _step(self) -> None:
        stack = self.stack
        accuracy = self.train.accuracy[self.index]
        logits = stack.logits(stack.parameters, stack.scales, self.train.weights[self.index])
        entropy = nn.functional.binary_cross_entropy_with_logits(logits, accuracy, reduction="none")
        (gradient,) = torch.autograd.grad((entropy * self.share).sum(), stack.parameters)
        for row, own in zip(self.rows, gradient, strict=True):
            row.grad = own
        self.optimizer.step()
