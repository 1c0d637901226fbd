"""Are two checkpoints the same function by the whole symmetry group? If so, by which element?

The search goes from boundary to boundary, from the input on. Everything is centered first. Then

    c     at each boundary is the ratio of the sizes of what the two checkpoints write into it
    τ     matches heads by W_Qᵀ W_K and W_O W_V as seen from what is written, which needs no basis
    R     carries what the first writes to what the second writes, by least squares (Procrustes); units and heads, once
          they are matched, add what they read, so that directions hardly written into are settled too
    π, λ  match units by their readings (R·row_j, bias_j)/ρ_j, in directions where R is known by then, and their sizes
    M, N  follow from W_Q, W_K and W_V, W_O by least squares

and the shifts are what remains. What is written has names first: a pinned basis, learned tokens and positions. Heads
and units that are matched write from then on.

The element found is then checked twice: it carries every filter, every unit and the products of every head of the
first to those of the second, each up to its own rounding, and both transformers give the same logits on random inputs,
the scales c aside. So a yes cannot be wrong by more than rounding: weights that are small beside their shift, 1e-6
beside a shift of 1 in float32, are not told from zero. A no can be wrong where weights are so ill-conditioned that
rounding hides the element or moves the logits, or where less than ``DEAD_BOUNDARY`` is written into a boundary. What
adds nothing to the function is not compared: units that write nothing, and M and N along directions that the products
of a head do not have. Where these leave M or N open it is the identity.
"""

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nfn.symmetry.canonical import DEAD_BOUNDARY, UnitLayer, attention_of, closest_orthogonal, pulled_back, written_size
from nfn.symmetry.full_group import FullGroupElement
from nfn.symmetry.group import pick
from nfn.symmetry.paper_matching import Match, NoMatch, assign, check_function, factor, in_head_order, match_pair
from nfn.symmetry.parts import Boundary, boundaries, centered, free_boundaries, owners, shift_component
from zoo import BlockWeights, TransformerWeights

_TOLERANCE = 1e3
"""How many roundings of its dtype a unit or a head may be off: it passes through R, which is estimated."""
_REFINEMENTS = 2
_LARGEST_CONDITION = 1e10

_Pair = tuple[Tensor, Tensor]
"""The same tensor of the first checkpoint and of the second."""
_Rounded = tuple[TransformerWeights, TransformerWeights]
"""A checkpoint with its shifts, and without."""


def match_weights(u: TransformerWeights, v: TransformerWeights) -> Match[FullGroupElement]:
    """Compares two single checkpoints: the g with g·u = v as ``element``, or the ``reason`` why there is none.

    All parts of the group that leave the function alone are searched: not ``logits``, which changes the loss.
    """
    return match_pair(u, v, _search)


def _search(u: TransformerWeights, v: TransformerWeights, epsilon: float) -> FullGroupElement:
    """The element, or ``NoMatch``."""
    # A batch of one, as the functions of the canonical form expect.
    first, second = (
        TransformerWeights.from_flat(w.spec, w.flat().detach().double().cpu()[None], check_finite=False) for w in (u, v)
    )
    nothing, tolerance = FullGroupElement.identity(u.spec, (1,)), _TOLERANCE * epsilon
    element = _align(first, second, tolerance)
    rest = second.flat() - element.act(first).flat()
    shifts = shift_component(TransformerWeights.from_flat(u.spec, rest, check_finite=False))
    # The first with shifts, M and N of its own, but in the order and the scales of the second.
    unmoved = replace(element, m=nothing.m, n=nothing.n).act(first)
    element = replace(element, shifts=shifts)
    _check_agreement(element.act(first), second, unmoved, tolerance)
    rescale = replace(nothing, boundary_scales=1 / element.boundary_scales)
    check_function(first, rescale.act(second), epsilon)
    return element.map(lambda tensor: tensor[0])


