"""Predictors of one architecture trained together: ``PredictorEnsemble`` holds them, ``TrainingStep`` trains them.

On a GPU a predictor this small leaves most of the device idle; five of them together take hardly longer than one. The
ensemble is one matrix of parameters, one row per predictor, because then Adam is one kernel per predictor. Nothing
mixes the rows: each member has its own batch, its own Adam and its own learning rate, and is trained exactly as it
would be alone. On a GPU the whole step is recorded once as a CUDA graph and then replayed: at this size launching the
kernels takes many times longer than running them.
"""

import copy
import os
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.func import functional_call, vmap

from nfn.predictors.predictor import Predictor
from zoo.device import fast_small_products, single_threaded_workers

READ_AT_ONCE = 256  # checkpoints in one forward pass: 1 GB of hidden layers for five Transformer-NFN
_WARMUP_STEPS = 3
_STEPS_DRAWN = 8  # of dropout at a time: drawn one by one, they would be what a GPU waits for


class PredictorEnsemble:
    """Predictors of one architecture, trained and read together: ``parameters`` is [m, p] for m predictors.

    These are copies of those of ``predictors``, on ``device``; for None, on that of the first one. All must have the
    same buffers, which are fitted to checkpoints and not trained: so all read the same inputs.
    """

    def __init__(self, predictors: Sequence[Predictor], device: torch.device | None = None) -> None:
        if not predictors or any(predictor.config() != predictors[0].config() for predictor in predictors):
            raise ValueError("an ensemble needs at least one predictor, all of the same architecture")
        first = predictors[0]
        fitted = dict(first.named_buffers())
        if any(not torch.equal(fitted[name], own) for other in predictors for name, own in other.named_buffers()):
            raise ValueError("the predictors of an ensemble read the same: give all of them the buffers of one")
        device = next(first.parameters()).device if device is None else device
        self.spec = first.spec
        self._shapes = {name: parameter.shape for name, parameter in first.named_parameters()}
        self._sizes = [shape.numel() for shape in self._shapes.values()]
        self._skeleton = copy.deepcopy(first).to(device).requires_grad_(False)
        rows = [torch.cat([p.detach().flatten() for p in predictor.parameters()]) for predictor in predictors]
        self.parameters = torch.stack(rows).to(device).requires_grad_(True)

    def __len__(self) -> int:
        return len(self.parameters)

    def inputs(self, flat: Float[Tensor, "*batch d"]) -> Float[Tensor, "n inputs"]:
        """The inputs that the members read from checkpoints, which depend on no parameter."""
        if flat.ndim != 2:
            raise ValueError(f"an ensemble reads checkpoints [n, d], got {list(flat.shape)}")
        return self._skeleton.inputs(flat)

    def votes(
        self, inputs: Float[Tensor, "*batch inputs"], keep: Float[Tensor, "m b units"] | None = None
    ) -> Float[Tensor, "m b votes"]:
        """The logits of each network of each member, from inputs [b, inputs] or [m, b, inputs], with its dropout."""
        pieces = self.parameters.split(self._sizes, dim=1)
        state = {
            f"predictor.{name}": piece.unflatten(1, shape)
            for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)
        }

        def member_votes(state: dict[str, Tensor], inputs: Tensor, keep: Tensor | None) -> Tensor:
            return functional_call(_Votes(self._skeleton), state, (inputs, keep))

        axes = (0, 0 if inputs.ndim == 3 else None, None if keep is None else 0)
        return vmap(member_votes, in_dims=axes)(state, inputs, keep)

    @property
    def dropout(self) -> tuple[int, float]:
        """How many activations of a member have a dropout, and its probability."""
        return self._skeleton.dropped_units, self._skeleton.dropout

    @torch.no_grad()
    @fast_small_products()
    def read(self, inputs: Float[Tensor, "n inputs"]) -> Float[Tensor, "m n"]:
        """The members' logits from the inputs of any number of checkpoints, a few hundred at a time."""
        return torch.cat([self.votes(rows).mean(-1) for rows in inputs.split(READ_AT_ONCE)], dim=1)

    def member(self, index: int, parameters: Float[Tensor, " p"] | None = None) -> Predictor:
        """One predictor on its own, as it is now or with the given parameters."""
        row = self.parameters[index] if parameters is None else parameters
        pieces = row.detach().split(self._sizes)
        state = {name: piece.view(shape) for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)}
        predictor = copy.deepcopy(self._skeleton).requires_grad_(True)
        predictor.load_state_dict(state, strict=False)  # the buffers are those of all members
        return predictor


class _Votes(nn.Module):
    """A predictor whose ``forward`` returns its votes, for ``functional_call``."""

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.predictor = predictor

    def forward(self, inputs: Tensor, keep: Tensor | None) -> Tensor:
        return self.predictor.votes(inputs, keep)


