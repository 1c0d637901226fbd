"""One training step of an ensemble of predictors: forward, backward, Adam.

Each member has its own batch, its own Adam and its own learning rate, and is trained exactly as it would be alone. On a
GPU the whole step is recorded once as a CUDA graph and then replayed: at this size launching the kernels takes many
times longer than running them.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from nfn.training.cuda_graph import record
from nfn.training.ensemble import PredictorEnsemble
from zoo.device import fast_small_products


class TrainingStep:
    """``step()`` trains every member on one batch, by binary cross entropy, and returns the losses [m].

    Batches are rows of ``weights`` [n, d], flat checkpoints, and of ``targets`` [n], their accuracies, or [m, n] where
    members have targets of their own. ``index`` [m, b] are the rows of the coming batches, ``row_weights`` [m, b] what
    each row counts in the mean of its batch, and ``rates`` [m] the learning rates. A recorded step reads these very
    tensors again at every replay, and overwrites the losses it returned: change them in place, with ``set_batches`` and
    ``set_rates``. ``weight_decay`` is AdamW's, ``seeds`` draw each member's dropout, if it has any. ``graph`` says
    whether to record; by default every step on a GPU is.
    """

    def __init__(
        self,
        ensemble: PredictorEnsemble,
        weights: Float[Tensor, "n d"],
        targets: Float[Tensor, "*members k"],
        *,
        batch_size: int,
        learning_rate: float = 1e-3,
        weight_decay: float = 0.0,
        seeds: Sequence[int] | None = None,
        graph: bool | None = None,
    ) -> None:
        device = ensemble.parameters.device
        if len(weights) != targets.shape[-1] or targets.ndim > 2 or targets.shape[:-1] not in ((), (len(ensemble),)):
            raise ValueError(
                f"every checkpoint needs one target, got weights {list(weights.shape)} "
                f"and targets {list(targets.shape)}"
            )
        if batch_size < 1:
            raise ValueError(f"a batch needs at least one row, got batch_size {batch_size}")
        self.graph = device.type == "cuda" if graph is None else graph
        if self.graph and device.type != "cuda":
            raise ValueError(f"only a CUDA device can record a graph, and the ensemble is on {device}: use graph=False")
        if seeds is not None and len(seeds) != len(ensemble):
            raise ValueError(f"seeds must have one for each of the {len(ensemble)} members, got {len(seeds)}")
        self.ensemble, self.inputs = ensemble, ensemble.inputs(weights)
        self.targets = targets.expand(len(ensemble), -1)
        members, dtype = len(ensemble), ensemble.parameters.dtype
        self._members = torch.arange(members, device=device)
        self.index: Int[Tensor, "m b"] = torch.zeros(members, batch_size, dtype=torch.long, device=device)
        self.row_weights: Float[Tensor, "m b"] = torch.full(
            (members, batch_size), 1 / batch_size, dtype=dtype, device=device
        )
        self.rates: Float[Tensor, " m"] = torch.full((members,), learning_rate, device=device)
        # Each row of the matrix again as a separate parameter in the same memory: Adam then has a rate for each row.
        self._rows = [nn.Parameter(row) for row in ensemble.parameters.detach()]
        self._optimizer = torch.optim.Adam(
            [{"params": [row], "lr": rate} for row, rate in zip(self._rows, self.rates, strict=True)],
            fused=True,
            capturable=device.type == "cuda",
            weight_decay=weight_decay,
            decoupled_weight_decay=True,
        )
        units, self._dropout = ensemble.dropout
        self.keep = torch.ones(members, batch_size, units, dtype=dtype, device=device) if units else None
        self._generators = [
            torch.Generator().manual_seed(seed) for seed in (range(members) if seeds is None else seeds)
        ]
        self._recorded: torch.cuda.CUDAGraph | None = None
        self._losses = torch.empty(0)

    def set_batches(
        self,
        index: Int[Tensor, "... b"],
        row_weights: Float[Tensor, "... b"] | None = None,
        members: slice = slice(None),
    ) -> None:
        """Sets the next batches of some members: [m, b], or [b] for the same batch in all of them.

        Without ``row_weights`` every row counts the same. A batch with too few rows is filled up with any rows of
        weight 0, because a recorded step has one shape.
        """
        expected = self.index[members].shape
        for tensor in (index,) if row_weights is None else (index, row_weights):
            if tensor.shape not in (expected, expected[1:]):
                raise ValueError(
                    f"this step takes batches of shape {list(expected)} or {list(expected[1:])}, "
                    f"got {list(tensor.shape)}: fill up a smaller batch with rows of weight 0"
                )
        self.index[members] = index
        self.row_weights[members] = 1 / expected[1] if row_weights is None else row_weights

    def set_rates(self, rates: float | Float[Tensor, " m"], members: slice = slice(None)) -> None:
        """Sets the learning rates of some members, from the next step on."""
        self.rates[members] = rates

    def draw_dropout(self) -> None:
        """Draws which units the next step keeps, each member's from its own generator, on the CPU on every device."""
        if self.keep is not None:
            drawn = torch.stack([torch.rand(self.keep.shape[1:], generator=own) for own in self._generators])
            self.keep.copy_((drawn >= self._dropout).to(self.keep.dtype) / (1 - self._dropout))

    def __call__(self) -> Float[Tensor, " m"]:
        self.draw_dropout()
        if not self.graph:
            return self._step()
        if self._recorded is None:
            self._recorded, self._losses = record(self._step, [self.ensemble.parameters], self._optimizer)
        self._recorded.replay()
        return self._losses

    def _step(self) -> Tensor:
        losses = self.gradients()
        self._optimizer.step()
        return losses

    @fast_small_products()
    def gradients(self) -> Float[Tensor, " m"]:
        """Forward and backward without the update: the losses, and fresh gradients for the optimizer."""
        own = self.inputs.ndim == 3
        rows = self.inputs[self._members[:, None], self.index] if own else self.inputs[self.index]
        votes = self.ensemble.votes(rows, keep=self.keep)
        targets = self.targets.gather(1, self.index)[..., None].expand_as(votes)
        entropy = nn.functional.binary_cross_entropy_with_logits(votes, targets, reduction="none").mean(-1)
        losses = (entropy * self.row_weights).sum(-1)
        (gradient,) = torch.autograd.grad(losses.sum(), self.ensemble.parameters)
        for row, row_gradient in zip(self._rows, gradient, strict=True):
            row.grad = row_gradient
        return losses.detach()
