"""The isometry of the group that brings one balanced checkpoint close to another: by their weights, or by what they do.

In the *balanced form* every part of the group that is not an isometry is fixed: shifts are zero, ReLU units have
‖(row_j, bias_j)‖ = ‖column_j‖, each pair W_Q, W_K and W_V, W_O has equal Gram matrices, and what is written into a free
boundary has size √D. So the distance between two balanced checkpoints does not depend on how either was moved before.

By weights, ``Search`` maximizes

    J(g) = ⟨g·u, v⟩, the largest where ‖g·u − v‖ is the smallest,

in turn, each time exactly, until nothing moves:

    R       of a boundary: the closest orthogonal matrix to Σ vᵀ·u over all that writes into it and reads from it
    τ, M, N of a block: head i of v takes head s of u for ‖Q_sᵀQ_i + K_sᵀK_i‖_* + ‖V_sᵀV_i + O_s·O_iᵀ‖_*, nuclear
            norms, which the closest orthogonal matrices reach; an assignment problem over the heads
    π       of a layer of units: an assignment problem over the inner products of (row, bias, column)

Names come before everything: tokens, positions and classes are the same in both checkpoints, and so is a pinned basis.
What has no partner yet counts as zero, so the first pass goes from what is known along the network.

J counts every weight alike, whether an input ever meets it or not. What two networks do on the same inputs weighs them
by use. With x and y the LayerNorm rows of u and v before the same reader, ``Moments`` has C = mean of y·xᵀ; R is
the closest orthogonal matrix to the sum of C over a boundary's readers, heads are compared through C instead of R
(C·Q_s instead of R·Q_s), and units by the correlation of their activations. That needs one pass and no start.
Directions that no input reaches stay open: no answer depends on them.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn import functional as F

from nfn.symmetry.canonical import DEAD_BOUNDARY, Factor, UnitLayer, attention_of, closest_orthogonal, written_size
from nfn.symmetry.full_group import FullGroupElement
from nfn.symmetry.group import pick
from nfn.symmetry.parts import boundaries, free_boundaries, owners, shift_component
from zoo import TransformerSpec, TransformerWeights
from zoo.transformer.population import Step, population_logits

FROM_NAMES, IN_PLACE = 0, 1  # how a search starts; later ones start from random rotations
_PASSES = 100
_STILL = 1e-6  # the largest change of a rotation in a pass that counts as none
_UNKNOWN = 1e-7  # of the largest singular value: in directions that have less, R is open and counts as zero
_HARDLY = 1e-6  # what weights count for where networks are compared by what they do
_RIDGE = 1e-12  # of a Gram matrix, relative to its trace: a head of lower rank still has a balanced form
_SMALLEST, _ROUNDING = 1e-30, 1e-12
_OF_HEADS = {"heads", "query_key", "value_output"}


def balancing_element(weights: TransformerWeights, parts: Sequence[str]) -> FullGroupElement:
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
        fields["m"] = _balance(encoder.query, encoder.key).mT
    if "value_output" in parts:
        fields["n"] = _balance(encoder.value, encoder.output.mT)
    linear = replace(nothing, **fields)
    # L(w − s) = L(w) − L(s): what acts on the shift alone is its image
    image = linear.act(TransformerWeights.from_flat(spec, shift, check_finite=False)).flat()
    return replace(linear, shifts=-image)


def _unit_scales(layer: UnitLayer) -> Float[Tensor, "b units"]:
    """√(‖column_j‖/‖(row_j, bias_j)‖). What is silent counts as rounding of its layer's largest, zero or not."""
    sizes = (layer.reading(), layer.writing())
    least = (_ROUNDING * size.amax(-1, keepdim=True) + _SMALLEST for size in sizes)
    reading, writing = map(torch.maximum, sizes, least)
    return (writing / reading).sqrt()


def _balance(left: Factor, right: Factor) -> Float[Tensor, "*batch r r"]:
    """X with XᵀLᵀL·X = X⁻¹RᵀR·X⁻ᵀ. In two steps, since LᵀL has the squared condition number of L."""

    def gram(x: Tensor) -> Tensor:
        product = x.mT @ x
        trace = product.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
        return product + (_RIDGE * trace + _SMALLEST) * torch.eye(product.shape[-1]).to(product)

    def symmetric(left: Factor, right: Factor) -> Tensor:
        """X² is the geometric mean of (LᵀL)⁻¹ and RᵀR."""
        root, inverse = _power(gram(left), 0.5), _power(gram(left), -0.5)
        return _power(inverse @ _power(root @ gram(right) @ root, 0.5) @ inverse, 0.5)

    first = symmetric(left, right)
    return first @ symmetric(left @ first, torch.linalg.solve(first, right.mT).mT)


