"""Are two transformers the same by symmetry? Finds the group element that carries one to the other, or why not.

By thm:multihead_equality two sets of attention weights, under its conditions (a) to (d), define the same multi-head
map exactly when some τ, M and N carry one to the other, and then

    τ  is read off the matrices W^(Q,s)·(W^(K,s))ᵀ, which are the same up to the order of the heads,
    M  solves W^(Q,τ(i))·Mᵀ = W̄^(Q,i) or W̄^(K,i)·M = W^(K,τ(i)), whichever is better conditioned (rank factorization),
    N  solves W^(V,τ(i))·N = W̄^(V,i) or N·W̄^(O,i) = W^(O,τ(i)).

(The theorem prints W̄^(V,i) where it means W̄^(V,τ(i)).) For a whole block, W^(V,s)·W^(O,s) may in addition have its
columns permuted by π_O, and the MLP's neurons by π_A; permutations move numbers without changing them, so there
equality is exact.

Weights are compared as rounded numbers: two products are the same if they differ by no more than a few
roundings of each factor can explain, entry by entry. All arithmetic is in float64. Before a match is returned, both
transformers are run: they have to give the same logits on random inputs.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt
from typing import Generic, TypeVar

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from nfn.layers.terms import ATTENTION
from nfn.predictors.probes import ProbeNFN
from nfn.symmetry.canonical import Factor
from nfn.symmetry.full_group import FullGroupElement
from nfn.symmetry.group import GroupElement
from nfn.symmetry.parts import available_parts
from zoo import BlockWeights, TransformerWeights

# How many roundings of its dtype each weight may have gone through: one on storage, some in whatever applied M and N.
# Of 4,800 heads of moved checkpoints whose factors differ a thousandfold in size, four needed more than 4, one 5.3.
_ROUNDINGS = 16
# How many times what one rounding moves two functions may be apart, as a share of the logits at most.
_FUNCTION_ROUNDINGS, _FUNCTION_SHARE = 30, 1e-2
_INPUTS, _ROUNDED_COPIES = 6, 2
_Element = TypeVar("_Element")
_Search = Callable[[TransformerWeights, TransformerWeights, float], _Element]


@dataclass(frozen=True)
class Match(Generic[_Element]):
    """The element g with g·u = v, or the reason why there is none."""

    element: _Element | None
    reason: str | None

    def __bool__(self) -> bool:
        return self.element is not None


class NoMatch(Exception):
    """A condition that fails; its text is the reason a ``Match`` gives."""


def match_pair(u: TransformerWeights, v: TransformerWeights, search: _Search[_Element]) -> Match[_Element]:
    """The result of ``search`` for two single checkpoints and their rounding error ε, or why it raised ``NoMatch``.

    Refuses anything but two single checkpoints of finite weights and the same dimensions.
    """
    if u.spec != v.spec:
        raise ValueError("only transformers of the same dimensions can be compared: the two specs differ")
    for weights in (u, v):
        if weights.batch_shape:
            raise ValueError(
                f"two single checkpoints are compared, got a batch of shape {tuple(weights.batch_shape)}: "
                "compare its rows one at a time"
            )
        TransformerWeights.from_flat(weights.spec, weights.flat())
    try:
        return Match(search(u, v, max(torch.finfo(weights.flat().dtype).eps for weights in (u, v))), None)
    except NoMatch as failure:
        return Match(None, str(failure))


def find_group_element(u: TransformerWeights, v: TransformerWeights) -> GroupElement | None:
    """The g with g·u = v, or None: are these the same by symmetry? ``match_paper_group`` also gives the reason."""
    return match_paper_group(u, v).element


def match_paper_group(
    u: TransformerWeights, v: TransformerWeights, *, attention_only: bool = False
) -> Match[GroupElement]:
    """Compares two single checkpoints, block by block.

    With ``attention_only`` only the multi-head attentions are compared, which is the theorem itself: no permutation of
    features or neurons is searched for, and those of the element are the identity. Residual transformers have no
    permutation of features at all.
    """
    return match_pair(u, v, lambda u, v, epsilon: _search(u, v, epsilon, attention_only))


def _search(u: TransformerWeights, v: TransformerWeights, epsilon: float, attention_only: bool) -> GroupElement:
    """The element, or ``NoMatch``."""
    if (width := max(u.spec.key_dim, u.spec.value_dim)) > u.spec.dim:
        raise NoMatch(f"condition (a) fails: max(D_k, D_v) ≤ D, got {width} > {u.spec.dim}")
    for name in () if attention_only else u.spec.tensors:
        if not name.startswith("blocks.") and not torch.equal(u[name].double(), v[name].double()):
            raise NoMatch(f"{name} differs, and the group does not move it")
    blocks = []
    for index, (u_block, v_block) in enumerate(zip(u.blocks, v.blocks, strict=True)):
        try:
            pair = _in_double(u_block), _in_double(v_block)
            blocks.append(_match_block(*pair, epsilon, attention_only, u.spec.residual))
        except NoMatch as failure:
            raise NoMatch(f"block {index}: {failure}") from None
    factors = zip(*(block.tensors().values() for block in blocks), strict=True)
    element = GroupElement(*map(torch.cat, factors))
    moved, wanted = element.act_on_blocks(_in_double(u.encoder)), _in_double(v.encoder)
    for name in ATTENTION:
        target = getattr(wanted, name)
        errors = torch.linalg.matrix_norm(getattr(moved, name) - target) / torch.linalg.matrix_norm(target)
        if (error := float(errors.max())) > sqrt(epsilon):
            raise NoMatch(f"the products agree, but {name} comes out wrong by {error:.1e}: too ill-conditioned to tell")
    if attention_only:
        v = u.with_encoder(replace(u.encoder, **{name: getattr(v.encoder, name) for name in ATTENTION}))
    check_function(u, v, epsilon)
    return element


@torch.no_grad()
def check_function(u: TransformerWeights, v: TransformerWeights, epsilon: float) -> None:
    """Raises ``NoMatch`` unless both transformers, run in float64 on fixed random inputs, give the same logits.

    Those of a language model are compared without their mean, which no probability depends on.

    What rounding explains is measured: each is moved by random elements of the group, its weights are rounded to a
    relative error of ε, and the logits may differ by a few times as much. Where that is a large share of the logits,
    the functions cannot be told apart.
    """
    spec, generator = u.spec, torch.Generator().manual_seed(0)
    both = torch.stack([w.flat().detach().double().cpu().flatten() for w in (u, v)])
    parts = {"query_key", "value_output", "rotations"} & set(available_parts(spec))
    elements = FullGroupElement.sample(spec, (_ROUNDED_COPIES, 1), generator=generator, parts=parts)
    moved = elements.act(TransformerWeights.from_flat(spec, both)).flat()
    moved = moved * (1 + epsilon * (2 * torch.rand(moved.shape, generator=generator, dtype=moved.dtype) - 1))
    rows = torch.cat([both[None], moved])
    logits = ProbeNFN(spec, probes=_INPUTS, width=1).double().answers(rows.flatten(0, 1)).unflatten(0, rows.shape[:2])
    logits = logits - logits.mean(-1, keepdim=True) if spec.causal else logits
    rounding = torch.linalg.vector_norm(logits[1:] - logits[0], dim=-2).amax((0, 1))
    error = torch.linalg.vector_norm(logits[0, 1] - logits[0, 0], dim=-2)
    size = torch.linalg.vector_norm(logits[0] - (logits[0].mean(-1, keepdim=True) if spec.classes > 1 else 0))
    if not bool((error <= (_FUNCTION_ROUNDINGS * rounding).clamp_max(_FUNCTION_SHARE * size)).all()):
        raise NoMatch(f"the functions differ: logits of size {size:.1e} by up to {error.max():.1e}")


def _match_block(
    u: BlockWeights, v: BlockWeights, epsilon: float, attention_only: bool, residual: bool
) -> GroupElement:
    """The element of one block (with a block dimension of length one), or ``NoMatch``."""
    _check_conditions(u, "the first", epsilon)
    _check_conditions(v, "the second", epsilon)
    tau = _match_heads(u, v, epsilon)
    u = in_head_order(u, tau)
    in_place = attention_only or residual
    features = torch.arange(u.query.shape[-2]) if in_place else _match_features(u, v, epsilon)
    if not bool(_agree(u.value, u.output[..., features], v.value, v.output, epsilon).all()):
        raise NoMatch("W^(V)·W^(O) of the heads differ")
    neurons = torch.arange(u.bias_a.shape[-1]) if attention_only else _match_neurons(u, v, features)
    m = factor(u.query, v.query, v.key, u.key).mT
    n = factor(u.value, v.value, v.output.mT, u.output[..., features].mT)
    position = tau.argsort()
    return GroupElement(
        heads=tau[None], m=m[None, position], n=n[None, position], features=features[None], neurons=neurons[None]
    )


def _check_conditions(u: BlockWeights, which: str, epsilon: float) -> None:
    """(b) full rank of the products, (c), (d) pairwise distinct W^(Q,i)·(W^(K,i))ᵀ."""
    for name, matrix in (("Q", u.query), ("K", u.key), ("V", u.value), ("O", u.output)):
        singular = torch.linalg.svdvals(matrix)
        full = singular[:, -1] > _ROUNDINGS * max(matrix.shape[-2:]) * epsilon * singular[:, 0]
        if not bool(full.all()):
            head = int(full.logical_not().nonzero()[0])
            raise NoMatch(f"condition (b) fails: W^({name},{head}) of {which} is not of full rank")
    heads = len(u.query)
    for i in range(heads):
        for j in range(i):
            if bool(_agree(u.query[i], u.key[i].mT, u.query[j], u.key[j].mT, epsilon).all()):
                letter = "c" if which == "the first" else "d"
                raise NoMatch(f"condition ({letter}) fails: heads {j} and {i} of {which} have the same W^(Q)·(W^(K))ᵀ")


def _match_heads(u: BlockWeights, v: BlockWeights, epsilon: float) -> Tensor:
    """τ with Q·Kᵀ of v's head i equal to that of u's head τ(i)."""
    same = _agree(u.query[None], u.key.mT[None], v.query[:, None], v.key.mT[:, None], epsilon).all(-1).all(-1)
    head = int(same.any(1).int().argmin())  # the first without a partner
    return _assign_same(same, f"no head of the first has the W^(Q)·(W^(K))ᵀ of head {head} of the second")


def _match_features(u: BlockWeights, v: BlockWeights, epsilon: float) -> Tensor:
    """π_O with column j of every V·O of v equal to column π_O(j) of that of u; heads are in the same order.

    Rows of W_A must then agree up to the order of the neurons, which distinguishes columns that are equal by accident.
    """
    ours, theirs = u.output.mT[:, None, ..., None], v.output.mT[:, :, None, :, None]  # columns of u by those of v
    same = _agree(u.value[:, None, None], ours, v.value[:, None, None], theirs, epsilon).flatten(3).all(-1).all(0)
    _assign_same(same, "W^(V)·W^(O) of the heads differ, even with the output features permuted")
    rows_u, rows_v = u.weight_a.sort(dim=-1).values, v.weight_a.sort(dim=-1).values
    reason = "W_A differs by more than a permutation of its rows and columns that fits W^(V)·W^(O)"
    return _assign_same(same & (rows_v[:, None] == rows_u[None]).all(-1), reason)


def _match_neurons(u: BlockWeights, v: BlockWeights, features: Tensor) -> Tensor:
    """π_A that carries columns of W_A, entries of b_A and rows of W_B of u to those of v, exactly."""
    if not torch.equal(u.bias_b, v.bias_b):
        raise NoMatch("b_B differs, and the group does not move it")
    ours = torch.cat([u.weight_a[features].mT, u.bias_a[:, None], u.weight_b], dim=1)
    theirs = torch.cat([v.weight_a.mT, v.bias_a[:, None], v.weight_b], dim=1)
    reason = "no permutation of the hidden neurons carries W_A, b_A and W_B along together"
    return _assign_same((theirs[:, None] == ours[None]).all(-1), reason)


def _agree(
    left: Tensor, right: Tensor, other_left: Tensor, other_right: Tensor, epsilon: float
) -> Bool[Tensor, "*shape rows columns"]:
    """Where left·right and other_left·other_right differ by no more than roundings of the four factors explain.

    A relative error ε in each factor changes Σ_k a_k·b_k by at most 2ε·Σ_k |a_k|·|b_k|.
    """
    slack = left.abs() @ right.abs() + other_left.abs() @ other_right.abs()
    return (left @ right - other_left @ other_right).abs() <= _ROUNDINGS * epsilon * slack


def _assign_same(same: Bool[Tensor, "n n"], reason: str) -> Int[Tensor, " n"]:
    """p with same[i, p(i)] for all i, one to one, or ``NoMatch``. Equality is transitive: any free partner will do."""
    chosen = assign(~same)
    if not bool(same.gather(1, chosen[:, None]).all()):
        raise NoMatch(reason)
    return chosen


def assign(unlike: Shaped[Tensor, "n n"]) -> Int[Tensor, " n"]:
    """p, one to one, with unlike[i, p(i)] small: the closest pair first, then the closest of the rest, and so on."""
    count = len(unlike)
    chosen, taken = [-1] * count, [False] * count
    for index in unlike.flatten().argsort(stable=True).tolist():
        row, column = divmod(index, count)
        if chosen[row] < 0 and not taken[column]:
            chosen[row], taken[column] = column, True
    return torch.tensor(chosen)


def factor(ours: Factor, theirs: Factor, their_partner: Factor, our_partner: Factor) -> Float[Tensor, "*batch r r"]:
    """X with ours·X = theirs and, the product being the same, their_partner·Xᵀ = our_partner.

    Least squares on whichever of the two systems is better conditioned, for each head.
    """
    direct = torch.linalg.lstsq(ours, theirs).solution
    indirect = torch.linalg.lstsq(their_partner, our_partner).solution.mT
    better = torch.linalg.cond(ours) <= torch.linalg.cond(their_partner)
    return torch.where(better[..., None, None], direct, indirect)


def in_head_order(u: BlockWeights, tau: Tensor) -> BlockWeights:
    """The heads of u in the order τ(0), τ(1), …"""
    return replace(u, **{name: getattr(u, name)[..., tau, :, :] for name in ATTENTION})


def _in_double(u: BlockWeights) -> BlockWeights:
    return u.map(lambda tensor: tensor.detach().double().cpu())
