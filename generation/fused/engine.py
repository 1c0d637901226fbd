"""The fused engine: one thread block per model, a whole epoch in one launch, activations and gradients on the chip.

The kernels are in ``kernels/``; this file gives them their arguments, among them the examples in the layout they read:
tokens as halves or numbers, one word of facts each, short texts in packs. Training multiplies in half precision with
sums and weights in float32, and so does the evaluation after each epoch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Float32, Float64, Int, Int16, Int32
from torch import Tensor
from torch.nn import functional as F

from generation.data import EpochBatches, TrainingInputs, epoch_batches
from generation.fused.compiled import Arguments, EvaluateArguments, MeasureArguments, TrainArguments
from generation.fused.variants import RECENT, ROWS, TILE
from generation.population.dropout import LOWEST, drop_threshold
from generation.population.engine import Engine, Measured, PopulationState, UpdateRule
from generation.protocol import ADAM_BETAS, RunConfig
from zoo.tasks.embedding import PADDING
from zoo.tasks.examples import Examples, TaskData
from zoo.transformer.model import sinusoidal_positions
from zoo.transformer.population import prepare_inputs

_LAYER_NORM_EPSILON = 1e-5
_LABEL_SHIFT, _LENGTH_SHIFT = 16, 24  # rank in the batch, label, length: 16, 8 and 8 bits
_NEXT_SHIFT = 8  # a token of a language model and the one that follows: 8 bits each
_COUNT_SHIFT, _TILES_SHIFT = 16, 24  # first example of the step, examples, tiles of each: 16, 8 and 8 bits
_EXAMPLES_PER_PART = 500  # of an evaluation: a thread block loads a model's weights once for this many


@runtime_checkable
class _Kernels(Protocol):
    """The kernels, compiled for one task: ``CudaKernels``, or the emulator of the tests."""

    device: torch.device
    workspace_words: int  # 32-bit words of device memory that training one model needs for itself
    examples_at_once: int  # examples, or packs of short texts, that a thread block trains on at a time

    def launch(self, *queue: Arguments) -> None:
        """Starts the kernels that take these arguments, for every model one after the other."""
        ...


class FusedEngine(Engine):
    """Trains and measures a population with kernels that hold a model on one multiprocessor."""

    name = "fused"
    precision = "float16"
    dtype = torch.float32

    def __init__(self, configs: Sequence[RunConfig], task: TaskData, kernels: _Kernels) -> None:
        super().__init__(configs, task, kernels.device)
        self.kernels = kernels
        self.test_examples = _arrange(self.task, self.task.test)
        self.positions = sinusoidal_positions(self.spec.tokens, self.spec.dim).to(self.device)
        self.rules = _optimizer_rules(configs, self.device)
        dropout = torch.tensor([config.dropout for config in configs], dtype=torch.float64)
        thresholds = [drop_threshold(config.dropout) - LOWEST for config in configs]  # the kernel compares unsigned
        # dropout's factor 1/(1 − p) is part of the LayerNorm that follows it: norm.cuh
        self.epsilons = (_LAYER_NORM_EPSILON * (1 - dropout) ** 2).float().to(self.device)
        self.thresholds = torch.tensor(thresholds, dtype=torch.int32, device=self.device)
        self.workspace = torch.zeros(len(configs), kernels.workspace_words, dtype=torch.int32, device=self.device)
        self.seeds = torch.tensor([config.seed for config in configs]).to(torch.uint32).to(self.device)

    def train_epoch(self, state: PopulationState) -> Float64[Tensor, " P"]:
        training = self._training(state)
        self.kernels.launch(training)
        return training.losses

    def train_and_test(self, state: PopulationState) -> tuple[Float64[Tensor, " P"], Measured]:
        training = self._training(state)
        return training.losses, self.evaluate(state.weights, state.alive, self.task.test, after=[training])

    def _training(self, state: PopulationState) -> TrainArguments:
        batches = epoch_batches(self.training_rows, self.protocol, state.epoch).to(self.device)
        prepared = _epoch_examples(self.inputs, batches)
        packs, counts = _make_packs(prepared.lengths.view(batches.rows.shape), self.kernels.examples_at_once)
        first_step = state.epoch * len(batches)
        rates = [self.protocol.learning_rate(config.learning_rate, state.epoch) for config in self.configs]
        self.rules[:, 0] = torch.tensor(rates)
        return TrainArguments(
            tokens=prepared.tokens,
            facts=prepared.facts,
            positions=self.positions,
            corrections=_adam_corrections(first_step, len(batches)).to(self.device),
            rules=self.rules,
            epsilons=self.epsilons,
            thresholds=self.thresholds,
            seeds=self.seeds,
            alive=state.alive.to(torch.uint8),
            weights=state.weights,
            first_moments=state.first,
            second_moments=state.second,
            workspace=self.workspace,
            packs=packs,
            pack_counts=counts,
            losses=torch.zeros(len(self.configs), dtype=torch.float64, device=self.device),
            steps=len(batches),
            batch=self.protocol.batch_size,
            first_step=first_step,
        )

    def evaluate(
        self,
        weights: Float[Tensor, "P d"],
        alive: Bool[Tensor, " P"],
        examples: Examples,
        *,
        exact: bool = False,
        after: Sequence[Arguments] = (),
    ) -> Measured:
        """By products of halves, unless it is exact; each model after the kernels that are started with it."""
        if examples is self.task.test and not exact:
            prepared = self.test_examples
        else:
            prepared = _arrange(self.task, examples, dtype=torch.float32 if exact else torch.float16)
        parts = -(-len(prepared) // _EXAMPLES_PER_PART)
        correct = torch.zeros(len(self.configs), parts, dtype=torch.int32, device=self.device)
        losses = torch.zeros(len(self.configs), parts, dtype=torch.float64, device=self.device)
        arguments = (MeasureArguments if exact else EvaluateArguments)(
            tokens=prepared.tokens,
            facts=prepared.facts,
            positions=self.positions,
            alive=alive.to(torch.uint8),
            weights=weights,
            correct=correct,
            losses=losses,
            examples=len(prepared),
            part_size=_EXAMPLES_PER_PART,
            parts=parts,
        )
        self.kernels.launch(*after, arguments)
        dead, answers = torch.where(alive, 0.0, torch.nan), examples.labels.numel()
        return correct.sum(dim=1).double() / answers + dead, losses.sum(dim=1) / answers + dead


def _optimizer_rules(configs: Sequence[RunConfig], device: torch.device) -> Float32[Tensor, "P numbers"]:
    """Numbers of the kernel's ``Optimizer``: learning rate (set each epoch), β, γ, α, 1 − α, weight decay, and whether
    the rule is adaptive and whether its moments are corrected."""
    rule = UpdateRule.of(configs, device)
    learning_rate = torch.zeros_like(rule.beta)
    numbers = (learning_rate, rule.beta, rule.gamma, rule.alpha, rule.one_minus_alpha, rule.weight_decay)
    return torch.cat([*numbers, rule.adaptive.float(), (rule.first_decay > 0).float()], dim=1).contiguous()


def _adam_corrections(first_step: int, steps: int) -> Float32[Tensor, "steps 2"]:
    """c₁ = 1 − β₁ᵗ and √c₂ = √(1 − β₂ᵗ) for steps counted from 1, in float64 because 1 − 0.999 loses five digits."""
    t = torch.arange(first_step + 1, first_step + steps + 1, dtype=torch.float64)
    return torch.stack([1 - ADAM_BETAS[0] ** t, (1 - ADAM_BETAS[1] ** t).sqrt()], dim=1).float()


@dataclass(frozen=True)
class _KernelExamples:
    """``tokens`` are the pixels of patches, or word vectors with their positions added; those of a language model are
    numbers in the low byte, with the token that follows in the high one."""

    tokens: Float[Tensor, "n tokens features"] | Int16[Tensor, "n rows"]
    facts: Int32[Tensor, " n"]

    def __len__(self) -> int:
        return len(self.facts)

    @property
    def lengths(self) -> Int32[Tensor, " n"]:
        return self.facts >> _LENGTH_SHIFT


def _epoch_examples(inputs: TrainingInputs, batches: EpochBatches) -> _KernelExamples:
    """The examples of an epoch, step by step. Within a step texts are sorted by length, so that those that a thread
    block works on at a time take equally long; each keeps its rank in the batch for its dropout."""
    task, (steps, batch) = inputs.task, batches.rows.shape
    ranks = torch.arange(batch, device=batches.rows.device).repeat(steps)
    examples = inputs.batch(EpochBatches(batches.rows.view(1, -1), batches.offsets.view(1, -1, 2)), 0)
    if task.embedding is not None:
        lengths = (examples.inputs != PADDING).sum(dim=1).view(steps, batch)
        order = lengths.argsort(dim=1, stable=True) + batch * torch.arange(steps, device=lengths.device)[:, None]
        examples, ranks = examples[order.flatten()], ranks[order.flatten()]
    return _arrange(task, examples, ranks)


def _arrange(
    task: TaskData, examples: Examples, ranks: Int[Tensor, " n"] | int = 0, dtype: torch.dtype = torch.float16
) -> _KernelExamples:
    """The examples in their order. The rank of each in its batch matters only for dropout."""
    lengths = torch.full((len(examples),), task.spec.tokens, device=examples.labels.device)
    if task.spec.causal:
        words = (examples.inputs | examples.labels << _NEXT_SHIFT).to(torch.int16)
        facts = ranks | lengths << _LENGTH_SHIFT
        return _KernelExamples(F.pad(words, (0, ROWS - task.spec.tokens)), facts.to(torch.int32))
    x, mask = task.model_inputs(examples.inputs)
    x = prepare_inputs(task.spec, x)
    if mask is not None:
        x = x + sinusoidal_positions(task.spec.tokens, task.spec.dim).to(x)
        lengths = mask.sum(dim=1)
    facts = ranks | examples.labels << _LABEL_SHIFT | lengths << _LENGTH_SHIFT
    return _KernelExamples(x.to(dtype).contiguous(), facts.to(torch.int32))


def _make_packs(
    lengths: Int[Tensor, "steps batch"], packs_at_once: int
) -> tuple[Int32[Tensor, "steps batch"], Int32[Tensor, " steps"]]:
    """Neighbors that take the same number of tiles of 16 rows, as many as fit: four of one tile, two of two.

    Those of a step are at the front of its row, in the order of their examples; beside them is how many there are. A
    step's lengths must be ascending, or all the same. Kernels that work in rounds, of one pack or two, need every 16
    examples to end with a round (``unspecialized.cuh``).
    """
    steps, batch = lengths.shape
    tiles = (lengths + TILE - 1) // TILE
    if packs_at_once == 3:
        leads = _leaders(tiles)
    else:
        leads = _leaders(tiles.view(-1, RECENT))
        if packs_at_once == 2:
            _split_odd(leads)
        leads = leads.view(steps, batch)
    rank = torch.arange(batch, device=lengths.device).expand(steps, batch)
    next_lead = torch.where(leads, rank, batch).flip(1).cummin(dim=1).values.flip(1)[:, 1:]
    next_lead = F.pad(next_lead, (0, 1), value=batch)
    words = rank | (next_lead - rank) << _COUNT_SHIFT | tiles << _TILES_SHIFT
    front = leads.logical_not().to(torch.uint8).argsort(dim=1, stable=True)
    return words.gather(1, front).to(torch.int32), leads.sum(dim=1, dtype=torch.int32)


def _leaders(tiles: Int[Tensor, "rows examples"]) -> Bool[Tensor, "rows examples"]:
    """Marks the examples of a row that begin a pack."""
    rank = torch.arange(tiles.shape[1], device=tiles.device)
    rank_among_equals = rank - torch.searchsorted(tiles.contiguous(), tiles.contiguous())
    return rank_among_equals % (ROWS // TILE // tiles) == 0


def _split_odd(leads: Bool[Tensor, "rows examples"]) -> None:
    """Cuts a pack of each row with an odd number of them in two, in place. Since the number of examples is even, a row
    with an odd number of packs has one to cut."""
    rows = (leads.sum(dim=1) % 2 == 1).nonzero()[:, 0]
    last_follower = leads.shape[1] - 1 - leads[rows].flip(1).to(torch.uint8).argmin(dim=1)
    leads[rows, last_follower] = True
