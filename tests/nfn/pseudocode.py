"""The layers written as in the paper's pseudocode, line by line, block by block.

Written out from appendix:pseudocode_equivariant and appendix:pseudocode_invariant, not from the table, so that table,
grouping and layers are checked against something that shares none of them.
"""

import torch
from torch import Tensor, einsum

from nfn import EquivariantLayer, InvariantLayer
from zoo import BlockWeights


def pseudocode_equivariant(layer: EquivariantLayer, weights: BlockWeights) -> BlockWeights:
    """``EquivariantLayer`` with its parameters: [b, d, blocks, …] → [b, e, blocks, …], one batch dimension."""
    blocks = [
        equivariant_block(coefficients(layer, block), weights.select(2, block)) for block in range(layer.spec.blocks)
    ]
    names = vars(blocks[0])
    return BlockWeights(**{name: torch.stack([getattr(block, name) for block in blocks], dim=2) for name in names})


def pseudocode_invariant(layer: InvariantLayer, weights: BlockWeights) -> Tensor:
    """``InvariantLayer`` with its parameters: [b, d, blocks, …] → [b, blocks, e, D'], one batch dimension."""
    blocks = [
        invariant_block(coefficients(layer, block), weights.select(2, block)) for block in range(layer.spec.blocks)
    ]
    return torch.stack(blocks, dim=1)


def coefficients(layer: EquivariantLayer | InvariantLayer, block: int) -> dict[str, Tensor]:
    return {term.name: layer.coefficient(term)[block] for term in layer.terms}


def products(u: BlockWeights) -> tuple[Tensor, Tensor]:
    """[WW]^(QK,s) and [WW]^(VO,s) of every head, [b, d, h, D, D] (def:additional_terms)."""
    return einsum("bdhpk,bdhqk->bdhpq", u.query, u.key), einsum("bdhpk,bdhkq->bdhpq", u.value, u.output)