def _power(matrix: Float[Tensor, "*batch r r"], exponent: float) -> Float[Tensor, "*batch r r"]:
    """A power of a symmetric positive matrix."""
    values, vectors = torch.linalg.eigh((matrix + matrix.mT) / 2)
    least = (values[..., -1:] * 1e-15).clamp_min(_SMALLEST)
    return (vectors * values.clamp_min(least).pow(exponent)[..., None, :]) @ vectors.mT


class Moments(NamedTuple):
    """What two checkpoints have in common on the same inputs, each of a batch of pairs."""

    rows: dict[str, Float[Tensor, "b D D"]]
    """Name of a reader → mean of y·xᵀ over the rows that it reads."""
    units: dict[str, Float[Tensor, "b units units"]]
    """Prefix of a layer of units → the correlation of every unit of v with every unit of u."""

    @staticmethod
    @torch.no_grad()
    def of(u: TransformerWeights, v: TransformerWeights, inputs: Shaped[Tensor, "k t *numbers"]) -> "Moments":
        spec, moments = u.spec, Moments({}, {})
        readers = [f"blocks.{block}.{name}.weight" for block in range(spec.blocks) for name in ("query", "fc1")]
        readers.append("unembedding.weight" if spec.causal else "classifier.fc1.weight")
        steps: tuple[list[Step], list[Step]] = ([], [])
        for weights, taken in zip((u, v), steps, strict=True):
            population_logits(spec, weights.flat(), inputs, None, steps=taken)
        for name, *both in zip(readers, *steps, strict=True):
            pooled = name.startswith("classifier.")
            rows = [step.rows.mean(-2) if pooled else step.rows.flatten(1, 2) for step in both]
            moments.rows[name] = rows[1].mT @ rows[0] / rows[0].shape[1]
            for prefix in owners([name], "fc1.weight"):
                layers = (UnitLayer.named(w, prefix) for w in (u, v))
                active = [F.relu(x @ w.rows.mT + w.bias[:, None]) for x, w in zip(rows, layers, strict=True)]
                # centered and of norm 1; zero for a unit that is always the same
                ours, theirs = (F.normalize(x - x.mean(1, keepdim=True), dim=1) for x in active)
                moments.units[prefix] = theirs.mT @ ours
        return moments


