"""The engine that runs everywhere: a population as batched matrix products of torch, on a CPU or a GPU.

The runs share the batches; each has its own weights, optimizer, learning rate, weight decay, dropout and init std.
A run's result does not depend on its neighbors: nothing is summed over runs, and random numbers come from counters.
On a CPU each of torch's threads trains runs of its own, and no run is spread over several: that would take more time,
far more on a busy machine, for the same bytes. Small models are stacked there as well, always as many at a time: a last
pass of fewer is filled up with copies, so that a run's arithmetic is the same in any company, to the bit.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Event
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Float64, Int, Int16
from torch import Tensor

from generation.data import epoch_batches, model_batch
from generation.population.dropout import (
    ELEMENTS_PER_CALL,
    counter_stride,
    drop_threshold,
    dropout_bits,
    dropout_layers,
    mask_dropout,
)
from generation.population.engine import Engine, Measured, PopulationState, UpdateRule, update
from generation.protocol import RunConfig
from zoo.device import fast_small_products, single_threaded_workers
from zoo.tasks.examples import Examples, TaskData
from zoo.transformer.population import (
    fitting_examples,
    no_dropout,
    population_logits,
    population_losses,
    prepare_inputs,
)
from zoo.transformer.spec import AGNEWS, TransformerSpec

_Precision = Literal["float64", "float32", "bfloat16"]
"""Precision of products in training. Weights are float32; float64 holds for both and is there to prove exactness."""
_EVALUATION_BATCH = 500


@contextmanager
def _quiet_compiler() -> Iterator[None]:
    """Hides the warnings of torch's compiler about its own choices, such as that float32 is slower than tf32."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\._inductor")
        yield