def equivariant_block(c: dict[str, Tensor], u: BlockWeights) -> BlockWeights:
    qk, vo = products(u)
    return BlockWeights(
        query=einsum("bdhpk,edjp->behjk", u.query, c["query.query"]),
        key=einsum("bdhpk,edjp->behjk", u.key, c["key.key"]),
        value=einsum("bdhpk,edjp->behjk", u.value, c["value.value"]),
        output=einsum("bdhjk,ed->behj", u.output, c["output.output.1"]).unsqueeze(-1)
        + einsum("bdhjk,ed->behjk", u.output, c["output.output.2"]),
        weight_a=einsum("bdhpq,edpq->be", qk, c["weight_a.qk"]).unsqueeze(-1).unsqueeze(-1)
        + einsum("bdhpq,edp->be", vo, c["weight_a.vo.1"]).unsqueeze(-1).unsqueeze(-1)
        + einsum("bdhpj,edp->bej", vo, c["weight_a.vo.2"]).unsqueeze(-1)
        + einsum("bdpq,ed->be", u.weight_a, c["weight_a.weight_a.1"]).unsqueeze(-1).unsqueeze(-1)
        + einsum("bdjq,ed->bej", u.weight_a, c["weight_a.weight_a.2"]).unsqueeze(-1)
        + einsum("bdpk,ed->bek", u.weight_a, c["weight_a.weight_a.3"]).unsqueeze(-2)
        + einsum("bdjk,ed->bejk", u.weight_a, c["weight_a.weight_a.4"])
        + einsum("bdpq,edq->be", u.weight_b, c["weight_a.weight_b.1"]).unsqueeze(-1).unsqueeze(-1)
        + einsum("bdkq,edq->bek", u.weight_b, c["weight_a.weight_b.2"]).unsqueeze(-2)
        + einsum("bdq,ed->be", u.bias_a, c["weight_a.bias_a.1"]).unsqueeze(-1).unsqueeze(-1)
        + einsum("bdk,ed->bek", u.bias_a, c["weight_a.bias_a.2"]).unsqueeze(-2)
        + einsum("bdq,edq->be", u.bias_b, c["weight_a.bias_b"]).unsqueeze(-1).unsqueeze(-1)
        + c["weight_a.one"].unsqueeze(0).unsqueeze(-1).unsqueeze(-1),
        bias_a=einsum("bdhpq,edpq->be", qk, c["bias_a.qk"]).unsqueeze(-1)
        + einsum("bdhpq,edp->be", vo, c["bias_a.vo"]).unsqueeze(-1)
        + einsum("bdpq,ed->be", u.weight_a, c["bias_a.weight_a.1"]).unsqueeze(-1)
        + einsum("bdpk,ed->bek", u.weight_a, c["bias_a.weight_a.2"])
        + einsum("bdpq,edq->be", u.weight_b, c["bias_a.weight_b.1"]).unsqueeze(-1)
        + einsum("bdkq,edq->bek", u.weight_b, c["bias_a.weight_b.2"])
        + einsum("bdq,ed->be", u.bias_a, c["bias_a.bias_a.1"]).unsqueeze(-1)
        + einsum("bdk,ed->bek", u.bias_a, c["bias_a.bias_a.2"])
        + einsum("bdq,edq->be", u.bias_b, c["bias_a.bias_b"]).unsqueeze(-1)
        + c["bias_a.one"].unsqueeze(0).unsqueeze(-1),
        weight_b=einsum("bdhpq,edkpq->bek", qk, c["weight_b.qk"]).unsqueeze(-2)
        + einsum("bdhpq,edkp->bek", vo, c["weight_b.vo"]).unsqueeze(-2)
        + einsum("bdpq,edk->bek", u.weight_a, c["weight_b.weight_a.1"]).unsqueeze(-2)
        + einsum("bdpj,edk->bejk", u.weight_a, c["weight_b.weight_a.2"])
        + einsum("bdpq,edkq->bek", u.weight_b, c["weight_b.weight_b.1"]).unsqueeze(-2)
        + einsum("bdjq,edkq->bejk", u.weight_b, c["weight_b.weight_b.2"])
        + einsum("bdq,edk->bek", u.bias_a, c["weight_b.bias_a.1"]).unsqueeze(-2)
        + einsum("bdj,edk->bejk", u.bias_a, c["weight_b.bias_a.2"])
        + einsum("bdq,edkq->bek", u.bias_b, c["weight_b.bias_b"]).unsqueeze(-2)
        # The paper's pseudocode lacks this second unsqueeze; its formula, constant in the row j, has it.
        + c["weight_b.one"].unsqueeze(0).unsqueeze(-2),
        bias_b=einsum("bdhpq,edkpq->bek", qk, c["bias_b.qk"])
        + einsum("bdhpq,edkp->bek", vo, c["bias_b.vo"])
        + einsum("bdpq,edk->bek", u.weight_a, c["bias_b.weight_a"])
        + einsum("bdpq,edkq->bek", u.weight_b, c["bias_b.weight_b"])
        + einsum("bdq,edk->bek", u.bias_a, c["bias_b.bias_a"])
        + einsum("bdq,edkq->bek", u.bias_b, c["bias_b.bias_b"])
        + c["bias_b.one"].unsqueeze(0),
    )


def invariant_block(c: dict[str, Tensor], u: BlockWeights) -> Tensor:
    qk, vo = products(u)
    return (
        einsum("bdhpq,edpqk->bek", qk, c["invariant.qk"])
        + einsum("bdhpq,edpk->bek", vo, c["invariant.vo"])
        + einsum("bdpq,edk->bek", u.weight_a, c["invariant.weight_a"])
        + einsum("bdpq,edqk->bek", u.weight_b, c["invariant.weight_b"])
        + einsum("bdq,edk->bek", u.bias_a, c["invariant.bias_a"])
        + einsum("bdq,edqk->bek", u.bias_b, c["invariant.bias_b"])
        + c["invariant.one"].unsqueeze(0)
    )
