"""The element of the whole group that brings one checkpoint closest to another one, without any data.

Scales come first. A balanced form fixes the parts of the group that are not isometric: shifts are zero, ReLU units
have ‖(row_j, bias_j)‖ = ‖column_j‖, each pair W_Q, W_K and W_V, W_O has equal Gram matrices, and what is
written into a free boundary has size √D. What is left of the group are isometries, so that the distance between two
balanced checkpoints does not depend on how either was moved before. Over them

    J(g) = ⟨g·u, v⟩, the largest where ‖g·u − v‖ is the smallest,

is maximized in turn, each time exactly, until nothing moves:

    R       of a boundary: the closest orthogonal matrix to Σ vᵀ·u over all that writes into it and reads from it
    τ, M, N of a block: head i of v takes head s of u for ‖Q_sᵀQ_i + K_sᵀK_i‖_* + ‖V_sᵀV_i + O_s·O_iᵀ‖_*, nuclear
            norms, which the closest orthogonal matrices reach; an assignment problem over the heads
    π       of a layer of units: an assignment problem over the inner products of (row, bias, column)

Names come before everything: tokens, positions and classes are the same in both checkpoints, and so is a pinned basis.
What has no partner yet counts as zero, so the first pass goes from what is known along the network.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nfn.symmetry.canonical import DEAD_BOUNDARY, UnitLayer, attention_of, closest_orthogonal, written_size
from nfn.symmetry.full_group import FullGroupElement, centered_basis
from nfn.symmetry.full_matching import match_weights
from nfn.symmetry.group import pick
from nfn.symmetry.parts import boundaries, check_parts, free_boundaries, owners, shift_component
from zoo import TransformerSpec, TransformerWeights

_PASSES = 100
_STILL = 1e-6  # the largest change of a rotation in a pass that counts as none
_RIDGE = 1e-12  # of a Gram matrix, relative to its trace: a head of lower rank still has a balanced form
_UNKNOWN = 1e-7  # of the largest singular value: in directions that have less, R is open and counts as zero
_SMALLEST = 1e-30
_ALIKE = 1e-4  # relative difference of sizes of units, below which two checkpoints may be one function
_LEARNING_RATE = 1e-2  # of the steps on a loss
_FROM_NAMES, _IN_PLACE = 0, 1  # how a search starts; later ones start from random rotations
_OF_HEADS = {"heads", "query_key", "value_output"}


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
    loss: _Loss | None = None,
    steps: int = 100,
) -> Alignment:
    """Brings each checkpoint as close as possible to its reference, by the ``parts`` of the group, for None by all.

    Leading dimensions of the two are broadcast. Without ``rotations``, or another part, what it would move stays where
    it is. The search starts from what has names, and ``restarts`` times from random rotations; the closest result
    counts. Where that is farther than the checkpoint was, as for two that have one start, the search begins where it
    is, so that the result is never farther. A copy that the group has moved is brought back exactly.

    ``features`` allows the paper's π_O where ``rotations`` are not among the parts: permutations inside the blocks of a
    transformer without residual connections. With a ``loss`` the element found takes ``steps`` of gradient descent on
    the loss in the middle of the straight line; then the distance is that of its result, whatever it is.
    """
    spec = weights.spec
    if reference.spec != spec:
        raise ValueError("only transformers of the same dimensions can be aligned: the two specs differ")
    if restarts < 0:
        raise ValueError(f"restarts are at least 0, got {restarts}")
    chosen = check_parts(spec, parts)
    batch = torch.broadcast_shapes(weights.batch_shape, reference.batch_shape)
    first, second = (_flattened(w, batch) for w in (weights, reference))
    ours, theirs = _balanced(first, chosen), _balanced(second, chosen)
    u, v = ours.act(first), theirs.act(second)
    found, before, after = _closest(u, v, (*chosen, *(("features",) if features else ())), restarts)
    if loss is not None:
        found = _refined(found, u, v, chosen, loss, steps)
        after = _distance(found.act(u), v)
    element = theirs.inverse().compose(found).compose(ours)
    if loss is None and set(chosen) >= set(check_parts(spec, None)):
        for number in _perhaps_copies(u, v, after):
            match = match_weights(*(TransformerWeights.from_flat(spec, w.flat()[number]) for w in (first, second)))
            if match.element is not None:
                exact = match.element.map(lambda tensor: tensor.to(u.flat().device)[None])
                matched = torch.arange(len(after), device=after.device) == number
                element, after = _where(matched, exact, element), torch.where(matched, 0.0, after)
    element = element.map(lambda tensor: tensor.reshape((*batch, *tensor.shape[1:])))
    aligned = element.act(TransformerWeights.from_flat(spec, weights.flat(), check_finite=False))
    return Alignment(element, aligned, before.view(batch), after.view(batch))


@torch.no_grad()
def _closest(
    u: TransformerWeights, v: TransformerWeights, parts: Sequence[str], restarts: int
) -> tuple[FullGroupElement, Float[Tensor, " b"], Float[Tensor, " b"]]:
    """The isometry that brings balanced u close to balanced v, and their distances before and after it."""
    found = FullGroupElement.identity(u.spec, (len(u.flat()),), device=u.flat().device)
    before = _distance(u, v)
    after = torch.full_like(before, torch.inf)
    for start in (_FROM_NAMES, *range(2, 2 + restarts), _IN_PLACE):
        if start == _IN_PLACE and bool((after < before).all()):
            break
        tried = _Search(u, v, parts, start).run()
        distance = _distance(tried.act(u), v)
        if start == _IN_PLACE:
            distance = torch.where(after < before, torch.inf, distance)
        found = _where(distance < after, tried, found)
        after = torch.minimum(distance, after)
    return found, before, after


def _refined(
    found: FullGroupElement,
    u: TransformerWeights,
    v: TransformerWeights,
    parts: Sequence[str],
    loss: _Loss,
    steps: int,
) -> FullGroupElement:
    """The element after some steps of Adam on the mean loss between g·u and v.

    What moves is smooth: rotations B·exp(A − Aᵀ)·Bᵀ + 11ᵀ/D with B orthogonal to 1, M and N by matrix exponentials,
    scales of units by exponentials. The orders of heads and units stay.
    """
    spec, moved = u.spec, found.act(u)
    basis = centered_basis(spec.dim, u.flat().device)
    nothing = FullGroupElement.identity(spec, (len(u.flat()),), device=u.flat().device)
    shapes = {
        "rotations": (*nothing.rotations.shape[:-2], spec.dim - 1, spec.dim - 1),
        "m": nothing.m.shape,
        "n": nothing.n.shape,
        "unit_scales": nothing.unit_scales.shape,
    }
    named = {"rotations": "rotations", "m": "query_key", "n": "value_output", "unit_scales": "unit_scales"}
    free = {
        name: torch.zeros(shape, dtype=torch.float64, device=u.flat().device, requires_grad=True)
        for name, shape in shapes.items()
        if named[name] in parts
    }

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
    members: Sequence[TransformerWeights], *, parts: Iterable[str] | None = None, passes: int = 3
) -> TransformerWeights:
    """The mean of checkpoints that are aligned with one another.

    All are aligned with the first; then, in some more passes, each with the mean of the others.
    """
    if not members:
        raise ValueError("there is nothing to merge: name at least one checkpoint")
    spec, parts = members[0].spec, None if parts is None else tuple(parts)
    aligned = [members[0], *(align(member, members[0], parts=parts).weights for member in members[1:])]
    for _ in range(passes if len(members) > 2 else 0):
        for number, member in enumerate(aligned):
            others = torch.stack([other.flat() for place, other in enumerate(aligned) if place != number]).mean(0)
            aligned[number] = align(member, TransformerWeights.from_flat(spec, others), parts=parts).weights
    return TransformerWeights.from_flat(spec, torch.stack([member.flat() for member in aligned]).mean(0))


def _balanced(weights: TransformerWeights, parts: Sequence[str]) -> FullGroupElement:
    """The element of ``parts`` that takes each of a batch [b, d] to its balanced form."""
    spec = weights.spec
    nothing = FullGroupElement.identity(spec, tuple(weights.batch_shape), device=weights.flat().device)
    shift = shift_component(weights, [part for part in parts if "shifts" in part])
    now = TransformerWeights.from_flat(spec, weights.flat() - shift, check_finite=False)
    fields: dict[str, Tensor] = {}
    if "boundary_scales" in parts and (free := free_boundaries(spec)):
        sizes = torch.stack([written_size(now, boundary) for boundary in free], dim=-1)
        alive = sizes > DEAD_BOUNDARY
        fields["boundary_scales"] = torch.where(alive, sqrt(spec.dim) / torch.where(alive, sizes, 1), 1)
        now = replace(nothing, boundary_scales=fields["boundary_scales"]).act(now)
    if "unit_scales" in parts:
        scales = [_unit_scales(UnitLayer.named(now, prefix)) for prefix in spec.unit_layers]
        fields["unit_scales"] = torch.stack(scales[: spec.blocks], dim=1)
        if not spec.causal:
            fields["classifier_unit_scales"] = scales[-1]
    encoder = now.encoder
    if "query_key" in parts:
        fields["m"] = _balancing(encoder.query, encoder.key)
    if "value_output" in parts:
        fields["n"] = _balancing(encoder.value, encoder.output.mT)
    linear = replace(nothing, **fields)
    # L(w − s) = L(w) − L(s): what acts on the shift alone is its image
    image = linear.act(TransformerWeights.from_flat(spec, shift, check_finite=False)).flat()
    return replace(linear, shifts=-image)


def _unit_scales(layer: UnitLayer) -> Float[Tensor, "b units"]:
    """√(‖column_j‖/‖(row_j, bias_j)‖), and 1 for a unit that reads or writes nothing."""
    reading, writing = layer.reading(), layer.writing()
    alive = (reading > _SMALLEST) & (writing > _SMALLEST)
    return torch.where(alive, (writing / torch.where(alive, reading, 1)).sqrt(), 1)


def _balancing(left: Float[Tensor, "*batch D r"], right: Float[Tensor, "*batch D r"]) -> Float[Tensor, "*batch r r"]:
    """The symmetric X with X·LᵀL·X = X⁻¹·RᵀR·X⁻¹: X² is the geometric mean of (LᵀL)⁻¹ and RᵀR."""

    def gram(x: Tensor) -> Tensor:
        product = x.mT @ x
        trace = product.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
        return product + (_RIDGE * trace + _SMALLEST) * torch.eye(product.shape[-1]).to(product)

    root = _power(gram(left), 0.5)
    inverse = _power(gram(left), -0.5)
    return _power(inverse @ _power(root @ gram(right) @ root, 0.5) @ inverse, 0.5)


def _power(matrix: Float[Tensor, "*batch r r"], exponent: float) -> Float[Tensor, "*batch r r"]:
    """A power of a symmetric positive matrix."""
    values, vectors = torch.linalg.eigh((matrix + matrix.mT) / 2)
    least = (values[..., -1:] * 1e-15).clamp_min(_SMALLEST)
    return (vectors * values.clamp_min(least).pow(exponent)[..., None, :]) @ vectors.mT


class _Search:
    """The isometry that brings u [b, d] close to v; both are balanced."""

    def __init__(self, u: TransformerWeights, v: TransformerWeights, parts: Sequence[str], start: int) -> None:
        self.spec: TransformerSpec = u.spec
        self.u, self.v, self.parts = u, v, parts
        self.count, self.boundaries = len(u.flat()), boundaries(u.spec)
        self.found = FullGroupElement.identity(u.spec, (self.count,), device=u.flat().device).map(torch.clone)
        # u as the heads and units found so far have it; what waits for a partner is zero
        self.now = TransformerWeights.from_flat(u.spec, u.flat().clone(), check_finite=False)
        eye = torch.eye(u.spec.dim).to(u.flat()).expand(self.count, -1, -1)
        self.rotations = [eye] * len(self.boundaries)
        self.from_names = start == _FROM_NAMES
        if start == _IN_PLACE:
            return
        if "rotations" in parts:
            generator = torch.Generator().manual_seed(start)
            random = FullGroupElement.sample(u.spec, (self.count,), generator=generator, parts=["rotations"]).rotations
            free = iter((random.to(u.flat()) * (not self.from_names)).unbind(1))
            self.rotations = [eye if each.pinned else next(free) for each in self.boundaries]
        waiting = [".query.", ".key.", ".value.", ".output."] if _OF_HEADS & set(parts) else []
        waiting += [".fc1.", ".fc2.weight"] if "units" in parts else []
        for name in u.spec.tensors:
            if any(part in name for part in waiting):
                self.now[name].zero_()

    def run(self) -> FullGroupElement:
        before = None
        for number in range(_PASSES):
            turns = "rotations" in self.parts and (number > 0 or self.from_names)
            for place, boundary in enumerate(self.boundaries):
                if turns and not boundary.pinned:
                    self._turn(place)
                if "features" in self.parts and self._is_inside(place) and number > 0:
                    self._permute(place)
                for prefix in owners(boundary.readers, "query.weight"):
                    self._match_heads(prefix, place)
                for prefix in owners(boundary.readers, "fc1.weight") if "units" in self.parts else ():
                    self._match_units(prefix, place)
            orders = (self.found.heads, self.found.units, self.found.classifier_units)
            now = torch.cat([part.flatten().to(self.u.flat()) for part in (*self.rotations, *orders)])
            if before is not None and float((now - before).abs().max()) <= _STILL:
                break
            before = now
        return self._result()

    def _result(self) -> FullGroupElement:
        turns = zip(self.rotations, self.boundaries, strict=True)
        free = [closest_orthogonal(turn) for turn, each in turns if not each.pinned]
        return replace(self.found, rotations=torch.stack(free, dim=1)) if free else self.found

    def _is_inside(self, place: int) -> bool:
        """Whether attention writes into this boundary, and nothing else does."""
        return all(name.endswith("output.weight") for name in self.boundaries[place].writers)

    def _turn(self, place: int) -> None:
        """R of one boundary, the closest to ``_products``."""
        u, singular, vt = torch.linalg.svd(self._products(place) + 1)
        known = singular > _UNKNOWN * singular[:, :1]
        self.rotations[place] = (u * known[:, None, :]) @ vt

    def _permute(self, place: int) -> None:
        """R of one boundary as a permutation."""
        order = _assignments(self._products(place))
        self.rotations[place] = torch.eye(self.spec.dim).to(self.u.flat())[order]

    def _products(self, place: int) -> Float[Tensor, "b D D"]:
        """Σ v·uᵀ over everything that writes into a boundary and reads from it."""
        boundary, total = self.boundaries[place], torch.zeros_like(self.rotations[place])
        for name, axis in {**boundary.writers, **dict.fromkeys(boundary.readers, -1)}.items():
            ours, theirs = (w[name].movedim(axis, 1).reshape(self.count, self.spec.dim, -1) for w in (self.now, self.v))
            total = total + theirs @ ours.mT
        return total

    def _match_heads(self, prefix: str, place: int) -> None:
        """The heads of a block that reads from this boundary, with M and N."""
        number = int(prefix.removeprefix("blocks."))
        into = self.rotations[place][:, None]
        out = self.rotations[self._written_at(f"{prefix}.output.weight")][:, None]
        ours, theirs = attention_of(self.u, prefix), attention_of(self.v, prefix)
        query, key, value = (into @ tensor for tensor in (ours.query, ours.key, ours.value))
        output = ours.output @ out.mT
        pairs = (
            ((query, theirs.query), (key, theirs.key)),
            ((value, theirs.value), (output.mT, theirs.output.mT)),
        )
        # [b, head of v, head of u, r, r]
        products = [x.mT[:, None] @ y[:, :, None] + p.mT[:, None] @ q[:, :, None] for (x, y), (p, q) in pairs]
        free = ["query_key" in self.parts, "value_output" in self.parts]
        gains = [
            torch.linalg.svdvals(product).sum(-1) if turn else product.diagonal(dim1=-2, dim2=-1).sum(-1)
            for product, turn in zip(products, free, strict=True)
        ]
        heads = torch.arange(self.spec.heads, device=into.device).expand(self.count, -1)
        if "heads" in self.parts:
            heads = _assignments(gains[0] + gains[1])
        bases = []
        for product, turn in zip(products, free, strict=True):
            chosen = pick(product, heads[..., None], -3)[:, :, 0]
            identity = torch.eye(chosen.shape[-1]).to(chosen).expand_as(chosen)
            bases.append(closest_orthogonal(chosen) if turn else identity)
        position = heads.argsort(dim=-1)
        self.found.heads[:, number] = heads
        self.found.m[:, number] = pick(bases[0].mT, position, -3)
        self.found.n[:, number] = pick(bases[1], position, -3)
        now = attention_of(self.now, prefix)
        for name, tensor, basis in (
            ("query", ours.query, bases[0]),
            ("key", ours.key, bases[0]),
            ("value", ours.value, bases[1]),
        ):
            getattr(now, name).copy_(pick(tensor, heads, -3) @ basis)
        now.output.copy_(bases[1].mT @ pick(ours.output, heads, -3))

    def _match_units(self, prefix: str, place: int) -> None:
        """The order of the units of a layer that reads from this boundary."""
        ours, theirs, now = (UnitLayer.named(w, prefix) for w in (self.u, self.v, self.now))
        columns = ours.columns
        if prefix != "classifier":
            columns = self.rotations[self._written_at(f"{prefix}.fc2.weight")] @ columns
        gains = theirs.rows @ (ours.rows @ self.rotations[place].mT).mT
        gains = gains + theirs.bias[..., None] * ours.bias[:, None] + theirs.columns.mT @ columns
        units = _assignments(gains)
        if prefix == "classifier":
            self.found.classifier_units[:] = units
        else:
            self.found.units[:, int(prefix.removeprefix("blocks."))] = units
        now.rows.copy_(pick(ours.rows, units, -2))
        now.bias.copy_(pick(ours.bias, units, -1))
        now.columns.copy_(pick(ours.columns, units[..., None, :], -1))

    def _written_at(self, name: str) -> int:
        return next(place for place, boundary in enumerate(self.boundaries) if name in boundary.writers)


def _assignments(gains: Float[Tensor, "b n n"]) -> Tensor:
    """For each row its column, one to one, with the largest sum of gains."""
    try:
        from scipy.optimize import linear_sum_assignment
    except ModuleNotFoundError as error:
        raise ImportError("nfn.align needs scipy: pip install 'small-transformer-zoo[benchmarks]'") from error
    chosen = [linear_sum_assignment(matrix, maximize=True)[1] for matrix in gains.cpu().numpy()]
    return torch.from_numpy(np.stack(chosen)).to(gains.device)


def _flattened(weights: TransformerWeights, batch: torch.Size) -> TransformerWeights:
    flat = weights.flat().double().expand(*batch, weights.spec.num_parameters)
    return TransformerWeights.from_flat(weights.spec, flat.reshape(-1, weights.spec.num_parameters))


def _where(condition: Tensor, one: FullGroupElement, other: FullGroupElement) -> FullGroupElement:
    """Each of a batch from one element or the other."""
    tensors = {
        name: torch.where(condition[(..., *(None,) * (tensor.ndim - 1))], tensor, other.tensors()[name])
        for name, tensor in one.tensors().items()
    }
    return replace(other, **tensors)
