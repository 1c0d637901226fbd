"""What one checkpoint looks like inside: its patch filters, and what its heads attend to in an example."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from zoo.site.example import Example
from zoo.site.packing import as_bytes, plain
from zoo.transformer.model import Block, ZooTransformer, layer_norm, masked_mean
from zoo.transformer.onednn import fast_small_products
from zoo.transformer.spec import TransformerSpec
from zoo.transformer.weights import TransformerWeights

MOST_ATTENTION = 1 << 17
"""Numbers per checkpoint; two blocks of two heads on 49 patches have 9,604."""
MOST_FILTER_WEIGHTS = 1 << 12


def attention_of(block: Block, x: Float[Tensor, "b t D"], mask: Bool[Tensor, "b t"] | None) -> Float[Tensor, "b h t t"]:
    """softmax(X·W_Q·(X·W_K)ᵀ/√D_k) of every head: row i is what token i attends to; rows sum to 1."""
    query, key = (layer(x).unflatten(-1, (block.heads, -1)).transpose(1, 2) for layer in (block.query, block.key))
    scores = query @ key.mT * block.scale
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None, :], -torch.inf)
    return torch.softmax(scores, dim=-1)


@torch.no_grad()
@fast_small_products()
def look_through(
    model: ZooTransformer, inputs: Tensor, mask: Tensor | None
) -> tuple[Float[Tensor, "b blocks h t t"], Float[Tensor, "b classes"]]:
    """The attention of every head of every block, on the way of the inputs through the model, and what comes out."""
    x, maps = model.embed(inputs, mask), []
    for block in model.blocks:
        assert isinstance(block, Block)
        maps.append(attention_of(block, layer_norm(x), mask))
        x = block(x, mask)
    return torch.stack(maps, dim=1), model.classifier(masked_mean(layer_norm(x), mask))


def refusal(spec: TransformerSpec, example: Example) -> str | None:
    """Why there can be no picture of attention, None where there can be."""
    tokens = len(example.words) if example.words else spec.tokens
    if spec.blocks * spec.heads * tokens**2 > MOST_ATTENTION:
        return f"{spec.blocks} blocks of {spec.heads} heads on {tokens} tokens are too many for a page"
    return None


def insides(
    model: ZooTransformer, weights: Sequence[TransformerWeights], example: Example | None
) -> list[dict[str, Any]]:
    """The pictures of some checkpoints as data: filters [D][patch²], attention as bytes, probabilities of the classes.

    ``model`` is given the weights of each in turn, which is faster than to build one for each.
    """
    found = []
    for checkpoint in weights:
        model.load_state_dict(checkpoint.state_dict())
        found.append(filters_of(model) | ({} if example is None else seen_by(model, example)))
    return found


def filters_of(model: ZooTransformer) -> dict[str, Any]:
    """Each patch filter, the mean of its channels, as a list, as many as fit a page; nothing where words are read."""
    if model.embedding is None:
        return {}
    filters = model.embedding.weight.detach().mean(dim=1).flatten(1)
    shown = max(1, MOST_FILTER_WEIGHTS // filters.shape[1])
    return {"filters": [plain(weights, digits=3) for weights in filters[:shown]]}


def seen_by(model: ZooTransformer, example: Example) -> dict[str, Any]:
    """What a model makes of an example."""
    maps, logits = look_through(model, example.inputs, example.mask)
    return {
        "attention": as_bytes(maps[0]),
        "tokens": maps.shape[-1],
        "probabilities": plain(torch.softmax(logits[0], dim=-1), digits=3),
    }
