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
_REFINEMENTS, _ROUNDED_COPIES = 2, 8
_LARGEST_CONDITION = 1e10

_Vectors = Float[Tensor, "1 D n"]
_Pair = tuple[Tensor, Tensor]
"""The same tensor of the first checkpoint and of the second."""


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
    element = _align(first, second, _TOLERANCE * epsilon)
    rest = second.flat() - element.act(first).flat()
    shifts = shift_component(TransformerWeights.from_flat(u.spec, rest, check_finite=False))
    element = replace(element, shifts=shifts)
    _check_agreement(element, first, second, epsilon)
    nothing = FullGroupElement.identity(u.spec, (1,))
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

    def vectors(w: TransformerWeights) -> _Vectors:
        heads = (attention_of(w, prefix) for prefix in owners(boundary.writers, "output.weight"))
        units = (UnitLayer.named(w, prefix) for prefix in owners(boundary.writers, "fc2.weight"))
        written = [(attention.value @ attention.output).flatten(1, 2).mT for attention in heads]
        return torch.cat([*written, *(layer.written_in_unit_size() for layer in units)], dim=-1)

    return _equally_sure(vectors(ours), vectors(theirs), *(torch.linalg.vector_norm(vectors(w), dim=-2) for w in raw))


def _pulled(written: _Vectors, attention: BlockWeights) -> tuple[Tensor, Tensor, Tensor]:
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
    element: FullGroupElement, first: TransformerWeights, second: TransformerWeights, epsilon: float
) -> None:
    """Raises ``NoMatch`` for the first filter, head or unit of g·u and v that differs by more than rounding explains.

    What rounding explains is measured on copies of u and of v, with their shifts, whose weights are off by up to ε.
    """
    generator = torch.Generator().manual_seed(0)

    def with_copies(w: TransformerWeights) -> TransformerWeights:
        noise = 2 * torch.rand(_ROUNDED_COPIES, w.spec.num_parameters, generator=generator, dtype=torch.float64) - 1
        flat = torch.cat([w.flat(), w.flat() * (1 + epsilon * noise)])
        return TransformerWeights.from_flat(w.spec, flat, check_finite=False)

    ours, theirs = _compared(element.act(with_copies(first))), _compared(with_copies(second))
    for reason, *pair in zip(ours, ours.values(), theirs.values(), strict=True):
        error = torch.linalg.vector_norm(pair[0][0] - pair[1][0], dim=-1)
        size = torch.maximum(*(torch.linalg.vector_norm(x[0], dim=-1) for x in pair))
        rounding = torch.maximum(*(torch.linalg.vector_norm(x[1:] - x[0], dim=-1).amax(0) for x in pair))
        apart = (torch.minimum(error, size) > _TOLERANCE * rounding).flatten(1).any(-1)
        if bool(apart.any()):
            raise NoMatch(reason.format(int(apart.int().argmax())))


def _compared(weights: TransformerWeights) -> dict[str, Float[Tensor, "b items parts numbers"]]:
    """What two checkpoints have in common if one is the other: the reason if an item differs, and its numbers.

    Of a unit these are its row and bias times the size of its column, and its column times the size of those. The last
    layer is compared class by class: no rotation mixes the classes.
    """
    spec, compared = weights.spec, {}
    for name in (name for name in spec.tensors if name.startswith(("embedding.", "positions.", "unembedding."))):
        # filters of a convolution, or the vectors of tokens and positions; their shift is the same for all of them
        vectors = weights[name].flatten(2) if weights[name].ndim > 2 else weights[name][..., None]
        apart = vectors - vectors.median(1, keepdim=True).values
        compared[f"{name} differs by more than a shift"] = apart[:, :, None]
    weights = centered(weights)
    for number, block in enumerate(weights.blocks):
        products = {"W_Qᵀ·W_K": block.query @ block.key.mT, "W_O·W_V": block.value @ block.output}
        for letters, product in products.items():
            compared[f"block {number}: {letters} of head {{}} has no partner"] = product.flatten(2)[:, :, None]
    for prefix in spec.unit_layers:
        layer, parts = UnitLayer.named(weights, prefix), spec.classes if prefix == "classifier" else 1
        where = prefix.replace("blocks.", "block ")
        columns = layer.columns.mT.unflatten(-1, (parts, -1))
        rows = torch.cat([layer.rows, layer.bias[..., None]], dim=-1)[:, :, None]
        sizes = [torch.linalg.vector_norm(x, dim=-1, keepdim=True) for x in (rows, columns)]
        compared[f"{where}: unit {{}} has no partner"] = torch.cat([rows * sizes[1], columns * sizes[0]], dim=-1)
        compared[f"{where}: the bias of what it writes differs"] = layer.out_bias.unflatten(-1, (parts, 1, -1))
    return compared


def _invertible(matrices: Float[Tensor, "*batch r r"]) -> Float[Tensor, "*batch r r"]:
    """The identity instead of matrices that are singular in practice."""
    good = matrices.isfinite().all(-1).all(-1)[..., None, None]
    safe = torch.where(good, matrices, 0)
    good &= (torch.linalg.cond(safe) <= _LARGEST_CONDITION)[..., None, None]
    return torch.where(good, matrices, torch.eye(matrices.shape[-1], dtype=matrices.dtype))


def _equally_sure(ours: _Vectors, theirs: _Vectors, our_raw: Tensor, their_raw: Tensor) -> _Pair:
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