def _align(first: TransformerWeights, second: TransformerWeights, tolerance: float) -> FullGroupElement:
    """The best candidate without shifts, from one boundary to the next.

    Along directions that have less than ``tolerance`` of what is written and read, R is open until units are matched.
    """
    spec, u, v = first.spec, centered(first), centered(second)
    found = FullGroupElement.identity(spec, (1,)).map(torch.clone)
    for place, boundary in enumerate(free_boundaries(spec)):
        found.boundary_scales[:, place] = _ratio(written_size(v, boundary), written_size(u, boundary))
    turns = iter(found.rotations.unbind(1))
    orders = (*found.units.unbind(1), found.classifier_units)
    scales = (*found.unit_scales.unbind(1), found.classifier_unit_scales)
    of_units = dict(zip(spec.unit_layers, zip(orders, scales, strict=True), strict=False))
    for boundary in boundaries(spec):
        now, raw = found.act(u), found.act(first)
        written = _written(boundary, now, v, raw, second)
        pairs, rows = [written], []
        for prefix in owners(boundary.readers, "query.weight"):
            ours, theirs = attention_of(now, prefix), attention_of(v, prefix)
            heads = _match_heads(written, ours, theirs)
            found.heads[0, int(prefix.removeprefix("blocks."))] = heads
            pairs += zip(_pulled(written[0], in_head_order(ours, heads)), _pulled(written[1], theirs), strict=True)
        if "unembedding.weight" in boundary.readers:
            pairs.append((now["unembedding.weight"].mT, v["unembedding.weight"].mT))
        readers = owners(boundary.readers, "fc1.weight")
        for _ in range(_REFINEMENTS if readers else 0):
            rotation, rows = closest_orthogonal(_products([*pairs, *rows]), open_below=tolerance), []
            for prefix in readers:
                layers = [UnitLayer.named(w, prefix) for w in (now, v, raw, second)]
                units = _match_units(rotation, *layers[:2])
                order, scale = of_units[prefix]
                order[0], scale[:, units] = units, _ratio(layers[1].reading(), layers[0].reading()[:, units], 0.0)
                ours, theirs = ((layer.rows * layer.writing()[..., None]).mT for layer in layers[:2])
                our_raw, their_raw = (layer.reading() * layer.writing() for layer in layers[2:])
                rows.append(_equally_sure(ours[..., units], theirs, our_raw[..., units], their_raw))
        if not boundary.pinned:
            next(turns).copy_(closest_orthogonal(_products([*pairs, *rows])))
    ours, theirs, by_old_head = found.act(u).encoder, v.encoder, found.heads.argsort(dim=-1)
    m = factor(ours.query, theirs.query, theirs.key, ours.key).mT
    n = factor(ours.value, theirs.value, theirs.output.mT, ours.output.mT)
    return replace(found, m=pick(_invertible(m), by_old_head, -3), n=pick(_invertible(n), by_old_head, -3))


def _written(
    boundary: Boundary, ours: TransformerWeights, theirs: TransformerWeights, *raw: TransformerWeights
) -> _Pair:
    """Vectors in pairs that the two write into a boundary; what also reads from it has no partner yet.

    Of attention, what each head writes for each coordinate of what it reads, a basis that both share by now.
    """
    if boundary.pinned:
        known = torch.eye(ours.spec.dim, dtype=torch.float64)[None]
        return known, known
    if names := boundary.named_writers:
        first, second = (torch.cat([w[name].mT for name in names], dim=-1) for w in (ours, theirs))
        return first, second

    def vectors(w: TransformerWeights) -> Float[Tensor, "1 D n"]:
        heads = (attention_of(w, prefix) for prefix in owners(boundary.writers, "output.weight"))
        units = (UnitLayer.named(w, prefix) for prefix in owners(boundary.writers, "fc2.weight"))
        written = [(attention.value @ attention.output).flatten(1, 2).mT for attention in heads]
        return torch.cat([*written, *(layer.written_in_unit_size() for layer in units)], dim=-1)

    return _equally_sure(vectors(ours), vectors(theirs), *(torch.linalg.vector_norm(vectors(w), dim=-2) for w in raw))


def _pulled(written: Float[Tensor, "1 D n"], attention: BlockWeights) -> tuple[Tensor, Tensor, Tensor]:
    """``pulled_back`` with the scale of what attention writes divided out."""
    size = torch.linalg.vector_norm(attention.value @ attention.output)
    return pulled_back(written, replace(attention, output=attention.output * _inverse(size)))


