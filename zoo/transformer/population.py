"""The zoo's transformer for a whole population: P models, each with its own weights, read the same batch.

The same mathematics as ``zoo.transformer.model``, with a leading dimension P on weights and activations. Rows of a
batch and their tokens are flattened where a matrix product takes them, [P, b·t, D], so that each layer is one batched
product.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F

from zoo.transformer.model import EPSILON, check_images, later_tokens, layer_norm, masked_mean, sinusoidal_positions
from zoo.transformer.spec import TransformerSpec

Dropout = Callable[[int, Tensor], Tensor]
"""``dropout(layer, x)`` for activations [P, b, t, D]; its layers are numbered in the order of the forward pass."""
_Rows, _Mask = Float[Tensor, "P b t D"], Bool[Tensor, "b t"]
_Readers, _Writers = Float[Tensor, "P rows D"], Float[Tensor, "P D columns"]
_Keys, _Values = Float[Tensor, "P b h t D_k"], Float[Tensor, "P b h t D_v"]
_ALIGNMENT = 8
_MOST_AS_PRODUCT = 512  # tokens of a vocabulary that are looked up by a matrix product
_MOST_LOGITS = 1 << 24  # of a model at once, 64 MB


class Step(NamedTuple):
    """Activations before a step of a block, or after the last: LayerNorm rows, and 1/√(variance + ε) of each row."""

    rows: Float[Tensor, "P b t D"]
    inverse_deviation: Float[Tensor, "P b t"]


def no_dropout(layer: int, x: Tensor) -> Tensor:
    return x


def prepare_inputs(spec: TransformerSpec, x: Tensor) -> Shaped[Tensor, "b t *features"]:
    """The inputs of a population: word vectors and numbers of tokens as they are, images as patches, each flattened as
    the convolution reads it: channel, y, x."""
    if (size := spec.patch_size) is None:
        return x
    check_images(spec, x)
    squares = x.unflatten(3, (-1, size)).unflatten(2, (-1, size))  # channel, row, y, column, x
    return squares.permute(0, 2, 4, 1, 3, 5).reshape(len(x), -1, x.shape[1] * size * size)


def population_logits(
    spec: TransformerSpec,
    flat: Float[Tensor, "P d"],
    x: Shaped[Tensor, "b t *features"],
    mask: _Mask | None,
    dropout: Dropout = no_dropout,
    dtype: torch.dtype | None = None,
    steps: list[Step] | None = None,
    positions: Float[Tensor, "tokens D"] | None = None,
) -> Float[Tensor, "P b *t classes"]:
    """Logits of every model for every example, those of language models at every position.

    Tokens of a vocabulary are whole numbers [b, t] or mixtures of tokens [b, t, V]. Products are in ``dtype``, or in
    that of the weights; the result is at least float32. ``steps`` takes what LayerNorm makes of the activations before
    the first block, and after attention and MLP of each. ``positions`` are the sinusoidal ones, for a caller that has
    them on the device: a CUDA graph cannot record their way there.
    """
    models, (b, t), dtype = len(flat), x.shape[:2], dtype or flat.dtype
    weights = iter(_split_weights(spec, flat.to(dtype)))
    h = dropout(0, _embed(spec, weights, models, x, positions, dtype))
    normalized = _normalize(h, steps)
    for block in range(spec.blocks):
        qkv, output, fc1, bias1, fc2, bias2 = (next(weights) for _ in range(6))
        attended = dropout(1 + 2 * block, _attention(spec, normalized, mask, qkv, output))
        h = h + attended if spec.residual else attended
        hidden = F.relu(_linear(_normalize(h, steps).view(models, b * t, spec.dim), fc1, bias1))
        mapped = dropout(2 + 2 * block, _linear(hidden, fc2, bias2).view(models, b, t, spec.dim))
        h = h + mapped if spec.residual else mapped
        normalized = _normalize(h, steps)
    if spec.causal:
        (unembedding,) = weights
        logits = (normalized.view(models, b * t, spec.dim) @ unembedding.mT).view(models, b, t, spec.classes)
    else:
        fc1, bias1, fc2, bias2 = weights
        logits = _linear(F.relu(_linear(masked_mean(normalized, mask), fc1, bias1)), fc2, bias2)
    return logits if logits.dtype == torch.float64 else logits.float()


def _embed(
    spec: TransformerSpec,
    weights: Iterator[Tensor],
    models: int,
    x: Shaped[Tensor, "b t *features"],
    sinusoids: Float[Tensor, "tokens D"] | None,
    dtype: torch.dtype,
) -> _Rows:
    """The first rows of every model: patches, word vectors or tokens, each with its position."""
    b, t = x.shape[:2]
    if spec.vocabulary is not None:
        embedding, positions = next(weights), next(weights)
        if x.is_floating_point():
            h = x.flatten(0, 1).to(dtype).expand(models, -1, -1) @ embedding
        elif spec.vocabulary <= _MOST_AS_PRODUCT:
            # a product: sums over equal tokens in its gradient have a fixed order, on a GPU too
            chosen = F.one_hot(x.flatten().long(), spec.vocabulary).to(dtype)
            h = chosen.expand(models, -1, -1) @ embedding
        else:
            h = embedding[:, x.flatten()]
        return h.view(models, b, t, spec.dim) + positions[:, None, :t]
    sinusoids = sinusoidal_positions(spec.tokens, spec.dim) if sinusoids is None else sinusoids
    positions, x = sinusoids.to(x.device, dtype)[:t], x.to(dtype)
    if spec.patch_size is None:
        return (x + positions).expand(models, b, t, spec.dim)
    h = _linear(x.flatten(0, 1).expand(models, b * t, x.shape[-1]), next(weights), next(weights))
    return h.view(models, b, t, spec.dim) + positions


def _split_weights(spec: TransformerSpec, flat: Float[Tensor, "P d"]) -> list[Tensor]:
    """The flat weights as [P, out, in] matrices and [P, out] biases, in order; query, key and value stay one matrix.

    One split instead of a slice per tensor: its gradient is one concatenation.
    """
    shapes: list[tuple[int, int] | tuple[int]] = []
    for name, slot in spec.tensors.items():
        rows, *rest = slot.shape
        if name.endswith((".key.weight", ".value.weight")):
            assert shapes[-1][1:] == (math.prod(rest),)
            shapes[-1] = (shapes[-1][0] + rows, math.prod(rest))
        else:
            shapes.append((rows, math.prod(rest)) if rest else (rows,))
    parts = flat.split([math.prod(shape) for shape in shapes], dim=1)
    return [part.unflatten(1, shape) for part, shape in zip(parts, shapes, strict=True)]


def _normalize(h: _Rows, steps: list[Step] | None) -> _Rows:
    """LayerNorm of a step, which is added to ``steps``."""
    if steps is None:
        return layer_norm(h)
    normalized, _, inverse_deviation = torch.native_layer_norm(h, h.shape[-1:], None, None, EPSILON)
    steps.append(Step(normalized, inverse_deviation.squeeze(-1)))
    return normalized


def _linear(
    x: Float[Tensor, "P n in"], weight: Float[Tensor, "P out in"], bias: Float[Tensor, "P out"]
) -> Float[Tensor, "P n out"]:
    return torch.baddbmm(bias[:, None], x, weight.mT)


def _attention(spec: TransformerSpec, x: _Rows, mask: _Mask | None, qkv: _Readers, output: _Writers) -> _Rows:
    """Multi-head attention of every model over its own projections."""
    models, b, t, dim = x.shape
    widths = [spec.heads * width for width in (spec.key_dim, spec.key_dim, spec.value_dim)]
    projected = (x.view(models, b * t, dim) @ qkv.mT).unflatten(1, (b, t))
    query, key, value = (
        part.unflatten(-1, (spec.heads, -1)).transpose(2, 3) for part in projected.split(widths, dim=-1)
    )
    if x.device.type == "cpu":  # torch's kernel for whole attention, which takes a quarter to two thirds of the time
        wide = None if mask is None else mask.repeat(models, 1)[:, None, None, :]
        flat = (part.flatten(0, 1) for part in (query, key, value))
        whole = F.scaled_dot_product_attention(*flat, attn_mask=wide, is_causal=spec.causal)
        heads = whole.unflatten(0, (models, b))
    else:
        heads = _padded_attention(spec, query, key, value, mask)
    joined = heads.transpose(2, 3).flatten(3).flatten(1, 2)
    return (joined @ output.mT).view(models, b, t, dim)


def _padded_attention(spec: TransformerSpec, query: _Keys, key: _Keys, value: _Values, mask: _Mask | None) -> _Values:
    """softmax(Q Kᵀ / √D_k) V as batched products.

    Keys and values get masked tokens up to a multiple of 8, which add exact zeros: matrix units read rows of 16 bytes,
    and products with rows of 49 numbers fall back to slower kernels (a step of 512 models took 58 µs each, now 46).
    """
    t = query.shape[-2]
    surplus = -t % _ALIGNMENT
    key, value = (F.pad(part, (0, 0, 0, surplus)) for part in (key, value))
    scores = query @ key.mT / math.sqrt(spec.key_dim)
    if mask is not None or surplus:
        real = query.new_ones(1, t, dtype=torch.bool) if mask is None else mask
        scores = scores.masked_fill(~F.pad(real, (0, surplus))[:, None, None, :], -torch.inf)
    if spec.causal:
        scores = scores.masked_fill(later_tokens(scores), -torch.inf)
    return torch.softmax(scores, dim=-1) @ value


def fitting_examples(spec: TransformerSpec, most: int) -> int:
    """How many examples a model should read at once, at most ``most``: fewer where a large vocabulary has too many
    logits for memory."""
    logits = spec.classes * (spec.tokens if spec.causal else 1)
    return max(1, min(most, _MOST_LOGITS // logits))


def population_losses(logits: Float[Tensor, "P b *t classes"], labels: Int[Tensor, " b *t"]) -> Float[Tensor, " P"]:
    """Mean cross entropy of each model over the batch."""
    flat_labels = labels.expand(len(logits), *labels.shape).flatten()
    losses = F.cross_entropy(logits.flatten(0, -2), flat_labels, reduction="none")
    return losses.view(len(logits), -1).mean(dim=1)
