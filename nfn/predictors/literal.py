"""Transformer-NFN with literal layers: the slow twin of the whole predictor. Use it to check, never to train."""

import copy

from torch import Tensor, nn

from nfn.layers.block_channels import encoder_as_one_channel
from nfn.layers.equivariant import EquivariantLayer, relu_on_mlp
from nfn.layers.literal import LiteralEquivariantLayer, LiteralInvariantLayer
from nfn.predictors.transformer_nfn import InvariantEncoder, TransformerNFN
from zoo import TransformerWeights


class LiteralEncoder(nn.Module):
    """``InvariantEncoder`` layer by layer and term by term, with the same parameters."""

    def __init__(self, encoder: InvariantEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, weights: TransformerWeights) -> Tensor:
        hidden = encoder_as_one_channel(weights)
        for layer in self.encoder.equivariant:
            assert isinstance(layer, EquivariantLayer)
            hidden = relu_on_mlp(LiteralEquivariantLayer(layer)(hidden))
        return self.encoder.read(LiteralInvariantLayer(self.encoder.invariant)(hidden))


def literal_twin(predictor: TransformerNFN) -> TransformerNFN:
    """A predictor that shares the given one's parameters and computes every term on its own."""
    shared = {id(parameter): parameter for parameter in predictor.parameters()}
    twin = copy.deepcopy(predictor, shared)
    encoder = twin.parts["encoder"]
    assert isinstance(encoder, InvariantEncoder)
    twin.parts["encoder"] = LiteralEncoder(encoder)
    return twin