class TorchEngine(Engine):
    """Trains and measures a population with torch's own operations."""

    name = "torch"

    def __init__(
        self,
        configs: Sequence[RunConfig],
        task: TaskData,
        *,
        device: torch.device | str = "cpu",
        precision: _Precision | None = None,
        models_per_pass: int | None = None,
        compiled: bool | None = None,
    ) -> None:
        super().__init__(configs, task, torch.device(device))
        self.precision = precision or ("bfloat16" if self.device.type == "cuda" else "float32")
        at_most = models_per_pass or fitting_models(self.device, self.spec, self.protocol.batch_size)
        self.stack = None if self.device.type == "cuda" else at_most
        self.passes = _plan_passes(len(configs), at_most, even=self.stack is None)
        self.threads = 1 if self.device.type == "cuda" else torch.get_num_threads()
        self.dtype = torch.float64 if self.precision == "float64" else torch.float32
        self.rule = UpdateRule.of(configs, self.device, self.dtype)
        self.seeds = torch.tensor([config.seed for config in configs], device=self.device)
        self.one_seed = len({config.seed for config in configs}) == 1
        dropout = [config.dropout for config in configs]
        self.drops = any(dropout)
        self.thresholds = torch.tensor([drop_threshold(p) for p in dropout], dtype=torch.int16, device=self.device)
        self.scales = torch.tensor([1 / (1 - p) for p in dropout], dtype=self.dtype, device=self.device)
        # A compiled step fuses everything between two matrix products. On a CPU it would need the user's C++ compiler.
        compiled = self.device.type == "cuda" if compiled is None else compiled
        logits = partial(population_logits, self.spec)
        functions: tuple[Callable[..., Any], ...] = (self._pass_losses, update, dropout_bits, logits)
        if compiled:
            functions = tuple(torch.compile(function, dynamic=False) for function in functions)
        self._losses, self._update, self._bits, self._logits = functions

    @_quiet_compiler()
    @fast_small_products()
    def train_epoch(self, state: PopulationState) -> Float64[Tensor, " P"]:
        batches = epoch_batches(self.training_rows, self.protocol, state.epoch).to(self.device)
        rates = [self.protocol.learning_rate(config.learning_rate, state.epoch) for config in self.configs]
        learning_rate = torch.tensor(rates, dtype=self.dtype, device=self.device)[:, None]
        losses = torch.zeros(len(self.configs), dtype=torch.float64, device=self.device)

        def train(number: int, passes: Sequence[slice]) -> None:
            """One step of all runs that are alive, in place; adds each run's loss to ``losses``."""
            x, mask, labels = model_batch(self.inputs, batches, number)
            x = prepare_inputs(self.spec, x)
            step = torch.tensor(state.epoch * len(batches) + number, device=self.device)
            groups = torch.arange(-(-x.shape[0] * x.shape[1] * self.spec.dim // ELEMENTS_PER_CALL), device=self.device)
            shared_bits = self._all_bits(self.seeds[:1], step, groups) if self.one_seed and self.drops else None
            for rows in passes:
                members, count, bits = self._members(rows), rows.stop - rows.start, None
                if any(config.dropout for config in self.configs[rows]):
                    bits = shared_bits or self._all_bits(self.seeds[members], step, groups)
                # a copy, since another thread may write to the rows beside these
                flat = state.weights[members].clone().requires_grad_()
                all_losses = self._losses(flat, x, mask, labels, bits, self.thresholds[members], self.scales[members])
                pass_losses = all_losses[:count]
                (gradient,) = torch.autograd.grad(pass_losses.sum(), flat)
                new = self._update(
                    self.rule.rows(rows),
                    state.weights[rows],
                    state.first[rows],
                    state.second[rows],
                    gradient[:count],
                    learning_rate[rows],
                    state.alive[rows, None],
                    step + 1,
                )
                for tensor, value in zip((state.weights, state.first, state.second), new, strict=True):
                    tensor[rows] = value
                losses[rows] += pass_losses.detach()

        self._side_by_side(train, len(batches), state.alive)
        return losses / len(batches)

    def _side_by_side(
        self, work: Callable[[int, Sequence[slice]], None], count: int, alive: Bool[Tensor, " P"]
    ) -> None:
        """Calls ``work`` for the batches 0 to count − 1 and the passes with a run alive, which the threads share."""
        # reading from a GPU which runs are alive would stall it, so there all passes count
        passes = [rows for rows in self.passes if self.device.type == "cuda" or bool(alive[rows].any())]
        interrupted = Event()

        def work_through(share: Sequence[slice]) -> None:
            try:
                for number in range(count):
                    if interrupted.is_set():
                        return
                    work(number, share)
            except BaseException:
                interrupted.set()
                raise

        if self.threads == 1 or not passes:
            return work_through(passes)
        threads = min(self.threads, len(passes))
        with single_threaded_workers(threads) as pool:
            try:
                list(pool.map(work_through, [passes[first::threads] for first in range(threads)]))
            finally:
                interrupted.set()

    def _members(self, rows: slice) -> slice | Int[Tensor, " p"]:
        """The runs of a pass; on a CPU its last run again and again where they are fewer than are stacked."""
        if self.stack is None or rows.stop - rows.start == self.stack:
            return rows
        return torch.arange(rows.start, rows.start + self.stack).clamp(max=rows.stop - 1)

    def _all_bits(self, seeds: Tensor, step: Tensor, groups: Tensor) -> list[Int16[Tensor, "seeds n"]]:
        layers = dropout_layers(self.spec)
        return [self._bits(seeds, step * counter_stride(layers) + layer, groups) for layer in range(layers)]

    def _pass_losses(
        self,
        flat: Float[Tensor, "p d"],
        x: Tensor,
        mask: Tensor | None,
        labels: Tensor,
        bits: list[Tensor] | None,
        thresholds: Int16[Tensor, " p"],
        scales: Float[Tensor, " p"],
    ) -> Float[Tensor, " p"]:
        dropout = no_dropout if bits is None else mask_dropout(bits, thresholds, scales)
        dtype = torch.bfloat16 if self.precision == "bfloat16" else flat.dtype
        return population_losses(population_logits(self.spec, flat, x, mask, dropout, dtype), labels)

    @torch.no_grad()
    @_quiet_compiler()
    @fast_small_products()
    def evaluate(
        self, weights: Float[Tensor, "P d"], alive: Bool[Tensor, " P"], examples: Examples, *, exact: bool = False
    ) -> Measured:
        """Accuracy and mean loss on ``examples`` of every run that is alive, in float32; NaN for the others."""
        correct = torch.zeros(len(self.configs), dtype=torch.float64, device=self.device)
        loss, size = torch.zeros_like(correct), fitting_examples(self.spec, _EVALUATION_BATCH)

        @torch.no_grad()
        def measure(number: int, passes: Sequence[slice]) -> None:
            part = examples[slice(number * size, (number + 1) * size)]
            x, mask = self.task.model_inputs(part.inputs)
            x = prepare_inputs(self.spec, x)
            for rows in passes:
                logits = self._logits(weights[self._members(rows)], x, mask)[: rows.stop - rows.start]
                correct[rows] += (logits.argmax(dim=-1) == part.labels).flatten(1).sum(dim=1)
                loss[rows] += population_losses(logits, part.labels).double() * len(part)

        self._side_by_side(measure, -(-len(examples) // size), alive)
        dead = torch.where(alive, 0.0, torch.nan)
        return correct / examples.labels.numel() + dead, loss / len(examples) + dead


def _plan_passes(population: int, at_most: int, *, even: bool = True) -> tuple[slice, ...]:
    """The population cut into as few passes as fit, all but the last of the same size, which is ``at_most`` unless
    ``even``: then the last is about as large as the others."""
    assert at_most >= 1
    count = -(-population // at_most)
    size = -(-population // count) if even else at_most
    return tuple(slice(start, min(start + size, population)) for start in range(0, population, size))


_BYTES_PER_EXAMPLE = 400_000
"""Memory of one model's activations, gradients and temporaries for one training example, a generous estimate for the
paper's two transformers."""


def _bytes_per_example(spec: TransformerSpec) -> int:
    """The same for any transformer: ``_BYTES_PER_EXAMPLE``, or more in proportion to the activations."""
    return int(_BYTES_PER_EXAMPLE * max(1.0, _activations(spec) / _activations(AGNEWS)))


_STACKED_ACTIVATIONS, _MOST_STACKED = 1 << 22, 16


def _activations(spec: TransformerSpec) -> int:
    """Numbers that one example's backward pass needs, about t·(D + blocks·(6D + 2h(2D_k + D_v) + 3ht + 2D_A)), and 3V
    more for each token of a language model."""
    projections = spec.heads * (2 * spec.key_dim + spec.value_dim)
    block = 6 * spec.dim + 2 * projections + 3 * spec.heads * spec.tokens + 2 * spec.hidden_dim
    return spec.tokens * (spec.dim + spec.blocks * block + (3 * spec.classes if spec.causal else 0))


def fitting_models(device: torch.device, spec: TransformerSpec, batch_size: int) -> int:
    """How many models one pass can hold. On a CPU a number for the caches: one of the paper's, and of small ones as
    many as spread the cost of a call of torch over enough arithmetic."""
    if device.type != "cuda":
        return min(_MOST_STACKED, max(1, _STACKED_ACTIVATIONS // (_activations(spec) * batch_size)))
    # a share of all memory, not of what is free now: a resumed shard must cut its passes as before
    _, total = torch.cuda.mem_get_info(device)
    return max(1, int(0.8 * total) // (_bytes_per_example(spec) * batch_size))