def _match_heads(written: _Pair, ours: BlockWeights, theirs: BlockWeights) -> Int[Tensor, " h"]:
    """τ: their head i is our head τ(i).

    WᵀW_Qᵀ W_K W and Wᵀ(W_O W_V)ᵀ(W_O W_V)W of what is written, W, depend on no basis.
    """

    def seen(w: Tensor, attention: BlockWeights) -> Float[Tensor, "h n"]:
        heads = attention.query.shape[1]
        return torch.cat(
            [(w.mT @ x).unflatten(-1, (heads, -1)).transpose(1, 2)[0].flatten(1) for x in _pulled(w, attention)], dim=-1
        )

    return assign(torch.cdist(seen(written[1], theirs), seen(written[0], ours)))


def _match_units(rotation: Float[Tensor, "1 D D"], ours: UnitLayer, theirs: UnitLayer) -> Int[Tensor, " units"]:
    """π: their unit i is our unit π(i), by their sizes and by what they read, where R is known, in unit size."""
    sizes = [(layer.reading() * layer.writing() * _inverse(layer.size()))[0, :, None] for layer in (ours, theirs)]
    our_reading, their_reading = (
        torch.cat([layer.rows @ turn, layer.bias[..., None]], dim=-1)[0] * _inverse(layer.reading(), 0.0)[0, :, None]
        for layer, turn in ((ours, rotation.mT), (theirs, rotation @ rotation.mT))
    )
    return assign(torch.cdist(their_reading, our_reading) + torch.cdist(sizes[1], sizes[0]))


def _products(pairs: list[_Pair]) -> Float[Tensor, "1 D D"]:
    """The matrix to which R with R1 = 1, that carries the first of each pair of vectors [1, D, n] to the second, is
    the closest orthogonal one (Procrustes).

    With A = UΣVᵀ the first and B = RA the second, BAᵀ = R·UΣ²Uᵀ gives R by least squares, and B·(UVᵀ)ᵀ = R·UΣUᵀ gives
    the same R, but resolves directions of small σ to σ instead of σ². A pair counts for its size, at most for 1.
    """
    first, second = (
        torch.cat([x / (1 + torch.linalg.matrix_norm(x)) for x in group], dim=-1) for group in zip(*pairs, strict=True)
    )
    u, _, vt = torch.linalg.svd(first, full_matrices=False)
    return second @ vt.mT @ u.mT + 1 / first.shape[-2]


def _check_agreement(
    moved: TransformerWeights, wanted: TransformerWeights, unmoved: TransformerWeights, tolerance: float
) -> None:
    """Raises ``NoMatch`` for the first filter, head or unit that differs by more than its own rounding explains.

    What was rounded are the weights as they are, with their shifts: ``wanted``, and the first in ``unmoved``.
    """
    rounded = [(w, centered(w)) for w in (unmoved, wanted)]
    for name in (name for name in wanted.spec.tensors if name.startswith(("embedding.", "positions.", "unembedding."))):
        # filters of a convolution, or the vectors of tokens and positions
        filters = [
            w[0].flatten(1) if w[0].ndim > 1 else w.mT
            for w in (moved[name] - wanted[name], unmoved[name], wanted[name])
        ]
        error, *sizes = (torch.linalg.vector_norm(x, dim=-1) for x in filters)
        size = torch.maximum(*sizes)
        # The shift is a mean over all of them, and has their rounding.
        if not bool((error <= tolerance * (size + size.mean() / 100)).all()):
            raise NoMatch(f"{name} differs by more than a shift")
    for block, (ours, theirs) in enumerate(zip(centered(moved).blocks, rounded[1][1].blocks, strict=True)):
        for letters, left, right in (("W_Qᵀ·W_K", "query", "key"), ("W_O·W_V", "value", "output")):
            products = [
                getattr(w, left) @ (getattr(w, right).mT if right == "key" else getattr(w, right))
                for w in (ours, theirs)
            ]
            sizes = [
                [torch.linalg.matrix_norm(getattr(w.blocks[block], name)) for w in pair for name in (left, right)]
                for pair in rounded
            ]
            apart = ~(torch.linalg.matrix_norm(products[0] - products[1]) <= _allowed(sizes, tolerance))
            if bool(apart.any()):
                raise NoMatch(f"block {block}: {letters} of head {int(apart[0].int().argmax())} has no partner")
        _check_units(moved, rounded, f"blocks.{block}", f"block {block}", tolerance)
    if not wanted.spec.causal:
        _check_units(moved, rounded, "classifier", "classifier", tolerance)


