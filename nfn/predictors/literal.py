"""The slow twin of Transformer-NFN: every term of the table by its own einsum, block by block.

It reads the parameters of the predictor it is the twin of. Use it to check and to compare, never to train.
"""

import copy

import torch
from torch import Tensor, einsum, nn

from nfn.layers.polynomial import EquivariantLayer, InvariantLayer, encoder_as_one_channel, relu_on_mlp
from nfn.predictors.transformer_nfn import InvariantEncoder, TransformerNFN
from zoo import BlockWeights, TransformerWeights


def literal_twin(predictor: TransformerNFN) -> TransformerNFN:
    """A predictor that shares the given one's parameters and computes every term on its own."""
    shared = {id(parameter): parameter for parameter in predictor.parameters()}
    twin = copy.deepcopy(predictor, shared)
    encoder = twin.parts["encoder"]
    assert isinstance(encoder, InvariantEncoder)
    twin.parts["encoder"] = _LiteralEncoder(encoder)
    return twin


class _LiteralEncoder(nn.Module):
    """``InvariantEncoder`` layer by layer and term by term, with the same parameters."""

    def __init__(self, encoder: InvariantEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, weights: TransformerWeights) -> Tensor:
        hidden = encoder_as_one_channel(weights)
        for layer in self.encoder.equivariant:
            assert isinstance(layer, EquivariantLayer)
            hidden = relu_on_mlp(BlockWeights(**_literal_targets(layer, hidden)))
        return self.encoder.read(_literal_targets(self.encoder.invariant, hidden)["invariant"].transpose(1, 2))


def _literal_targets(layer: EquivariantLayer | InvariantLayer, weights: BlockWeights) -> dict[str, Tensor]:
    """Every target of a layer, [b, e, blocks, *axes], from weights [b, d, blocks, *axes]."""
    totals: list[dict[str, Tensor]] = []
    for block in range(layer.spec.blocks):
        u = weights.select(2, block)
        products = {
            "qk": einsum("bdhpk,bdhqk->bdhpq", u.query, u.key),
            "vo": einsum("bdhpk,bdhkq->bdhpq", u.value, u.output),
        }
        sources, total = vars(u) | products, {}
        for term in layer.terms:
            coefficient = layer.coefficient(term)[block]
            one = term.source == "one"
            result = coefficient.unsqueeze(0) if one else einsum(term.einsum, sources[term.source], coefficient)
            # Indices of the target that the einsum does not produce are broadcast.
            produced = (slice(None) if letter in term.kept + term.created else None for letter in term.target_letters)
            result = result[(slice(None), slice(None), *produced)]
            total[term.target] = total[term.target] + result if term.target in total else result
        totals.append(total)
    return {name: torch.stack([total[name] for total in totals], dim=2) for name in totals[0]}
