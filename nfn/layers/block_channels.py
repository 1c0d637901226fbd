"""Elements of U^d: the weights of all blocks with d channels, ``BlockWeights`` of tensors [*batch, d, blocks, *axes].

A checkpoint is an element of U^1; hidden layers of a functional network are elements of U^d.
"""

from dataclasses import fields

import torch
from torch import Tensor

from nfn.layers.terms import AXES, sizes
from zoo import BlockWeights, TransformerSpec, TransformerWeights

NAMES = tuple(field.name for field in fields(BlockWeights))


def as_element(weights: TransformerWeights) -> BlockWeights:
    """The encoder of a checkpoint as an element of U^1. Views."""
    channel = len(weights.batch_shape)
    return weights.encoder.map(lambda tensor: tensor.unsqueeze(channel))


def check_element(weights: BlockWeights, spec: TransformerSpec, channels: int, dtype: torch.dtype) -> torch.Size:
    """The batch shape of an element of U^channels, or one line about what does not fit."""
    size = sizes(spec)
    batch = weights.query.shape[: max(weights.query.ndim - 5, 0)]
    for name in NAMES:
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

    def move(tensor: Tensor) -> Tensor:
        return tensor.flatten(0, len(batch) - 1).movedim(2, 0) if batch else tensor.movedim(1, 0).unsqueeze(1)

    return weights.map(move)


def blocks_last(weights: BlockWeights, batch: torch.Size) -> BlockWeights:
    """The inverse of ``blocks_first``."""

    def move(tensor: Tensor) -> Tensor:
        return tensor.movedim(0, 2).unflatten(0, batch) if batch else tensor.squeeze(1).movedim(0, 1)

    return weights.map(move)
