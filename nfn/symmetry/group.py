"""The symmetry group of a transformer's blocks and its action on weights (sec:weight_space).

    G_U = S_h × GL(D_k)^h × GL(D_v)^h × P_D × P_{D_A}        for each block

    [gW]^(Q,i) = W^(Q,τ(i))·(M^(τ(i)))ᵀ             [gW]^(K,i) = W^(K,τ(i))·(M^(τ(i)))⁻¹
    [gW]^(V,i) = W^(V,τ(i))·N^(τ(i))                [gW]^(O,i) = (N^(τ(i)))⁻¹·W^(O,τ(i))·P_O
    [gW]^(A)_{j,k} = W^(A)_{π_O(j),π_A(k)}          [gW]^(B)_{j,k} = W^(B)_{π_A(j),k}
    [gb]^(A)_k = b^(A)_{π_A(k)}                     [gb]^(B) = b^(B)

(def:group_action, prop:entries_under_group_action). Embedding and classifier are left alone. The blocks compute the
same function of their input before and after (thm:invariant_attn). Residual connections, which the paper's transformers
do not have, add a block's input to what attention writes: there π_O is the identity.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from zoo import BlockWeights, TransformerSpec, TransformerWeights

# Beyond this condition number a float32 weight keeps fewer than three digits of the product it takes part in.
_MAX_CONDITION = 1e4
_Element = TypeVar("_Element", bound="Element")
_ORDERED_BY = {"m": "heads", "n": "heads", "unit_scales": "units", "classifier_unit_scales": "classifier_units"}
"""Factors that belong to the heads or units as they are before the permutation."""


@dataclass(frozen=True)
class Element:
    """An element of either group: a few tensors, with real numbers in float64 whatever they act on."""

    def __post_init__(self) -> None:
        for name, tensor in self.tensors().items():
            if tensor.is_floating_point() and tensor.dtype != torch.float64:
                raise ValueError(f"{name} must be float64, got {tensor.dtype}: convert with .double()")

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by the name of its field."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def map(self: _Element, function: Callable[[Tensor], Tensor]) -> _Element:
        """``function`` applied to each tensor, e.g. to move to a device or to pick one of a batch."""
        return replace(self, **{name: function(tensor) for name, tensor in self.tensors().items()})


@dataclass(frozen=True)
class GroupElement(Element):
    """One g for every block, with any leading dimensions."""

    heads: Int[Tensor, "*batch blocks h"]  # τ
    m: Float[Tensor, "*batch blocks h D_k D_k"]
    n: Float[Tensor, "*batch blocks h D_v D_v"]
    features: Int[Tensor, "*batch blocks D"]  # π_O
    neurons: Int[Tensor, "*batch blocks D_A"]  # π_A

    @staticmethod
    def identity(
        spec: TransformerSpec, batch_shape: tuple[int, ...] = (), *, device: torch.device | str = "cpu"
    ) -> "GroupElement":
        """The g that moves nothing."""
        shape = (*batch_shape, spec.blocks)

        def permutation(count: int) -> Tensor:
            return torch.arange(count, device=device).expand(*shape, count)

        def matrix(count: int) -> Tensor:
            return torch.eye(count, dtype=torch.float64, device=device).expand(*shape, spec.heads, count, count)

        return GroupElement._of_factors(spec, permutation, matrix)

    @staticmethod
    def sample(
        spec: TransformerSpec,
        batch_shape: tuple[int, ...] = (),
        *,
        generator: torch.Generator,
        entry_range: float | None = None,
    ) -> "GroupElement":
        """Uniform permutations, random M and N, on the generator's device; no π_O for residual transformers.

        By default M and N have singular values between 1/2 and 2 and uniformly random singular vectors: well
        conditioned, but far from orthogonal. With ``entry_range`` r their entries are uniform in [−r, r], as in the
        paper's augmentation experiment (tab:augmented_agnews); matrices with a condition number above 10⁴ are drawn
        again.
        """
        if entry_range is not None and not entry_range > 0:
            raise ValueError(f"entry_range must be a positive number, got {entry_range!r}")
        shape = (*batch_shape, spec.blocks)

        def permutation(count: int) -> Tensor:
            return torch.rand(*shape, count, generator=generator, device=generator.device).argsort(dim=-1)

        def matrix(count: int) -> Tensor:
            size = (*shape, spec.heads, count, count)
            return _well_conditioned(size, generator) if entry_range is None else _uniform(size, entry_range, generator)

        drawn = GroupElement._of_factors(spec, permutation, matrix)
        nothing = GroupElement.identity(spec, batch_shape, device=generator.device)
        return replace(drawn, features=nothing.features) if spec.residual else drawn

    @staticmethod
    def _of_factors(
        spec: TransformerSpec, permutation: Callable[[int], Tensor], matrix: Callable[[int], Tensor]
    ) -> "GroupElement":
        """τ, M, N, π_O and π_A, made in this order from their sizes."""
        heads, m, n = permutation(spec.heads), matrix(spec.key_dim), matrix(spec.value_dim)
        return GroupElement(heads, m, n, features=permutation(spec.dim), neurons=permutation(spec.hidden_dim))

    def act(self, weights: TransformerWeights) -> TransformerWeights:
        """g·U: a copy of the weights that computes the same function. Batches of g and of weights are broadcast."""
        moved = self.act_on_blocks(weights.encoder)
        self.check_residual(weights.spec)
        batch = moved.query.shape[:-4]
        flat = weights.flat().expand(*batch, weights.spec.num_parameters)
        return TransformerWeights.from_flat(weights.spec, flat, check_finite=False).with_encoder(moved)

    def check_residual(self, spec: TransformerSpec) -> None:
        """Residual connections allow no permutation of features."""
        if spec.residual and bool((self.features.diff() != 1).any()):
            raise ValueError(
                f"the features of a transformer of {spec.task} cannot be permuted: its connections are residual"
            )

    def act_on_blocks(self, weights: BlockWeights) -> BlockWeights:
        """g·U for tensors [..., blocks, *axes]; more leading dimensions than g has, e.g. channels, are broadcast.

        Computed in float64 and rounded once, to the weights' own dtype.
        """
        self._check_fits(weights)
        dtype = weights.query.dtype
        m, n = pick(self.m, self.heads, -3), pick(self.n, self.heads, -3)
        query, key, value, output = (
            pick(tensor.double(), self.heads, -3)
            for tensor in (weights.query, weights.key, weights.value, weights.output)
        )
        batch = query.shape[:-3]
        moved = BlockWeights(
            query=query @ m.mT,
            key=torch.linalg.solve(m, key, left=False),
            value=value @ n,
            output=pick(torch.linalg.solve(n, output), self.features[..., None, None, :], -1),
            weight_a=pick(pick(weights.weight_a, self.features, -2), self.neurons[..., None, :], -1),
            weight_b=pick(weights.weight_b, self.neurons, -2),
            bias_a=pick(weights.bias_a, self.neurons, -1),
            bias_b=weights.bias_b.expand(*batch, weights.bias_b.shape[-1]),
        )
        return moved.map(lambda tensor: tensor.to(dtype))

    def compose(self, first: "GroupElement") -> "GroupElement":
        """self∘first: ``g.compose(h).act(u)`` is ``g.act(h.act(u))``."""
        return compose_factors(self, first)

    def inverse(self) -> "GroupElement":
        """The g⁻¹ with ``g.inverse().compose(g)`` the identity."""
        return invert_factors(self)

    def _check_fits(self, weights: BlockWeights) -> None:
        dimensions = (*weights.query.shape[-4:], weights.value.shape[-1], weights.weight_a.shape[-1])
        blocks, heads = self.heads.shape[-2:]
        expected = (blocks, heads, self.features.shape[-1], self.m.shape[-1], self.n.shape[-1], self.neurons.shape[-1])
        if dimensions != expected:
            names = ("blocks", "h", "D", "D_k", "D_v", "D_A")
            rows = zip(names, expected, dimensions, strict=True)
            differing = ", ".join(f"{name} {a} and {b}" for name, a, b in rows if a != b)
            raise ValueError(
                f"a group element acts on weights of its own dimensions, got {differing}: sample it for weights.spec"
            )


def compose_factors(g: _Element, h: _Element) -> _Element:
    """g∘h but for shifts, which are left as they are.

    τ = τ_h∘τ_g, M^(s) = M_g^(τ_h⁻¹(s))·M_h^(s), N^(s) = N_h^(s)·N_g^(τ_h⁻¹(s)), π = π_h∘π_g; scales of units like M.
    """
    composed: dict[str, Tensor] = {}
    for name, after in g.tensors().items():
        before = getattr(h, name)
        if name in _ORDERED_BY:
            after = pick(after, getattr(h, _ORDERED_BY[name]).argsort(dim=-1), -3 if name in "mn" else -1)
        if not after.is_floating_point():
            composed[name] = pick(before, after, -1)
        elif name in ("m", "n", "rotations"):
            composed[name] = before @ after if name == "n" else after @ before
        elif name != "shifts":
            composed[name] = after * before
    return replace(g, **composed)


def invert_factors(g: _Element) -> _Element:
    """g⁻¹ but for shifts, which are left as they are."""
    inverted: dict[str, Tensor] = {}
    for name, tensor in g.tensors().items():
        if name in _ORDERED_BY:
            tensor = pick(tensor, getattr(g, _ORDERED_BY[name]), -3 if name in "mn" else -1)
        if not tensor.is_floating_point():
            inverted[name] = tensor.argsort(dim=-1)
        elif name in ("m", "n"):
            inverted[name] = torch.linalg.inv(tensor)
        elif name != "shifts":
            inverted[name] = tensor.mT if name == "rotations" else 1 / tensor
    return replace(g, **inverted)


def pick(tensor: Tensor, index: Tensor, dim: int) -> Tensor:
    """tensor[…, index, …] along ``dim`` (negative), with the leading dimensions of both broadcast from the right.

    ``index`` is [*batch, n] where ``tensor`` is [*batch, …, n at dim, …].
    """
    trailing = -dim - 1
    index = index[(..., *(None,) * trailing)]
    lead = torch.broadcast_shapes(tensor.shape[: tensor.ndim + dim], index.shape[: index.ndim + dim])
    tail = tensor.shape[tensor.ndim + dim + 1 :] if trailing else ()
    return torch.gather(
        tensor.expand(*lead, *tensor.shape[tensor.ndim + dim :]), dim, index.expand(*lead, index.shape[dim], *tail)
    )


def _well_conditioned(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """U·diag(s)·Vᵀ with s log-uniform in [1/2, 2] and U, V random orthogonal."""
    gaussian = torch.randn(2, *shape, generator=generator, device=generator.device, dtype=torch.float64)
    left, right = torch.linalg.qr(gaussian).Q
    exponent = torch.rand(shape[:-1], generator=generator, device=generator.device, dtype=torch.float64) * 2 - 1
    return (left * torch.exp(exponent * log(2.0)).unsqueeze(-2)) @ right


def _uniform(shape: tuple[int, ...], entry_range: float, generator: torch.Generator) -> Tensor:
    """Entries uniform in [−r, r]; matrices that are singular in practice are drawn again, the others stay."""
    matrices = torch.empty(shape, dtype=torch.float64, device=generator.device)
    bad = torch.ones(shape[:-2], dtype=torch.bool, device=generator.device)
    while bool(bad.any()):
        new = torch.rand(int(bad.sum()), *shape[-2:], generator=generator, device=generator.device, dtype=torch.float64)
        matrices[bad] = (new * 2 - 1) * entry_range
        bad = torch.linalg.cond(matrices) > _MAX_CONDITION
    return matrices
