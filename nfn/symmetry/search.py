"""The isometry of the group that brings one balanced checkpoint close to another: by their weights, or by what they do.

By weights, ``search`` maximizes

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
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn import functional as F

from nfn.symmetry.canonical import UnitLayer, attention_of, closest_orthogonal
from nfn.symmetry.full_group import FullGroupElement
from nfn.symmetry.group import pick
from nfn.symmetry.parts import boundaries, owners
from zoo import TransformerSpec, TransformerWeights
from zoo.transformer.population import Step, population_logits

FROM_NAMES, IN_PLACE = 0, 1  # how a search starts; later ones start from random rotations
_PASSES = 100
_STILL = 1e-6  # the largest change of a rotation in a pass that counts as none
_UNKNOWN = 1e-7  # of the largest singular value: in directions that have less, R is open and counts as zero
_HARDLY = 1e-6  # what weights count for where networks are compared by what they do
_SMALLEST = 1e-30
_OF_HEADS = {"heads", "query_key", "value_output"}


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
            population_logits(spec, weights.flat(), inputs, None, dtype=weights.flat().dtype, steps=taken)
        for name, *both in zip(readers, *steps, strict=True):
            rows = [
                (step.rows.mean(-2) if name.startswith("classifier.") else step.rows.flatten(1, 2)) for step in both
            ]
            moments.rows[name] = rows[1].mT @ rows[0] / rows[0].shape[1]
            for prefix in owners([name], "fc1.weight"):
                layers = (UnitLayer.named(w, prefix) for w in (u, v))
                ours, theirs = (
                    _unit_columns(F.relu(x @ layer.rows.mT + layer.bias[:, None]))
                    for x, layer in zip(rows, layers, strict=True)
                )
                moments.units[prefix] = theirs.mT @ ours
        return moments


def _unit_columns(activations: Float[Tensor, "b n units"]) -> Float[Tensor, "b n units"]:
    """Centered and of norm 1; zero for a unit that is always the same."""
    return F.normalize(activations - activations.mean(1, keepdim=True), dim=1)


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
        if self.moments is not None:
            for place, boundary in enumerate(self.boundaries):
                if "rotations" in self.parts and not boundary.pinned:
                    self._turn(place)
                elif "features" in self.parts and self._is_inside(place):
                    self._permute(place)
            for place in range(len(self.boundaries)):
                self._match_readers(place)
            return self._result()
        before = None
        for number in range(_PASSES):
            turns = "rotations" in self.parts and (number > 0 or self.from_names)
            for place, boundary in enumerate(self.boundaries):
                if turns and not boundary.pinned:
                    self._turn(place)
                if "features" in self.parts and self._is_inside(place) and number > 0:
                    self._permute(place)
                self._match_readers(place)
            orders = (self.found.heads, self.found.units, self.found.classifier_units)
            now = torch.cat([part.flatten().to(self.u.flat()) for part in (*self.rotations, *orders)])
            if before is not None and float((now - before).abs().max()) <= _STILL:
                break
            before = now
        return self._result()

    def _match_readers(self, place: int) -> None:
        """Heads and units that read from a boundary."""
        readers = self.boundaries[place].readers
        for prefix in owners(readers, "query.weight"):
            self._match_heads(prefix, place)
        for prefix in owners(readers, "fc1.weight") if "units" in self.parts else ():
            self._match_units(prefix, place)

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
        if self.moments is not None:  # weights decide among units that no input has made active
            largest = gains.abs().flatten(1).amax(1).clamp_min(_SMALLEST)[:, None, None]
            gains = self.moments.units[prefix] + _HARDLY * gains / largest
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
