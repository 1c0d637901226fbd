"""The whole symmetry group of a transformer and its action on weights; ``parts.py`` lists its parts.

An element acts as an affine map, g·w = L(w) + s. L is the linear part. In torch's orientation, with R and c of the
boundary that a tensor writes into or reads from, and with Λ the diagonal of a layer's unit scales and P their order:

    query, key     Mᵀ and M⁻¹ of the head as in ``GroupElement``, then FRᵀ
    value, output  N and N⁻¹ likewise; value then FRᵀ, output c·RW
    fc1            PΛ·F·Rᵀ and PΛ·b
    fc2            c·R·W·(PΛ)⁻¹ and c·R·b; the classifier's c·W·(PΛ)⁻¹ and c·b
    embedding      c·RW, for tokens and positions c·E·Rᵀ and c·P·Rᵀ
    unembedding    c·U·Rᵀ

s is a shift (``shift_component``). L carries shifts to shifts, because R1 = 1, so that
(g∘h)·w = L_g L_h(w) + (L_g(s_h) + s_g).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import log, sqrt

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nfn.symmetry.group import Element, GroupElement, compose_factors, invert_factors, pick
from nfn.symmetry.parts import Part, check_parts, free_boundaries, shift_component
from zoo import TransformerSpec, TransformerWeights


@dataclass(frozen=True)
class FullGroupElement(Element):
    """One g of the whole group, with any leading dimensions.

    ``heads``, ``m`` and ``n`` are those of ``GroupElement``. New unit j is old unit ``units[j]`` times the scale of
    that old unit; a language model has no classifier and so none of its units. ``rotations`` and ``boundary_scales``
    are those of ``free_boundaries``, in order.
    """

    spec: TransformerSpec
    heads: Int[Tensor, "*batch blocks h"]
    m: Float[Tensor, "*batch blocks h D_k D_k"]
    n: Float[Tensor, "*batch blocks h D_v D_v"]
    units: Int[Tensor, "*batch blocks D_A"]
    unit_scales: Float[Tensor, "*batch blocks D_A"]
    classifier_units: Int[Tensor, "*batch units"]
    classifier_unit_scales: Float[Tensor, "*batch units"]
    rotations: Float[Tensor, "*batch boundaries D D"]
    boundary_scales: Float[Tensor, "*batch boundaries"]
    shifts: Float[Tensor, "*batch d"]
    logit_scale: Float[Tensor, "*batch"]

    @staticmethod
    def identity(
        spec: TransformerSpec, batch_shape: tuple[int, ...] = (), *, device: torch.device | str = "cpu"
    ) -> "FullGroupElement":
        """The g that moves nothing."""
        paper = GroupElement.identity(spec, batch_shape, device=device)

        def ones(*shape: int) -> Tensor:
            return torch.ones((), dtype=torch.float64, device=device).expand((*batch_shape, *shape))

        eye = torch.eye(spec.dim, dtype=torch.float64, device=device)
        free, units = len(free_boundaries(spec)), 0 if spec.causal else spec.dim
        return FullGroupElement(
            spec=spec,
            **_block_fields(paper),
            unit_scales=ones(spec.blocks, spec.hidden_dim),
            classifier_units=torch.arange(units, device=device).expand(*batch_shape, units),
            classifier_unit_scales=ones(units),
            rotations=eye.expand(*batch_shape, free, spec.dim, spec.dim),
            boundary_scales=ones(free),
            shifts=0 * ones(spec.num_parameters),
            logit_scale=ones(),
        )

    @staticmethod
    def sample(
        spec: TransformerSpec,
        batch_shape: tuple[int, ...] = (),
        *,
        generator: torch.Generator,
        parts: Iterable[str] | None = None,
        scale_range: float = 10.0,
    ) -> "FullGroupElement":
        """A random element, on the generator's device; what is not among ``parts`` stays the identity.

        For None these are all parts that leave the function alone. Permutations are uniform, M and N are those of
        ``GroupElement.sample``, rotations are uniform in O(D−1) with both signs of the determinant, shifts are standard
        normal, and all scales are log-uniform in [1/r, r] with r = ``scale_range``.
        """
        chosen = check_parts(spec, parts)
        if not scale_range >= 1:
            raise ValueError(f"scale_range must be a number of at least 1, got {scale_range!r}")
        paper = GroupElement.sample(spec, batch_shape, generator=generator)
        free, classifier_units = len(free_boundaries(spec)), 0 if spec.causal else spec.dim

        def uniform(*shape: int) -> Tensor:
            size = (*batch_shape, *shape)
            return torch.rand(size, generator=generator, device=generator.device, dtype=torch.float64)

        def scales(*shape: int) -> Tensor:
            return torch.exp((2 * uniform(*shape) - 1) * log(scale_range))

        everything: dict[Part, dict[str, Tensor]] = {
            "heads": {"heads": paper.heads},
            "query_key": {"m": paper.m},
            "value_output": {"n": paper.n},
            "units": {"units": paper.neurons, "classifier_units": uniform(classifier_units).argsort(dim=-1)},
            "unit_scales": {
                "unit_scales": scales(spec.blocks, spec.hidden_dim),
                "classifier_unit_scales": scales(classifier_units),
            },
            "rotations": {"rotations": _random_rotations((*batch_shape, free), spec.dim, generator)},
            "boundary_scales": {"boundary_scales": scales(free)},
            "logits": {"logit_scale": scales()},
        }
        normal = torch.randn(
            *batch_shape, spec.num_parameters, generator=generator, device=generator.device, dtype=torch.float64
        )
        # The mean of n normal numbers has size 1/√n; shifts of size 1 are large beside any weights.
        normal = TransformerWeights.from_flat(spec, normal * sqrt(spec.dim), check_finite=False)
        drawn = {name: tensor for part in chosen for name, tensor in everything.get(part, {}).items()}
        nothing = FullGroupElement.identity(spec, batch_shape, device=generator.device)
        return replace(nothing, shifts=shift_component(normal, chosen), **drawn)

    @staticmethod
    def from_paper(spec: TransformerSpec, element: GroupElement) -> "FullGroupElement":
        """An element of the paper's group; its permutations of features are rotations inside the blocks."""
        element.check_residual(spec)
        batch, device = tuple(element.heads.shape[:-2]), element.heads.device
        nothing = FullGroupElement.identity(spec, batch, device=device)
        rotations = nothing.rotations.clone()
        if not spec.residual:
            inside = ["blocks.0.output.weight" in boundary.writers for boundary in free_boundaries(spec)].index(True)
            features = torch.eye(spec.dim, dtype=torch.float64, device=device)[element.features]
            rotations[..., inside::2, :, :] = features
        return replace(nothing, rotations=rotations, **_block_fields(element))

    def act(self, weights: TransformerWeights) -> TransformerWeights:
        """g·w: a copy of the weights that computes the same function. Batches of g and of weights are broadcast.

        Computed in float64 and rounded once, to the weights' own dtype. The scales at boundaries keep the function up
        to ε of the LayerNorm, the part ``logits`` keeps no more than the accuracy.
        """
        if weights.spec != self.spec:
            raise ValueError(
                f"this element acts on {self.spec.task} transformers of the dimensions it was made for, "
                f"got other {weights.spec.task} transformers: sample it for weights.spec"
            )
        moved = self._linear(weights.flat()) + self.shifts
        return TransformerWeights.from_flat(self.spec, moved.to(weights.flat().dtype), check_finite=False)

    def compose(self, first: "FullGroupElement") -> "FullGroupElement":
        """self∘first: ``g.compose(h).act(w)`` is ``g.act(h.act(w))``."""
        if first.spec != self.spec:
            raise ValueError("these elements act on different transformers: sample both for the same spec")
        return replace(compose_factors(self, first), shifts=self._linear(first.shifts) + self.shifts)

    def inverse(self) -> "FullGroupElement":
        """The g⁻¹ with ``g.inverse().compose(g)`` the identity."""
        inverted = invert_factors(self)
        return replace(inverted, shifts=-inverted._linear(self.shifts))

    def _linear(self, flat: Float[Tensor, "*batch d"]) -> Float[Tensor, "*shape d"]:
        """L(w) in float64, for shifts too."""
        batch = torch.broadcast_shapes(flat.shape[:-1], self.logit_scale.shape)
        flat = flat.double().expand(*batch, self.spec.num_parameters)
        old = TransformerWeights.from_flat(self.spec, flat, check_finite=False)
        nothing = GroupElement.identity(self.spec, tuple(self.heads.shape[:-2]), device=self.heads.device)
        heads = replace(nothing, heads=self.heads, m=self.m, n=self.n)
        state = old.with_encoder(heads.act_on_blocks(old.encoder)).state_dict()
        orders = (*self.units.unbind(-2), self.classifier_units)
        scales = (*self.unit_scales.unbind(-2), self.classifier_unit_scales)
        for prefix, order, scale in zip(self.spec.unit_layers, orders, scales, strict=False):
            row, bias, column = (f"{prefix}.{name}" for name in ("fc1.weight", "fc1.bias", "fc2.weight"))
            scale = pick(scale, order, -1)
            state[row] = pick(state[row], order, -2) * scale[..., None]
            state[bias] = pick(state[bias], order, -1) * scale
            state[column] = pick(state[column], order[..., None, :], -1) / scale[..., None, :]
        turns = zip(self.rotations.unbind(-3), self.boundary_scales.unbind(-1), strict=True)
        for boundary, (rotation, boundary_scale) in zip(free_boundaries(self.spec), turns, strict=True):
            scaled_rotation = rotation * boundary_scale[..., None, None]
            for name, axis in boundary.writers.items():
                state[name] = turned(self.spec, name, state[name], axis, scaled_rotation)
            for name in boundary.readers:
                state[name] = turned(self.spec, name, state[name], -1, rotation)
        for name in ("unembedding.weight",) if self.spec.causal else ("classifier.fc2.weight", "classifier.fc2.bias"):
            state[name] = state[name] * self.logit_scale[(..., *(None,) * len(self.spec.tensors[name].shape))]
        flattened = (state[name].flatten(-len(slot.shape)) for name, slot in self.spec.tensors.items())
        return torch.cat(list(flattened), dim=-1)


