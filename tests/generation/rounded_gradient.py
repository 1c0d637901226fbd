"""The gradient of one training step by float64 autograd, with the numbers rounded that the fused kernels round."""

import math
from collections.abc import Callable
from typing import ClassVar

import torch
from jaxtyping import Float32, Float64
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from generation.fused.engine import _KernelExamples
from generation.population.dropout import drop_threshold, dropout_bits, dropout_layers
from generation.population.torch_engine import mask_dropout
from zoo.transformer.model import later_tokens, sinusoidal_positions
from zoo.transformer.population import no_dropout, population_logits, population_losses
from zoo.transformer.spec import TransformerSpec


class FactorsIn(TorchFunctionMode):
    """Rounds what the kernels round: the factors of every matrix product.

    As in the kernels, softmax's numerators are such a factor, and their product is divided by their sum. So units near
    zero fall on the same side of their ReLU as in the kernels, except for the last bits of sums. ``last_relu`` is the
    input of the last one, the classifier's. Vectors of tokens are looked up, not multiplied: a product with one-hot
    rows, which have ``vocabulary`` columns, is not rounded.
    """

    PRODUCTS: ClassVar = {torch.Tensor.matmul: (0, 1), torch.Tensor.__matmul__: (0, 1), torch.baddbmm: (1, 2)}

    def __init__(self, precision: torch.dtype, vocabulary: int | None = None) -> None:
        super().__init__()
        self.precision, self.vocabulary = precision, vocabulary
        self.last_relu = torch.empty(0)

    def __torch_function__(self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None) -> object:
        if func is F.scaled_dot_product_attention:
            return self.attention(*args, **(kwargs or {}))
        if func is F.relu:
            self.last_relu = args[0].detach()
        factors = self.PRODUCTS.get(func, ())
        if factors and args[0].shape[-1] == self.vocabulary:
            factors = ()
        return func(*(self.rounded(arg) if i in factors else arg for i, arg in enumerate(args)), **(kwargs or {}))

    def attention(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
        scores = self.rounded(query) @ self.rounded(key).mT / math.sqrt(query.shape[-1])
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        if is_causal:
            scores = scores.masked_fill(later_tokens(scores), -torch.inf)
        numerators = self.rounded((scores - scores.detach().amax(dim=-1, keepdim=True)).exp())
        return numerators @ self.rounded(value) / numerators.sum(dim=-1, keepdim=True)

    def rounded(self, x: Tensor) -> Tensor:
        return x + (x.detach().to(self.precision).to(x.dtype) - x.detach())


def exact_gradient(
    spec: TransformerSpec, weights: Tensor, examples: _KernelExamples, order: Tensor, dropout: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Loss and gradient by float64 autograd, from the very numbers that the kernel reads and with the same masks."""
    batch = len(examples)
    labels, lengths = (examples.facts[order] >> 16 & 0xFF).long(), examples.facts[order] >> 24
    mask = None
    if spec.causal:
        words = examples.tokens[order, : spec.tokens].long()
        tokens, labels = words & 0xFF, words >> 8 & 0xFF
    else:
        tokens = examples.tokens.double()[order]
    if spec.patch_size is None and not spec.causal:
        tokens = tokens - sinusoidal_positions(spec.tokens, spec.dim).double()
        mask = torch.arange(spec.tokens) < lengths[:, None]
    drop = no_dropout
    if dropout:
        groups = torch.arange(batch * spec.tokens * spec.dim // 4)
        layers = torch.arange(dropout_layers(spec))  # of step 0
        bits = [dropout_bits(torch.tensor([seed]), layer, groups) for layer in layers]
        threshold = torch.tensor([drop_threshold(dropout)], dtype=torch.int16)
        drop = mask_dropout(bits, threshold, torch.tensor([1 / (1 - dropout)], dtype=torch.float64))
    flat = weights.double().requires_grad_()
    loss = population_losses(population_logits(spec, flat, tokens, mask, drop, torch.float64), labels)
    (gradient,) = torch.autograd.grad(loss.sum(), flat)
    return loss.detach(), gradient


def clear_of_zero(units: Float64[Tensor, "examples units"], margin: float = 0.01) -> Float32[Tensor, " units"]:
    """The least that moves each of the classifier's units at least ``margin`` away from zero for every example.

    One that rounding puts on the other side of its ReLU changes all of an example's gradient: in a batch of 16, a tenth
    of the whole.
    """
    moves = torch.linspace(-1, 1, 801, dtype=units.dtype)
    moves = moves[moves.abs().argsort(stable=True)]
    clear = ((units[:, :, None] + moves).abs() >= margin).all(dim=0)
    assert bool(clear.any(dim=1).all())
    return moves[clear.int().argmax(dim=1)].float()
