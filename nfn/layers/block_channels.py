"""Weights in U^d: all blocks with d channels, as ``BlockWeights`` of tensors [*batch, d, blocks, *axes].

A checkpoint is in U^1; the hidden layers of a functional network are in U^d.
"""

from dataclasses import fields

import torch

from nfn.layers.terms import AXES, sizes
from zoo import BlockWeights, TransformerSpec, TransformerWeights

TENSOR_NAMES = tuple(field.name for field in fields(BlockWeights))


def encoder_as_one_channel(weights: TransformerWeights) -> BlockWeights:
    """The encoder of a checkpoint as weights in U^1. Views."""
    channel = len(weights.batch_shape)
    return weights.encoder.map(lambda tensor: tensor.unsqueeze(channel))


def check_block_weights(weights: BlockWeights, spec: TransformerSpec, channels: int, dtype: torch.dtype) -> torch.Size:
    """The batch shape of weights in U^channels; ValueError where a shape or a dtype does not fit."""
    size = sizes(spec)
    batch = weights.query.shape[: max(weights.query.ndim - 5, 0)]
    for name in TENSOR_NAMES:
        tensor = getattr(weights, name)
        expected = (*batch, channels, spec.blocks, *(size[axis] for axis in AXES[name]))
        if tuple(tensor.shape) != expected:
            raise ValueError(
                f"{name} must be [*batch, {', '.join(map(str, expected[len(batch) :]))}] "
                f"(channels, blocks, then the tensor's own axes), got {list(tensor.shape)}"
            )
        if tensor.dtype != dtype:
            raise ValueError(f"{name} is {tensor.dtype} but the layer is {dtype}: convert one of them with .to()")
    return batch


def blocks_first(weights: BlockWeights, batch: torch.Size) -> BlockWeights:
    """[*batch, d, blocks, …] → [blocks, batch, d, …], the layout the layers compute in. Views where strides allow."""
    if not batch:
        return weights.map(lambda tensor: tensor.movedim(1, 0).unsqueeze(1))
    return weights.map(lambda tensor: tensor.flatten(0, len(batch) - 1).movedim(2, 0))


def blocks_last(weights: BlockWeights, batch: torch.Size) -> BlockWeights:
    """The inverse of ``blocks_first``."""
    if not batch:
        return weights.map(lambda tensor: tensor.squeeze(1).movedim(0, 1))
    return weights.map(lambda tensor: tensor.movedim(0, 2).unflatten(0, batch))
