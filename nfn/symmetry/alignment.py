"""The element of the whole group that brings one checkpoint closest to another one, without any data.

Both are brought to a balanced form, between these an isometry is searched for (``search.py``), by weights or by what
the two networks do on made-up inputs, and the element found may take some gradient steps on a loss.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from nfn.predictors.responses import synthetic_inputs, written_texts
from nfn.symmetry.canonical import UnitLayer
from nfn.symmetry.full_group import FullGroupElement, centered_basis
from nfn.symmetry.full_matching import match_weights
from nfn.symmetry.parts import check_parts
from nfn.symmetry.search import FROM_NAMES, IN_PLACE, Moments, Search, balancing_element
from zoo import TransformerWeights
from zoo.transformer.population import population_logits

_ALIKE = 1e-4  # relative difference of sizes of units, below which two checkpoints may be one function
_SILENT = 1.0  # size of what is written into a boundary, below which ε of the LayerNorm counts; balanced it has √D
_LEARNING_RATE = 3e-2  # of the steps on a loss
_BATCH = 16  # inputs of one step
_WRITERS = 8  # of a batch of language models, those that write texts


@dataclass(frozen=True)
class Alignment:
    """What ``align`` found. Distances are between balanced forms, so that no scale of a checkpoint changes them."""

    element: FullGroupElement
    weights: TransformerWeights  # the element's action: the same function, close to the reference
    before: Float[Tensor, "*batch"]
    after: Float[Tensor, "*batch"]


_Loss = Callable[[TransformerWeights], Float[Tensor, " b"]]
"""The losses of checkpoints [b, d] on some batch; the next call may take another one."""


def align(
    weights: TransformerWeights,
    reference: TransformerWeights,
    *,
    parts: Iterable[str] | None = None,
    features: bool = False,
    restarts: int = 0,
    inputs: Shaped[Tensor, "k t *numbers"] | None = None,
    loss: _Loss | None = None,
    steps: int = 100,
) -> Alignment:
    """Brings each checkpoint as close as possible to its reference, by the ``parts`` of the group, for None by all.

    Leading dimensions of the two are broadcast. Without ``rotations``, or another part, what it would move stays where
    it is. The search starts from what has names, and ``restarts`` times from random rotations; the closest result
    counts. Where that is farther than the checkpoint was, as for two that have one start, the search begins where it
    is, so that the result is never farther. A copy that the group has moved is brought back exactly.

    ``features`` allows the paper's π_O where ``rotations`` are not among the parts: permutations inside the blocks of a
    transformer without residual connections. With ``inputs``, such as ``made_up_inputs``, the two are compared by what
    they do on them, and the element takes ``steps`` of gradient descent in the middle of the straight line, where the
    answers are to be the mean of both; with a ``loss``, on that one. Then the distance is that of the result, whatever
    it is.
    """
    spec = weights.spec
    if reference.spec != spec:
        raise ValueError("only transformers of the same dimensions can be aligned: the two specs differ")
    if restarts < 0:
        raise ValueError(f"restarts are at least 0, got {restarts}")
    chosen = check_parts(spec, parts)
    batch = torch.broadcast_shapes(weights.batch_shape, reference.batch_shape)
    rows = (w.flat().double().expand(*batch, -1).reshape(-1, spec.num_parameters) for w in (weights, reference))
    first, second = (TransformerWeights.from_flat(spec, flat) for flat in rows)
    ours, theirs = balancing_element(first, chosen), balancing_element(second, chosen)
    u, v = ours.act(first), theirs.act(second)
    searched = (*chosen, *(("features",) if features else ()))
    if inputs is None:
        found, before, after = _closest(u, v, searched, restarts)
    else:
        found = Search(u, v, searched, moments=Moments.of(u, v, inputs)).run()
        before, after = _distance(u, v), _distance(found.act(u), v)
        loss = loss or _imitation(u, v, inputs)
    if loss is not None and steps:
        found = _refined(found, u, v, chosen, loss, steps)
        after = _distance(found.act(u), v)
    identity = FullGroupElement.identity(spec, (len(after),), device=after.device)
    kept = replace(identity, boundary_scales=_kept_scales(ours, theirs, after))
    element = theirs.inverse().compose(kept).compose(found).compose(ours)
    if loss is None and set(chosen) >= set(check_parts(spec, None)):
        for number in _perhaps_copies(u, v, after):
            match = match_weights(*(TransformerWeights.from_flat(spec, w.flat()[number]) for w in (first, second)))
            if match.element is not None:
                exact = match.element.map(lambda tensor: tensor.to(u.flat().device)[None])
                distance = _distance(theirs.act(exact.act(first)), v)
                closer = (torch.arange(len(after), device=after.device) == number) & (distance < after)
                element, after = _where(closer, exact, element), torch.where(closer, distance, after)
    element = element.map(lambda tensor: tensor.reshape((*batch, *tensor.shape[1:])))
    aligned = element.act(TransformerWeights.from_flat(spec, weights.flat(), check_finite=False))
    return Alignment(element, aligned, before.view(batch), after.view(batch))


def _kept_scales(ours: FullGroupElement, theirs: FullGroupElement, after: Float[Tensor, " b"]) -> Tensor:
    """How many times larger than its reference a checkpoint stays at each free boundary.

    What it writes is not brought below ``_SILENT``, or not at all if it is below already; else ε of the LayerNorm would
    change its function, as beside a reference that has collapsed. Copies follow their reference everywhere.
    """
    unit = sqrt(ours.spec.dim)  # the size of a balanced form
    least = (unit / ours.boundary_scales).clamp_max(_SILENT)
    scales = (least * theirs.boundary_scales / unit).clamp_min(1)
    return torch.where((after <= _ALIKE)[:, None], 1, scales)


@torch.no_grad()
def _closest(
    u: TransformerWeights, v: TransformerWeights, parts: Sequence[str], restarts: int
) -> tuple[FullGroupElement, Float[Tensor, " b"], Float[Tensor, " b"]]:
    """The isometry that brings balanced u close to balanced v, and their distances before and after it."""
    found = FullGroupElement.identity(u.spec, (len(u.flat()),), device=u.flat().device)
    before = _distance(u, v)
    after = torch.full_like(before, torch.inf)
    for start in (FROM_NAMES, *range(2, 2 + restarts), IN_PLACE):
        if start == IN_PLACE and bool((after < before).all()):
            break
        tried = Search(u, v, parts, start).run()
        distance = _distance(tried.act(u), v)
        if start == IN_PLACE:
            distance = torch.where(after < before, torch.inf, distance)
        found = _where(distance < after, tried, found)
        after = torch.minimum(distance, after)
    return found, before, after


def _refined(
    found: FullGroupElement, u: TransformerWeights, v: TransformerWeights, parts: Sequence[str], loss: _Loss, steps: int
) -> FullGroupElement:
    """The element after some steps of Adam on the mean loss between g·u and v.

    What moves is smooth: rotations B·exp(A − Aᵀ)·Bᵀ + 11ᵀ/D with B orthogonal to 1, M and N by matrix exponentials,
    scales of units by exponentials. The orders of heads and units stay.
    """
    spec, moved = u.spec, found.act(u)
    basis = centered_basis(spec.dim, u.flat().device)
    nothing = FullGroupElement.identity(spec, (len(u.flat()),), device=u.flat().device)
    smooth = {
        "rotations": ("rotations", basis.mT @ nothing.rotations @ basis),
        "query_key": ("m", nothing.m),
        "value_output": ("n", nothing.n),
        "unit_scales": ("unit_scales", nothing.unit_scales),
    }
    free = {name: torch.zeros_like(now, requires_grad=True) for part, (name, now) in smooth.items() if part in parts}
    if not free:
        return found

    def step_of(free: dict[str, Tensor]) -> FullGroupElement:
        fields = {name: torch.exp(free[name]) for name in ("unit_scales",) if name in free}
        fields |= {name: torch.matrix_exp(free[name]) for name in ("m", "n") if name in free}
        if "rotations" in free:
            turn = torch.matrix_exp(free["rotations"] - free["rotations"].mT)
            fields["rotations"] = basis @ turn @ basis.mT + 1 / spec.dim
        return replace(nothing, **fields)

    optimizer = torch.optim.Adam(free.values(), lr=_LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    with torch.enable_grad():
        for _ in range(steps):
            optimizer.zero_grad()
            loss(interpolate(step_of(free).act(moved), v, 0.5)).sum().backward()
            optimizer.step()
            schedule.step()
    return step_of({name: tensor.detach() for name, tensor in free.items()}).compose(found)


def _imitation(u: TransformerWeights, v: TransformerWeights, inputs: Shaped[Tensor, "k t *numbers"]) -> _Loss:
    """The cross entropy −Σ p·log q of answers q to some of the inputs, p the mean of the answers of u and v."""
    random = torch.Generator().manual_seed(0)

    def answers(weights: TransformerWeights, chosen: Tensor) -> Tensor:
        return population_logits(weights.spec, weights.flat().float(), inputs[chosen], None).log_softmax(-1)

    def loss(weights: TransformerWeights) -> Float[Tensor, " b"]:
        chosen = torch.randint(len(inputs), (_BATCH,), generator=random).to(inputs.device)
        with torch.no_grad():
            both = (answers(u, chosen).exp() + answers(v, chosen).exp()) / 2
        return -(both * answers(weights, chosen)).sum(-1).flatten(1).mean(1)

    return loss


def made_up_inputs(weights: TransformerWeights, count: int = 128, seed: int = 0) -> Shaped[Tensor, "k t *numbers"]:
    """Inputs to compare checkpoints on where there are no data, on the device of the weights.

    Language models write texts together. For all other transformers they are the first of Response-NFN's inputs.
    """
    spec, flat = weights.spec, weights.flat().detach()
    if not spec.causal:
        return synthetic_inputs(spec)[:count].to(flat.device)
    writers = flat.reshape(-1, spec.num_parameters)[:_WRITERS].float()
    return written_texts(TransformerWeights.from_flat(spec, writers), count, spec.tokens, seed)


def _distance(u: TransformerWeights, v: TransformerWeights) -> Float[Tensor, " b"]:
    return torch.linalg.vector_norm(u.flat() - v.flat(), dim=-1)


def _perhaps_copies(u: TransformerWeights, v: TransformerWeights, after: Float[Tensor, " b"]) -> list[int]:
    """The pairs that may be one function by symmetry though the search has stopped short: units have the same sizes."""
    alike = after > _ALIKE
    for prefix in u.spec.unit_layers:
        layers = (UnitLayer.named(w, prefix) for w in (u, v))
        ours, theirs = ((layer.reading() * layer.writing()).sort().values for layer in layers)
        alike &= (ours - theirs).norm(dim=-1) <= _ALIKE * theirs.norm(dim=-1)
    return alike.nonzero()[:, 0].tolist()


def interpolate(
    first: TransformerWeights, second: TransformerWeights, share: Float[Tensor, "*batch"] | float
) -> TransformerWeights:
    """The straight line (1 − t)·first + t·second. Align the two first, or a barrier of symmetry lies between them."""
    if first.spec != second.spec:
        raise ValueError("only transformers of the same dimensions can be interpolated: the two specs differ")
    t = torch.as_tensor(share, dtype=first.flat().dtype, device=first.flat().device)[..., None]
    return TransformerWeights.from_flat(first.spec, (1 - t) * first.flat() + t * second.flat(), check_finite=False)


def merge(
    members: Sequence[TransformerWeights],
    *,
    parts: Iterable[str] | None = None,
    inputs: Shaped[Tensor, "k t *numbers"] | None = None,
    passes: int = 3,
) -> TransformerWeights:
    """The mean of checkpoints that are aligned with one another, with ``inputs`` by what they do on them.

    All are aligned with the first; then, in some more passes, each with the mean of the others.
    """
    if not members:
        raise ValueError("there is nothing to merge: name at least one checkpoint")
    spec, brought = members[0].spec, partial(align, parts=check_parts(members[0].spec, parts), inputs=inputs)
    aligned = [members[0], *(brought(member, members[0]).weights for member in members[1:])]
    for _ in range(passes if len(members) > 2 else 0):
        for number, member in enumerate(aligned):
            others = torch.stack([other.flat() for place, other in enumerate(aligned) if place != number]).mean(0)
            aligned[number] = brought(member, TransformerWeights.from_flat(spec, others)).weights
    return TransformerWeights.from_flat(spec, torch.stack([member.flat() for member in aligned]).mean(0))


def _where(condition: Tensor, one: FullGroupElement, other: FullGroupElement) -> FullGroupElement:
    """Each of a batch from one element or the other."""
    tensors = {
        name: torch.where(condition[(..., *(None,) * (tensor.ndim - 1))], tensor, other.tensors()[name])
        for name, tensor in one.tensors().items()
    }
    return replace(other, **tensors)
