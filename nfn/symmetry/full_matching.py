"""Are two checkpoints the same function by the whole symmetry group? If so, by which element?

The search goes from the input on, where the basis is known. Everything is centered first. Then

    c     at each boundary is the ratio of the sizes of what the two checkpoints write into it
    R     carries what the first writes to what the second writes, by least squares (Procrustes); units and heads, once
          they are matched, add what they read, so that directions hardly written into are settled too
    π, λ  match units by their readings (R·row_j, bias_j)/ρ_j and their sizes
    τ     matches heads by W_Qᵀ W_K and W_O W_V as seen from what is written, which needs no basis
    M, N  follow from W_Q, W_K and W_V, W_O by least squares

and the shifts are what remains. Residual connections leave neither c nor R to be found: every boundary has the basis
and the scale of the input.

The element found is then checked: the answer is yes only if it carries every unit and the products of every head of the
first to those of the second, up to rounding. So a yes cannot be wrong, but a no can, where weights are so
ill-conditioned that rounding hides the element, or where fewer than D − 1 directions are written into a boundary, so
that what is read from the others keeps units from being matched. What adds nothing to the function is not compared:
units that write nothing, and M and N along directions that the products of a head do not have. Where these leave M or N
open it is the identity.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nfn.symmetry.canonical import DEAD_BOUNDARY, UnitLayer, closest_orthogonal, pulled_back
from nfn.symmetry.full_group import FullGroupElement
from nfn.symmetry.paper_matching import Match, NoMatch, assign, factor, in_head_order, match_pair
from nfn.symmetry.parts import centered, shift_component
from zoo import BlockWeights, TransformerWeights

_TOLERANCE = 1e3
"""How many roundings of its dtype a unit or a head may be off: it passes through R, which is estimated."""
_REFINEMENTS = 2
_LARGEST_CONDITION = 1e10

_Pair = tuple[Tensor, Tensor]
"""The same tensor of the first checkpoint and of the second."""
_Rotate = Callable[[list[_Pair]], Tensor]


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
    element = _align(centered(first), centered(second))
    rest = second.flat() - element.act(first).flat()
    shifts = shift_component(TransformerWeights.from_flat(u.spec, rest, check_finite=False))
    element = replace(element, shifts=shifts)
    _check_agreement(element.act(first), second, _TOLERANCE * epsilon)
    return element.map(lambda tensor: tensor[0])


def _align(u: TransformerWeights, v: TransformerWeights) -> FullGroupElement:
    """The best candidate for centered weights, without shifts."""
    spec = u.spec
    known = torch.eye(spec.dim, dtype=torch.float64)[None]
    written: _Pair = (known, known)
    rotate, rescale = _procrustes, _ratio
    if spec.residual:  # basis and scale are pinned at every boundary
        rotate, rescale = lambda pairs: known, lambda above, below: torch.ones_like(above)
    found: dict[str, list[Tensor]] = {
        name: [] for name in ("rotations", "boundary_scales", "heads", "m", "n", "units", "unit_scales")
    }
    for block in range(spec.blocks):
        ours, theirs = u.blocks[block], v.blocks[block]
        heads = _match_heads(written, ours, theirs)
        ours = in_head_order(ours.select(0, 0), heads).map(lambda tensor: tensor[None])
        if block > 0:
            rotation = rotate([written, *zip(_pulled(written[0], ours), _pulled(written[1], theirs), strict=True)])
            found["rotations"].append(rotation)
            turned = {name: rotation[:, None] @ getattr(ours, name) for name in ("query", "key", "value")}
            ours = replace(ours, **turned)
        # What each head writes for each coordinate of what it reads, a basis that both checkpoints share by now.
        values = [(attention.value @ attention.output).flatten(1, 2).mT for attention in (ours, theirs)]
        scale = rescale(torch.linalg.matrix_norm(values[1]), torch.linalg.matrix_norm(values[0]))
        layers = UnitLayer.named(u, f"blocks.{block}"), UnitLayer.named(v, f"blocks.{block}")
        rotation, units, unit_scales = _align_units(rotate, (_unit_size(values[0]), _unit_size(values[1])), *layers)
        ours = replace(ours, output=scale * ours.output @ rotation[:, None].mT)
        m = factor(ours.query[0], theirs.query[0], theirs.key[0], ours.key[0]).mT
        n = factor(ours.value[0], theirs.value[0], theirs.output[0].mT, ours.output[0].mT)
        found["heads"].append(heads)
        found["m"].append(_invertible(m)[heads.argsort()])
        found["n"].append(_invertible(n)[heads.argsort()])
        found["units"].append(units)
        found["unit_scales"].append(unit_scales)
        found["rotations"].append(rotation)
        found["boundary_scales"] += [scale, rescale(layers[1].size(), layers[0].size())]
        if not spec.residual:
            written = (
                _unit_size(layers[0].written_in_unit_size(units)),
                _unit_size(layers[1].written_in_unit_size()),
            )
    layers = UnitLayer.named(u, "classifier"), UnitLayer.named(v, "classifier")
    rotation, units, unit_scales = _align_units(rotate, written, *layers)
    found["rotations"].append(rotation)
    joined = {
        name: torch.cat(tensors)[None] if name in ("rotations", "boundary_scales") else torch.stack(tensors)[None]
        for name, tensors in found.items()
    }
    return replace(
        FullGroupElement.identity(spec, (1,)),
        classifier_units=units[None],
        classifier_unit_scales=unit_scales[None],
        **joined,
    )


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


def _align_units(
    rotate: _Rotate, written: _Pair, ours: UnitLayer, theirs: UnitLayer
) -> tuple[Float[Tensor, "1 D D"], Int[Tensor, " units"], Float[Tensor, " units"]]:
    """R of the boundary that units read from, their π, and their λ by old unit."""
    sizes = [(layer.reading() * layer.writing() * _inverse(layer.size()))[0, :, None] for layer in (ours, theirs)]
    our_reading, their_reading = (
        torch.cat([layer.rows, layer.bias[..., None]], dim=-1)[0] * _inverse(layer.reading())[0, :, None]
        for layer in (ours, theirs)
    )
    rotation = rotate([written])
    units = torch.arange(len(our_reading))
    for _ in range(_REFINEMENTS):
        turned = torch.cat([our_reading[:, :-1] @ rotation[0].mT, our_reading[:, -1:]], dim=-1)
        units = assign(torch.cdist(their_reading, turned) + torch.cdist(sizes[1], sizes[0]))
        rows = ((our_reading * sizes[0])[units, :-1].mT[None], (their_reading * sizes[1])[:, :-1].mT[None])
        rotation = rotate([written, rows])
    scales = _ratio(theirs.reading()[0], ours.reading()[0, units])
    return rotation, units, scales[units.argsort()]


def _procrustes(pairs: list[_Pair]) -> Float[Tensor, "1 D D"]:
    """R with R1 = 1 that carries the first of each pair of vectors [1, D, n] close to the second.

    With A = UΣVᵀ the first and B = RA the second, BAᵀ = R·UΣ²Uᵀ gives R by least squares, and B·(UVᵀ)ᵀ = R·UΣUᵀ gives
    the same R, but resolves directions of small σ to σ instead of σ². A pair counts for its size, at most for 1.
    """
    first, second = (
        torch.cat([x / (1 + torch.linalg.matrix_norm(x)) for x in group], dim=-1) for group in zip(*pairs, strict=True)
    )
    u, _, vt = torch.linalg.svd(first, full_matrices=False)
    return closest_orthogonal(second @ vt.mT @ u.mT + 1 / first.shape[-2])


def _check_agreement(moved: TransformerWeights, wanted: TransformerWeights, tolerance: float) -> None:
    """Raises ``NoMatch`` for the first unit, head or tensor that differs by more than rounding explains.

    Sizes are those of the weights as they are, with their shifts, since that is what was rounded.
    """
    spec = wanted.spec
    for name in (name for name in spec.tensors if name.startswith("embedding.")):
        size = torch.linalg.vector_norm(wanted[name])
        if not torch.linalg.vector_norm(moved[name] - wanted[name]) <= tolerance * size:
            raise NoMatch(f"{name} differs by more than a shift")
    pairs = zip(centered(moved).blocks, centered(wanted).blocks, wanted.blocks, strict=True)
    for block, (ours, theirs, raw) in enumerate(pairs):
        for letters, left, right in (("W_Qᵀ·W_K", "query", "key"), ("W_O·W_V", "value", "output")):
            products = [
                getattr(w, left) @ (getattr(w, right).mT if right == "key" else getattr(w, right))
                for w in (ours, theirs)
            ]
            size = torch.linalg.matrix_norm(getattr(raw, left)) * torch.linalg.matrix_norm(getattr(raw, right))
            apart = torch.linalg.matrix_norm(products[0] - products[1]) > tolerance * size.amax(-1)
            if bool(apart.any()):
                raise NoMatch(f"block {block}: {letters} of head {int(apart[0].int().argmax())} has no partner")
        _check_units(moved, wanted, f"blocks.{block}", f"block {block}", tolerance)
    _check_units(moved, wanted, "classifier", "classifier", tolerance)


def _check_units(
    moved: TransformerWeights, wanted: TransformerWeights, prefix: str, where: str, tolerance: float
) -> None:
    """The same for the units of one layer. An error in a row is weighed by what the unit writes."""
    ours, theirs, seen = (UnitLayer.named(w, prefix) for w in (moved, wanted, centered(wanted)))
    rows = torch.cat([ours.rows - theirs.rows, (ours.bias - theirs.bias)[..., None]], dim=-1)
    row_errors = torch.linalg.vector_norm(rows, dim=-1) * seen.writing()
    column_errors = torch.linalg.vector_norm(ours.columns - theirs.columns, dim=-2) * seen.reading()
    allowed = tolerance * (theirs.reading() * theirs.writing()).amax(-1)
    apart = ~(torch.maximum(row_errors, column_errors) <= allowed[:, None])
    if bool(apart.any()):
        raise NoMatch(f"{where}: unit {int(apart[0].int().argmax())} has no partner")
    bias = torch.linalg.vector_norm(ours.out_bias - theirs.out_bias, dim=-1)
    if not bool((bias <= allowed + tolerance * torch.linalg.vector_norm(theirs.out_bias, dim=-1)).all()):
        raise NoMatch(f"{where}: the bias of what it writes differs")


def _invertible(matrices: Float[Tensor, "h r r"]) -> Float[Tensor, "h r r"]:
    """The identity instead of matrices that are singular in practice."""
    good = matrices.isfinite().all(-1).all(-1)
    safe = torch.where(good[:, None, None], matrices, 0)
    good &= torch.linalg.cond(safe) <= _LARGEST_CONDITION
    return torch.where(good[:, None, None], matrices, torch.eye(matrices.shape[-1], dtype=matrices.dtype))


def _unit_size(x: Float[Tensor, "1 D n"]) -> Float[Tensor, "1 D n"]:
    """x / ‖x‖; zero, which is anything below ``DEAD_BOUNDARY``, becomes zero."""
    return x * _inverse(torch.linalg.vector_norm(x))


def _inverse(size: Tensor) -> Tensor:
    """1 / size, and 0 where nothing but rounding is left."""
    return torch.where(size > DEAD_BOUNDARY, 1 / torch.where(size > 0, size, 1), 0)


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    """above / below, and 1 where either is no more than rounding: a scale has to be positive."""
    good = (above > DEAD_BOUNDARY) & (below > DEAD_BOUNDARY)
    return torch.where(good, above / torch.where(good, below, 1), 1)