class Search:
    """The isometry that brings u [b, d] close to v; both are balanced. With ``moments`` by these, else by weights."""

    def __init__(
        self,
        u: TransformerWeights,
        v: TransformerWeights,
        parts: Sequence[str],
        start: int = FROM_NAMES,
        moments: Moments | None = None,
    ) -> None:
        self.spec: TransformerSpec = u.spec
        self.u, self.v, self.parts, self.moments = u, v, parts, moments
        self.count, self.boundaries = len(u.flat()), boundaries(u.spec)
        self.found = FullGroupElement.identity(u.spec, (self.count,), device=u.flat().device).map(torch.clone)
        # u as the heads and units found so far have it; what waits for a partner is zero
        self.now = TransformerWeights.from_flat(u.spec, u.flat().clone(), check_finite=False)
        eye = torch.eye(u.spec.dim).to(u.flat()).expand(self.count, -1, -1)
        self.rotations = [eye] * len(self.boundaries)
        self.from_names = start == FROM_NAMES
        if start == IN_PLACE or moments is not None:
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
        places, by_weights = range(len(self.boundaries)), self.moments is None
        for place in () if by_weights else places:
            self._settle(place)
        before = None
        for number in range(_PASSES if by_weights else 1):
            for place in places:
                if by_weights and (number > 0 or (self.from_names and "rotations" in self.parts)):
                    self._settle(place)
                for prefix in owners(self.boundaries[place].readers, "query.weight"):
                    self._match_heads(prefix, place)
                for prefix in owners(self.boundaries[place].readers, "fc1.weight") if "units" in self.parts else ():
                    self._match_units(prefix, place)
            orders = (self.found.heads, self.found.units, self.found.classifier_units)
            now = torch.cat([part.flatten().to(self.u.flat()) for part in (*self.rotations, *orders)])
            if before is not None and float((now - before).abs().max()) <= _STILL:
                break
            before = now
        turns = zip(self.rotations, self.boundaries, strict=True)
        free = [closest_orthogonal(turn) for turn, each in turns if not each.pinned]
        return replace(self.found, rotations=torch.stack(free, dim=1)) if free else self.found

    def _settle(self, place: int) -> None:
        """R of one boundary, the closest to ``_products``; as a permutation, where attention alone writes into it."""
        boundary = self.boundaries[place]
        if "rotations" in self.parts and not boundary.pinned:
            self.rotations[place] = closest_orthogonal(self._products(place) + 1, open_below=_UNKNOWN)
        elif "features" in self.parts and all(name.endswith("output.weight") for name in boundary.writers):
            order = _assignments(self._products(place))
            self.rotations[place] = torch.eye(self.spec.dim).to(self.u.flat())[order]

    def _products(self, place: int) -> Float[Tensor, "b D D"]:
        """Σ v·uᵀ over everything that writes into a boundary and reads from it, or over the rows that are read."""
        boundary, total = self.boundaries[place], torch.zeros_like(self.rotations[place])
        if self.moments is not None:
            return sum((self.moments.rows[name] for name in boundary.readers if name in self.moments.rows), total)
        for name, axis in {**boundary.writers, **dict.fromkeys(boundary.readers, -1)}.items():
            ours, theirs = (w[name].movedim(axis, 1).reshape(self.count, self.spec.dim, -1) for w in (self.now, self.v))
            total = total + theirs @ ours.mT
        return total

    def _match_heads(self, prefix: str, place: int) -> None:
        """The heads of a block that reads from this boundary, with M and N."""
        number = int(prefix.removeprefix("blocks."))
        rows = None if self.moments is None else self.moments.rows[f"{prefix}.query.weight"]
        into = (self.rotations[place] if rows is None else rows)[:, None]
        out = self.rotations[self._written_at(f"{prefix}.output.weight")][:, None]
        ours, theirs, now = (attention_of(w, prefix) for w in (self.u, self.v, self.now))
        # of each pair of factors: what turns it, then the factor in u, in v, and in u as found so far
        query_key = [(into, *(getattr(w, name) for w in (ours, theirs, now))) for name in ("query", "key")]
        value_output = [(into, ours.value, theirs.value, now.value), (out, *(w.output.mT for w in (ours, theirs, now)))]
        # [b, head of v, head of u, r, r]
        products = [
            (turn @ x).mT[:, None] @ y[:, :, None] + (other_turn @ p).mT[:, None] @ q[:, :, None]
            for (turn, x, y, _), (other_turn, p, q, _) in (query_key, value_output)
        ]
        free = ["query_key" in self.parts, "value_output" in self.parts]
        gains = [
            torch.linalg.svdvals(product).sum(-1) if turn else product.diagonal(dim1=-2, dim2=-1).sum(-1)
            for product, turn in zip(products, free, strict=True)
        ]
        heads = torch.arange(self.spec.heads, device=into.device).expand(self.count, -1)
        if "heads" in self.parts:
            heads = _assignments(gains[0] + gains[1])
        self.found.heads[:, number] = heads
        for name, pair, product, turn in zip("mn", (query_key, value_output), products, free, strict=True):
            chosen = pick(product, heads[..., None], -3)[:, :, 0]
            basis = closest_orthogonal(chosen) if turn else torch.eye(chosen.shape[-1]).to(chosen).expand_as(chosen)
            in_old_order = pick(basis, heads.argsort(dim=-1), -3)
            getattr(self.found, name)[:, number] = in_old_order.mT if name == "m" else in_old_order
            for _, factor, _, found in pair:
                found.copy_(pick(factor, heads, -3) @ basis)

    def _match_units(self, prefix: str, place: int) -> None:
        """The order of the units of a layer that reads from this boundary."""
        ours, theirs, now = (UnitLayer.named(w, prefix) for w in (self.u, self.v, self.now))
        columns = ours.columns
        if prefix != "classifier":
            columns = self.rotations[self._written_at(f"{prefix}.fc2.weight")] @ columns
        gains = theirs.rows @ (ours.rows @ self.rotations[place].mT).mT
        gains = gains + theirs.bias[..., None] * ours.bias[:, None] + theirs.columns.mT @ columns
        if self.moments is not None:  # weights decide among units that no input has made active
            largest = gains.abs().flatten(1).amax(1).clamp_min(_SMALLEST)[:, None, None]
            gains = self.moments.units[prefix] + _HARDLY * gains / largest
        units = _assignments(gains)
        if prefix == "classifier":
            self.found.classifier_units[:] = units
        else:
            self.found.units[:, int(prefix.removeprefix("blocks."))] = units
        now.copy_units(ours, units)

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
