"""The circuits of a language model: what its matrices do between tokens that have names.

Nothing in a residual stream has a basis of its own, but tokens do. With C = I − 11ᵀ/D, X = s·[E + mean(P)]·C, one row
per token, s such that a token at a position is as long as what LayerNorm gives, and U centered over D and over tokens,
the matrices

    direct        X·Uᵀ                  from a token straight to the logits of the next one
    query_key     X·W_Q·W_Kᵀ·Xᵀ/√D_k    how much a token looks for another one, per head
    output_value  s·X·W_V·W_O·Uᵀ        what attending to a token adds to the logits, per head
    mlp           s·X·W_A·W_B·Uᵀ        the MLP of a block without its ReLU

are changed by no symmetry that keeps the function, but for the order of the heads. LayerNorm is left out in between: it
divides what a token brings by the size of all that is in the stream.
"""

from dataclasses import dataclass
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor

from zoo.transformer.weights import TransformerWeights

_TINY = 1e-24


@dataclass(frozen=True)
class Circuits:
    """Matrices in the space of tokens, V, and of positions, T, in float64. Blocks and heads are the checkpoint's."""

    direct: Float[Tensor, "*batch V V"]  # token, next token
    query_key: Float[Tensor, "*batch blocks h V V"]  # the token that looks, the token that is looked at
    position_query_key: Float[Tensor, "*batch blocks h T T"]  # the same for positions, [P − mean(P)]
    output_value: Float[Tensor, "*batch blocks h V V"]  # the token that is attended to, next token
    mlp: Float[Tensor, "*batch blocks V V"]  # token, next token
    query_composition: Float[Tensor, "*batch blocks h blocks h"]
    key_composition: Float[Tensor, "*batch blocks h blocks h"]
    value_composition: Float[Tensor, "*batch blocks h blocks h"]
    """‖W_QK·W_OV‖/(‖W_QK‖·‖W_OV‖), and W_OV·W_OV, of a head (first two axes) that reads what an earlier one wrote.

    Zero where the other head does not come earlier, or one of the two is dead.
    """


def circuits(weights: TransformerWeights) -> Circuits:
    """The circuits of language models [..., d], differentiable, in float64."""
    spec = weights.spec
    if not spec.causal:
        raise ValueError(f"circuits lead from tokens to tokens: a transformer of {spec.task} is not a language model")
    weights = TransformerWeights.from_flat(spec, weights.flat().double())
    positions = weights["positions.weight"]
    mean = positions.mean(-2, keepdim=True)
    tokens, positions = without_mean(weights["embedding.weight"] + mean, -1), without_mean(positions - mean, -1)
    # scaled so that a token at a position has the mean square length D
    length = tokens.square().sum(-1).mean(-1) + positions.square().sum(-1).mean(-1)
    scale = (spec.dim / (length + _TINY)).sqrt()[..., None, None]
    classes = without_mean(weights["unembedding.weight"], -1, -2)
    encoder = weights.encoder
    scores = without_mean(encoder.query @ encoder.key.mT, -1, -2) / sqrt(spec.key_dim)
    writes = scale[..., None, None] * without_mean(encoder.value @ encoder.output, -1, -2)
    mapped = scale[..., None] * without_mean(encoder.weight_a, -2) @ without_mean(encoder.weight_b, -1)
    x, places, u = (rows[..., None, None, :, :] for rows in (scale * tokens, scale * positions, classes))
    return Circuits(
        direct=(scale * tokens) @ classes.mT,
        query_key=x @ scores @ x.mT,
        position_query_key=places @ scores @ places.mT,
        output_value=x @ writes @ u.mT,
        mlp=(x[..., 0, :, :] @ mapped) @ u[..., 0, :, :].mT,
        query_composition=_composition(writes, scores),
        key_composition=_composition(writes, scores.mT),
        value_composition=_composition(writes, writes),
    )


def without_mean(x: Float[Tensor, "..."], *dims: int) -> Float[Tensor, "..."]:
    """x without its mean along each of these dimensions, one after the other."""
    for dim in dims:
        x = x - x.mean(dim, keepdim=True)
    return x


def _composition(
    writes: Float[Tensor, "*batch blocks h D D"], reads: Float[Tensor, "*batch blocks h D D"]
) -> Float[Tensor, "*batch blocks h blocks h"]:
    """‖W·R‖/(‖W‖·‖R‖) of what an earlier head writes, W, and what a later one makes of it, R."""
    writes, reads = (x / (x.square().sum((-2, -1), keepdim=True) + _TINY).sqrt() for x in (writes, reads))
    products = writes[..., None, None, :, :, :, :] @ reads[..., :, :, None, None, :, :]
    share = (products.square().sum((-2, -1)) + _TINY).sqrt()
    blocks = torch.arange(share.shape[-2], device=share.device)
    return share * (blocks[:, None] > blocks)[:, None, :, None]