def _check_units(moved: TransformerWeights, rounded: list[_Rounded], prefix: str, where: str, tolerance: float) -> None:
    """The same for the units of one layer. An error in a row is weighed by what the unit writes, and vice versa.

    The last layer is compared class by class: no rotation mixes the classes.
    """

    def size(written: Float[Tensor, "1 out n"]) -> Float[Tensor, "1 _ n"]:
        return written.abs() if prefix == "classifier" else torch.linalg.vector_norm(written, dim=-2, keepdim=True)

    layers = [[UnitLayer.named(w, prefix) for w in pair] for pair in rounded]
    ours, (theirs, seen) = UnitLayer.named(moved, prefix), layers[1]
    sizes = [[x for layer in pair for x in (layer.reading()[:, None], size(layer.columns))] for pair in layers]
    allowed = _allowed(sizes, tolerance)
    rows = torch.cat([ours.rows - theirs.rows, (ours.bias - theirs.bias)[..., None]], dim=-1)
    row_errors = torch.linalg.vector_norm(rows, dim=-1)[:, None] * size(seen.columns)
    column_errors = size(ours.columns - theirs.columns) * seen.reading()[:, None]
    dead = torch.maximum(*(reading * writing for _, _, reading, writing in sizes)) <= allowed
    apart = ~(dead | (torch.maximum(row_errors, column_errors) <= allowed)).all(-2)
    if bool(apart.any()):
        raise NoMatch(f"{where}: unit {int(apart[0].int().argmax())} has no partner")
    biases = (ours.out_bias - theirs.out_bias, layers[0][0].out_bias, theirs.out_bias)
    error, *bias_sizes = (size(bias[..., None]) for bias in biases)
    if not bool((error <= tolerance * torch.maximum(*bias_sizes)).all()):
        raise NoMatch(f"{where}: the bias of what it writes differs")


def _allowed(sizes: list[list[Tensor]], tolerance: float) -> Tensor:
    """How far a product X·Y may be off in either checkpoint, from the sizes of X and Y with shifts and without.

    Each factor may be off by ``tolerance`` of its size with shifts; the other one counts without them.
    """
    first, second = (tolerance * (x_raw * y + x * y_raw + tolerance * x_raw * y_raw) for x_raw, y_raw, x, y in sizes)
    return torch.maximum(first, second)


def _invertible(matrices: Float[Tensor, "*batch r r"]) -> Float[Tensor, "*batch r r"]:
    """The identity instead of matrices that are singular in practice."""
    good = matrices.isfinite().all(-1).all(-1)[..., None, None]
    safe = torch.where(good, matrices, 0)
    good &= (torch.linalg.cond(safe) <= _LARGEST_CONDITION)[..., None, None]
    return torch.where(good, matrices, torch.eye(matrices.shape[-1], dtype=matrices.dtype))


def _equally_sure(
    ours: Float[Tensor, "1 D n"], theirs: Float[Tensor, "1 D n"], our_raw: Tensor, their_raw: Tensor
) -> _Pair:
    """Vectors in unit size times the share that they have of what was rounded, so that all have the same error."""
    sizes = [torch.linalg.vector_norm(x, dim=-2) for x in (ours, theirs)]
    share = torch.minimum(sizes[0] * _inverse(our_raw, 0.0), sizes[1] * _inverse(their_raw, 0.0))
    first, second = (
        x * (share * _inverse(size, 0.0))[..., None, :] for x, size in zip((ours, theirs), sizes, strict=True)
    )
    return first, second


def _inverse(size: Tensor, smallest: float = DEAD_BOUNDARY) -> Tensor:
    """1 / size, and 0 where nothing but rounding is left."""
    return torch.where(size > smallest, 1 / torch.where(size > 0, size, 1), 0)


def _ratio(above: Tensor, below: Tensor, smallest: float = DEAD_BOUNDARY) -> Tensor:
    """above / below, and 1 where either is no more than rounding: a scale has to be positive."""
    good = (above > smallest) & (below > smallest)
    return torch.where(good, above / torch.where(good, below, 1), 1)