def turned(
    spec: TransformerSpec, name: str, tensor: Tensor, axis: int, rotation: Float[Tensor, "*batch D D"]
) -> Float[Tensor, "..."]:
    """R applied along one axis, D, of a tensor with this name. Leading dimensions are broadcast."""
    vectors = tensor.movedim(axis, -1)
    others = len(spec.tensors[name].shape) - 1
    if others == 0:
        return (rotation @ vectors[..., None])[..., 0]
    return (vectors @ rotation.mT[(..., *(None,) * (others - 1), slice(None), slice(None))]).movedim(-1, axis)


def _block_fields(element: GroupElement) -> dict[str, Tensor]:
    """The fields that the paper's group shares with the whole one, by the latter's names."""
    return {"heads": element.heads, "m": element.m, "n": element.n, "units": element.neurons}


def _random_rotations(shape: tuple[int, ...], dim: int, generator: torch.Generator) -> Float[Tensor, "*shape D D"]:
    """R = B·Q·Bᵀ + 11ᵀ/D with Q uniform in O(D−1), reflections included, B an orthonormal basis orthogonal to 1."""
    gaussian = torch.randn(*shape, dim - 1, dim - 1, generator=generator, device=generator.device, dtype=torch.float64)
    q, r = torch.linalg.qr(gaussian)
    # Without the signs of the diagonal Q would not be uniform, and its determinant always the same.
    q = q * torch.sign(r.diagonal(dim1=-2, dim2=-1))[..., None, :]
    basis = centered_basis(dim, generator.device)
    return basis @ q @ basis.mT + 1 / dim


def centered_basis(dim: int, device: torch.device) -> Float[Tensor, "D rest"]:
    """The Helmert basis: D−1 orthonormal columns that sum to zero."""
    columns = torch.tril(torch.ones(dim, dim, dtype=torch.float64, device=device), -1).mT[:, 1:].clone()
    count = torch.arange(1, dim, dtype=torch.float64, device=device)
    columns[torch.arange(1, dim), torch.arange(dim - 1)] = -count
    return columns / (count * (count + 1)).sqrt()