class TrainingStep:
    """``step()`` trains every member on one batch, by binary cross entropy, and returns the losses [m].

    Batches are rows of ``weights`` [n, d], flat checkpoints, and of ``targets`` [n], their accuracies. ``index`` [m, b]
    are the rows of the coming batches, ``row_weights`` [m, b] what each row counts in the mean of its batch, and
    ``rates`` [m] the learning rates. A recorded step reads these very tensors again at every replay, and overwrites the
    losses it returned: change them in place, with ``set_batches`` and ``set_rates``. ``weight_decay`` is AdamW's,
    ``seeds`` draw each member's dropout, if it has any. ``graph`` turns recording on or off; by default every step on a
    GPU is recorded.
    """

    def __init__(
        self,
        ensemble: PredictorEnsemble,
        weights: Float[Tensor, "n d"],
        targets: Float[Tensor, " k"],
        *,
        batch_size: int,
        learning_rate: float = 1e-3,
        weight_decay: float = 0.0,
        seeds: Sequence[int] | None = None,
        graph: bool | None = None,
    ) -> None:
        device = ensemble.parameters.device
        if len(weights) != len(targets):
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
        self.ensemble, self.inputs, self.targets = ensemble, ensemble.inputs(weights), targets
        members, dtype = len(ensemble), ensemble.parameters.dtype
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
        generators = [torch.Generator().manual_seed(seed) for seed in (range(members) if seeds is None else seeds)]
        self._masks = _drawn_masks((batch_size, units), self._dropout, generators, device)
        self._recorded: torch.cuda.CUDAGraph | None = None
        self._losses = torch.empty(0)

    def set_batches(self, index: Int[Tensor, "... b"], row_weights: Float[Tensor, "... b"] | None = None) -> None:
        """Sets the next batches: [m, b], or [b] for the same batch in all members.

        Without ``row_weights`` every row counts the same. A batch with too few rows is filled up with any rows of
        weight 0, because a recorded step has one shape.
        """
        expected = self.index.shape
        for tensor in (index,) if row_weights is None else (index, row_weights):
            if tensor.shape not in (expected, expected[1:]):
                raise ValueError(
                    f"this step takes batches of shape {list(expected)} or {list(expected[1:])}, "
                    f"got {list(tensor.shape)}: fill up a smaller batch with rows of weight 0"
                )
        self.index[:] = index
        self.row_weights[:] = 1 / expected[1] if row_weights is None else row_weights

    def set_rates(self, rates: float | Float[Tensor, " m"]) -> None:
        """Sets the learning rates of the members, from the next step on."""
        self.rates[:] = rates

    def draw_dropout(self) -> None:
        """Draws which units the next step keeps, each member's from its own generator, on the CPU on every device."""
        if self.keep is not None:
            torch.div(next(self._masks), 1 - self._dropout, out=self.keep)

    def __call__(self) -> Float[Tensor, " m"]:
        self.draw_dropout()
        if not self.graph:
            return self._step()
        if self._recorded is None:
            self._recorded, self._losses = self._record()
        self._recorded.replay()
        return self._losses

    def _record(self) -> tuple[torch.cuda.CUDAGraph, Float[Tensor, " m"]]:
        """The step as a CUDA graph, and its losses, which every replay overwrites.

        CUDA needs a step warmed up before it is recorded. The warm-up trains, so parameters and optimizer are put back.
        """
        device, before = self.ensemble.parameters.device, self.ensemble.parameters.detach().clone()
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(_WARMUP_STEPS):
                self._step()
            with torch.no_grad():
                self.ensemble.parameters.copy_(before)
                for state in self._optimizer.state.values():
                    for tensor in state.values():
                        tensor.zero_()
        torch.cuda.current_stream(device).wait_stream(stream)
        # Dropped before the recording begins, so that it allocates new gradients in its own memory.
        self._optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device), torch.cuda.graph(graph):
            losses = self._step()
        return graph, losses

    def _step(self) -> Float[Tensor, " m"]:
        losses = self.gradients()
        self._optimizer.step()
        return losses

    @fast_small_products()
    def gradients(self) -> Float[Tensor, " m"]:
        """Forward and backward without the update: the losses, and fresh gradients for the optimizer."""
        votes = self.ensemble.votes(self.inputs[self.index], keep=self.keep)
        targets = self.targets[self.index][..., None].expand_as(votes)
        entropy = nn.functional.binary_cross_entropy_with_logits(votes, targets, reduction="none").mean(-1)
        losses = (entropy * self.row_weights).sum(-1)
        (gradient,) = torch.autograd.grad(losses.sum(), self.ensemble.parameters)
        for row, row_gradient in zip(self._rows, gradient, strict=True):
            row.grad = row_gradient
        return losses.detach()


def _drawn_masks(
    shape: tuple[int, int], dropout: float, generators: Sequence[torch.Generator], device: torch.device
) -> Iterator[Bool[Tensor, "m b units"]]:
    """The units that each step keeps, drawn for some steps at a time; those of the next ones are drawn meanwhile."""
    workers = single_threaded_workers(min(len(generators), os.cpu_count() or 1))

    def draw() -> Iterator[Tensor]:
        return workers.map(lambda one: torch.rand(_STEPS_DRAWN, *shape, generator=one) >= dropout, generators)

    coming = draw()
    while True:
        drawn, coming = torch.stack(list(coming), dim=1), draw()
        yield from drawn.to(device)
