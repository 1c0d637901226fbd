"""Are two transformers the same by symmetry? Finds the group element that carries one to the other, or says why not.

By thm:multihead_equality two sets of attention weights, under its conditions (a) to (d), define the same multi-head
map exactly when some τ, M and N carry one to the other, and then

    τ  is read off the matrices W^(Q,s)·(W^(K,s))ᵀ, which are the same up to the order of the heads,
    M  solves W^(Q,τ(i))·Mᵀ = W̄^(Q,i) or W̄^(K,i)·M = W^(K,τ(i)), whichever is better conditioned (rank factorization),
    N  solves W^(V,τ(i))·N = W̄^(V,i) or N·W̄^(O,i) = W^(O,τ(i)).

(The theorem prints W̄^(V,i) where it means W̄^(V,τ(i)).) For a whole block, W^(V,s)·W^(O,s) may in addition have its
columns permuted by π_O, and the MLP's neurons by π_A; permutations move numbers without changing them, so there
equality is exact.

Weights are compared as what they are, rounded numbers: two products are the same if they differ by no more than a few
roundings of each factor can explain, entry by entry. All arithmetic is in float64.
"""

from dataclasses import fields
from math import sqrt

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from nfn.layers.terms import ATTENTION
from nfn.symmetry.group import GroupElement
from nfn.symmetry.match import Match, NoMatch, check_pair
from zoo import BlockWeights, TransformerWeights

# How many roundings of its dtype each weight may have gone through: one on storage, a few in whatever applied M and N.
ROUNDINGS = 4


def find_group_element(u: TransformerWeights, v: TransformerWeights) -> GroupElement | None:
    """The g with g·u = v, or None: are these the same function by symmetry? ``match_paper_group`` also says why not."""
    return match_paper_group(u, v).element


def match_paper_group(
    u: TransformerWeights, v: TransformerWeights, *, attention_only: bool = False
) -> Match[GroupElement]:
    """Compares two single checkpoints, block by block.

    With ``attention_only`` only the multi-head attentions are compared, which is the theorem itself: no permutation of
    features or neurons is searched for, and those of the element are the identity. Residual transformers have no
    permutation of features at all.
    """
    check_pair(u, v)
    epsilon = max(torch.finfo(weights.flat().dtype).eps for weights in (u, v))
    try:
        if max(u.spec.key_dim, u.spec.value_dim) > u.spec.dim:
            raise NoMatch(
                f"condition (a) fails: max(D_k, D_v) ≤ D, got {max(u.spec.key_dim, u.spec.value_dim)} > {u.spec.dim}"
            )
        for name in () if attention_only else u.spec.tensors:
            if not name.startswith("blocks.") and not torch.equal(u[name].double(), v[name].double()):
                raise NoMatch(f"{name} differs, and the group does not move it")
        blocks = []
        for index, (u_block, v_block) in enumerate(zip(u.blocks, v.blocks, strict=True)):
            pair = in_double(u_block), in_double(v_block)
            try:
                blocks.append(match_block(*pair, epsilon, attention_only, u.spec.residual))
            except NoMatch as failure:
                raise NoMatch(f"block {index}: {failure}") from None
    except NoMatch as failure:
        return Match(None, str(failure))
    element = GroupElement(
        **{f.name: torch.cat([getattr(block, f.name) for block in blocks]) for f in fields(GroupElement)}
    )
    moved, wanted = element.act_on_blocks(in_double(u.encoder)), in_double(v.encoder)
    for name in ATTENTION:
        error = torch.linalg.norm(getattr(moved, name) - getattr(wanted, name)) / torch.linalg.norm(
            getattr(wanted, name)
        )
        if error > sqrt(epsilon):
            return Match(
                None, f"the products agree, but {name} comes out wrong by {error:.1e}: too ill-conditioned to tell"
            )
    return Match(element, None)


def match_block(u: BlockWeights, v: BlockWeights, epsilon: float, attention_only: bool, residual: bool) -> GroupElement:
    """The element of one block (with a block dimension of length one), or ``NoMatch``."""
    check_conditions(u, "the first", epsilon)
    check_conditions(v, "the second", epsilon)
    tau = match_heads(u, v, epsilon)
    u = in_head_order(u, tau)
    in_place = attention_only or residual
    features = torch.arange(u.query.shape[-2]) if in_place else match_features(u, v, epsilon)
    if not bool(agree(u.value, u.output[..., features], v.value, v.output, epsilon).all()):
        raise NoMatch("W^(V)·W^(O) of the heads differ")
    neurons = torch.arange(u.bias_a.shape[-1]) if attention_only else match_neurons(u, v, features)
    m = factor(u.query, v.query, v.key, u.key).mT
    n = factor(u.value, v.value, v.output.mT, u.output[..., features].mT)
    position = tau.argsort()
    return GroupElement(
        heads=tau[None], m=m[None, position], n=n[None, position], features=features[None], neurons=neurons[None]
    )


