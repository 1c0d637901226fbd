"""Transformer-NFN, the paper's model."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nfn.layers.factored import apply_equivariant, apply_invariant, apply_relu, factor_checkpoints
from nfn.layers.polynomial import EquivariantLayer, InvariantLayer
from nfn.predictors.component_predictor import ComponentPredictor
from nfn.predictors.predictor import normalized_network
from zoo import BlockWeights, TransformerSpec, TransformerWeights
from zoo.transformer.spec import Component

_WIDTH = 10
_MAX_LAYERS = 16
"""Far more than any predictor has; a file with thousands would take a long time to read."""


@dataclass(eq=False, repr=False, kw_only=True)
class TransformerNFN(ComponentPredictor):
    """Transformer-NFN: equivariant layers, ReLU on the MLP's weights, an invariant layer (appendix:transformer-nfn).

    Its reading of the encoder does not change under the group G_U. ``channels`` are the widths of the equivariant
    layers.
    """

    kind = "transformer_nfn"
    channels: Sequence[int] = (10,)

    def build_reader(self, component: Component, generator: torch.Generator) -> tuple[nn.Module, int]:
        if component == "encoder":
            return InvariantEncoder(self.spec, self.channels, _WIDTH, generator), _WIDTH
        return self.flat_reader(component, [_WIDTH] * 3, generator)


class InvariantEncoder(nn.Module):
    """Equivariant layers, ReLU on the MLP's weights after each, an invariant layer, normalization, an MLP.

    The invariant layer gives one number per channel and block. These are normalized over the channels of each block,
    then all together, and read by three linear layers of width 10 (the paper does not mention them, but its parameter
    counts include them).
    """

    def __init__(
        self, spec: TransformerSpec, channels: Sequence[int], outputs: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        if not 1 <= len(channels) <= _MAX_LAYERS:
            raise ValueError(f"Transformer-NFN has 1 to {_MAX_LAYERS} equivariant layers, got {len(channels)} channels")
        if channels[-1] < 2:
            raise ValueError(f"the last layer needs 2 channels or more to normalize over, got {channels[-1]}")
        widths = [1, *channels]
        self.equivariant = nn.ModuleList(
            EquivariantLayer(spec, widths[i], widths[i + 1], generator=generator) for i in range(len(channels))
        )
        self.invariant = InvariantLayer(spec, widths[-1], widths[-1], generator=generator)
        self.block_norm = _BlockNorm(spec.blocks, widths[-1])
        read = spec.blocks * widths[-1]
        network = normalized_network([read, _WIDTH, _WIDTH], generator, nn.ReLU, outputs)
        self.head = nn.Sequential(nn.LayerNorm(read), *network)

    def forward(self, weights: TransformerWeights) -> Float[Tensor, "b outputs"]:
        return self.read_encoder(weights.encoder)

    def read_encoder(self, encoder: BlockWeights) -> Float[Tensor, "b outputs"]:
        """The same from tensors [b, blocks, …]."""
        hidden = factor_checkpoints(encoder)
        for layer in self.equivariant:
            assert isinstance(layer, EquivariantLayer)
            hidden = apply_relu(apply_equivariant(layer, hidden))
        return self.read(apply_invariant(self.invariant, hidden))

    def read(self, invariants: Float[Tensor, "b blocks e 1"]) -> Float[Tensor, "b outputs"]:
        """Everything after the invariant layer."""
        return self.head(self.block_norm(invariants.squeeze(-1)).flatten(1))


class _BlockNorm(nn.Module):
    """LayerNorm over the channels of each transformer block, with separate weights for each."""

    def __init__(self, blocks: int, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(blocks, channels))
        self.bias = nn.Parameter(torch.zeros(blocks, channels))

    def forward(self, x: Float[Tensor, "b blocks channels"]) -> Float[Tensor, "b blocks channels"]:
        return F.layer_norm(x, x.shape[-1:]) * self.weight + self.bias