def check_conditions(u: BlockWeights, which: str, epsilon: float) -> None:
    """(b) full rank of the products, (c), (d) pairwise distinct W^(Q,i)·(W^(K,i))ᵀ."""
    for name, matrix in (("Q", u.query), ("K", u.key), ("V", u.value), ("O", u.output)):
        singular = torch.linalg.svdvals(matrix)
        full = singular[:, -1] > ROUNDINGS * max(matrix.shape[-2:]) * epsilon * singular[:, 0]
        if not bool(full.all()):
            head = int(full.logical_not().nonzero()[0])
            raise NoMatch(f"condition (b) fails: W^({name},{head}) of {which} is not of full rank")
    heads = len(u.query)
    for i in range(heads):
        for j in range(i):
            if bool(agree(u.query[i], u.key[i].mT, u.query[j], u.key[j].mT, epsilon).all()):
                letter = "c" if which == "the first" else "d"
                raise NoMatch(f"condition ({letter}) fails: heads {j} and {i} of {which} have the same W^(Q)·(W^(K))ᵀ")


def match_heads(u: BlockWeights, v: BlockWeights, epsilon: float) -> Tensor:
    """τ with Q·Kᵀ of v's head i equal to that of u's head τ(i)."""
    same = agree(u.query[None], u.key.mT[None], v.query[:, None], v.key.mT[:, None], epsilon).all(-1).all(-1)
    tau = assign(same)
    if tau is None:
        head = int(same.any(1).logical_not().nonzero()[0]) if not bool(same.any(1).all()) else 0
        raise NoMatch(f"no head of the first has the W^(Q)·(W^(K))ᵀ of head {head} of the second")
    return tau


def match_features(u: BlockWeights, v: BlockWeights, epsilon: float) -> Tensor:
    """π_O with column j of every V·O of v equal to column π_O(j) of that of u; heads are in the same order.

    Rows of W_A must then agree up to the order of the neurons, which tells columns apart that are equal by accident.
    """
    ours, theirs = u.value @ u.output, v.value @ v.output
    slack = ROUNDINGS * epsilon * (u.value.abs() @ u.output.abs())
    their_slack = ROUNDINGS * epsilon * (v.value.abs() @ v.output.abs())
    apart = (theirs[..., :, None] - ours[..., None, :]).abs() > their_slack[..., :, None] + slack[..., None, :]
    same = ~apart.any(0).any(0)
    if assign(same) is None:
        raise NoMatch("W^(V)·W^(O) of the heads differ, even with the output features permuted")
    rows_u, rows_v = u.weight_a.sort(dim=-1).values, v.weight_a.sort(dim=-1).values
    features = assign(same & (rows_v[:, None] == rows_u[None]).all(-1))
    if features is None:
        raise NoMatch("W_A differs by more than a permutation of its rows and columns that fits W^(V)·W^(O)")
    return features


def match_neurons(u: BlockWeights, v: BlockWeights, features: Tensor) -> Tensor:
    """π_A that carries columns of W_A, entries of b_A and rows of W_B of u to those of v, exactly."""
    if not torch.equal(u.bias_b, v.bias_b):
        raise NoMatch("b_B differs, and the group does not move it")
    ours = torch.cat([u.weight_a[features].mT, u.bias_a[:, None], u.weight_b], dim=1)
    theirs = torch.cat([v.weight_a.mT, v.bias_a[:, None], v.weight_b], dim=1)
    neurons = assign((theirs[:, None] == ours[None]).all(-1))
    if neurons is None:
        raise NoMatch("no permutation of the hidden neurons carries W_A, b_A and W_B along together")
    return neurons


def agree(
    left: Tensor, right: Tensor, other_left: Tensor, other_right: Tensor, epsilon: float
) -> Bool[Tensor, "*shape rows columns"]:
    """Where left·right and other_left·other_right differ by no more than roundings of the four factors explain.

    A relative error ε in each factor changes Σ_k a_k·b_k by at most 2ε·Σ_k |a_k|·|b_k|.
    """
    slack = left.abs() @ right.abs() + other_left.abs() @ other_right.abs()
    return (left @ right - other_left @ other_right).abs() <= ROUNDINGS * epsilon * slack


def assign(same: Bool[Tensor, "n n"]) -> Tensor | None:
    """p with same[i, p(i)] for all i, one to one, or None. Equality is transitive: the first free partner will do."""
    free = torch.ones(len(same), dtype=torch.bool)
    chosen = []
    for row in same:
        candidates = (row & free).nonzero()
        if len(candidates) == 0:
            return None
        chosen.append(int(candidates[0]))
        free[chosen[-1]] = False
    return torch.tensor(chosen)


def factor(
    ours: Float[Tensor, "h D r"],
    theirs: Float[Tensor, "h D r"],
    their_partner: Float[Tensor, "h D r"],
    our_partner: Float[Tensor, "h D r"],
) -> Float[Tensor, "h r r"]:
    """X with ours·X = theirs and, the product being the same, their_partner·Xᵀ = our_partner.

    Least squares on whichever of the two systems is better conditioned, for each head.
    """
    direct = torch.linalg.lstsq(ours, theirs).solution
    indirect = torch.linalg.lstsq(their_partner, our_partner).solution.mT
    better = torch.linalg.cond(ours) <= torch.linalg.cond(their_partner)
    return torch.where(better[:, None, None], direct, indirect)


def in_head_order(u: BlockWeights, tau: Tensor) -> BlockWeights:
    """The heads of u in the order τ(0), τ(1), …"""
    return BlockWeights(
        **vars(u)
        | {
            "query": u.query[tau],
            "key": u.key[tau],
            "value": u.value[tau],
            "output": u.output[tau],
        }
    )


def in_double(u: BlockWeights) -> BlockWeights:
    return u.map(lambda tensor: tensor.detach().double().cpu())
