"""The paper's polynomial layers on weights in U^d: ``EquivariantLayer`` and ``InvariantLayer``.

Weights in U^d are all blocks with d channels, as ``BlockWeights`` of tensors [*batch, d, blocks, *axes]. A checkpoint
is in U^1; the hidden layers of a functional network are in U^d.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nfn.layers.term_products import Sources, TermGroup, group_terms, sum_of, tall_product
from nfn.layers.terms import ATTENTION, AXES, EQUIVARIANT_TERMS, INVARIANT_TERMS, TENSOR_NAMES, Term, sizes
from zoo import BlockWeights, TransformerSpec, TransformerWeights


class _PolynomialLayer(nn.Module):
    """The sum of all terms of a table, for every target, with coefficients of its own for each transformer block.

    The parameters are the matrices of the term groups; the paper's coefficients are views of them. Coefficients start
    normal with standard deviation 1/√(T·fan_in), T the number of terms of the target: with independent weights of unit
    variance, every output entry has unit variance.
    """

    terms: ClassVar[tuple[Term, ...]]

    def __init__(
        self,
        spec: TransformerSpec,
        in_channels: int,
        out_channels: int,
        out_dim: int = 1,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        for count in (in_channels, out_channels, out_dim):
            if not isinstance(count, int) or count < 1:
                raise ValueError(f"a layer needs a positive number of channels, got {count!r}")
        self.spec, self.in_channels, self.out_channels, self.out_dim = spec, in_channels, out_channels, out_dim
        self.size = sizes(spec, out_dim)
        self.groups = group_terms(self.terms, self.size, in_channels, out_channels)
        shapes = {group.name: (spec.blocks, group.row_count, group.column_count) for group in self.groups}
        matrices = nn.ParameterDict({name: nn.Parameter(torch.empty(shape)) for name, shape in shapes.items()})
        # Both names are in the files of saved predictors: another one would make them unreadable.
        self.merged = nn.ModuleDict({"matrices": matrices})
        self._initialize(generator or torch.Generator().manual_seed(0))  # the same call makes the same layer

    @property
    def matrices(self) -> nn.ParameterDict:
        """The coefficients of each term group, [blocks, features, outputs], by its name."""
        matrices = self.merged["matrices"]
        assert isinstance(matrices, nn.ParameterDict)
        return matrices

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, out_dim={self.out_dim}, blocks={self.spec.blocks}"

    def _targets(self, weights: BlockWeights) -> tuple[dict[str, Tensor], torch.Size]:
        """The sums of terms, [blocks, batch, e, …], and the batch shape of the weights."""
        batch = self._check(weights)
        return self.sum_terms(Sources(vars(blocks_first(weights, batch))), batch.numel()), batch

    def _check(self, weights: BlockWeights) -> torch.Size:
        """The batch shape of weights in U^d; ValueError where a shape or a dtype does not fit."""
        dtype = next(self.parameters()).dtype
        batch = weights.query.shape[: max(weights.query.ndim - 5, 0)]
        for name in TENSOR_NAMES:
            tensor = getattr(weights, name)
            expected = (*batch, self.in_channels, self.spec.blocks, *(self.size[axis] for axis in AXES[name]))
            if tuple(tensor.shape) != expected:
                raise ValueError(
                    f"{name} must be [*batch, {', '.join(map(str, expected[len(batch) :]))}] "
                    f"(channels, blocks, then the tensor's own axes), got {list(tensor.shape)}"
                )
            if tensor.dtype != dtype:
                raise ValueError(f"{name} is {tensor.dtype} but the layer is {dtype}: convert one of them with .to()")
        return batch

    @torch.no_grad()
    def _initialize(self, generator: torch.Generator) -> None:
        targets = [term.target for term in self.terms]
        for term in self.terms:
            std = 1 / sqrt(targets.count(term.target) * term.fan_in(self.size, self.in_channels))
            coefficient = self.coefficient(term)
            if coefficient.is_meta:  # on the meta device: shapes without numbers
                continue
            drawn = torch.randn(coefficient.shape, generator=generator, device=generator.device)
            coefficient.copy_(drawn * (0.0 if term.source == "one" else std))

    def coefficient(self, term: Term) -> Float[Tensor, "blocks e ..."]:
        """The paper's coefficient of one term for every block, [blocks, e, d, …]: a view of the group's matrix."""
        group = next(group for group in self.groups if term in group.terms)
        matrix = self.matrices[group.name][:, group.inputs[term.source].rows, group.outputs[term.target].columns]
        length = {letter: self.size[axis] for letter, axis in term.axis.items()} | {"d": self.in_channels}
        rows = ("" if term.source == "one" else "d") + term.contracted
        matrix = matrix.unflatten(-1, [self.out_channels, *(length[letter] for letter in term.created)])
        matrix = matrix.unflatten(1, [length[letter] for letter in rows]) if rows else matrix.squeeze(1)
        order = rows + "e" + term.created
        return matrix.permute(0, *(1 + order.index(letter) for letter in ("e", *rows[:1], *term.coefficient_letters)))

    def sum_terms(self, sources: Sources, batch: int, groups: Sequence[TermGroup] | None = None) -> dict[str, Tensor]:
        """Every target of the given term groups; all groups for None."""
        groups = self.groups if groups is None else groups
        addends: dict[str, list[Tensor]] = {}
        for group in groups:
            if not group.mixes_channels_only:
                for target, addend in self._multiply(group, sources, batch).items():
                    addends.setdefault(target, []).append(addend)
        totals = {target: sum_of(tensors) for target, tensors in addends.items()}
        for group in groups:
            if group.mixes_channels_only:
                (target,) = group.outputs
                totals[target] = self._mix_channels(group, sources, totals.get(target))
        return totals

    def _multiply(self, group: TermGroup, sources: Sources, batch: int) -> dict[str, Tensor]:
        """The group's addend to each target, [blocks, batch, e, *axes] with length 1 where it is broadcast."""
        matrix = self.matrices[group.name]
        features = []
        for source, input_slice in group.inputs.items():
            if source == "one":
                features.append(matrix.new_ones(matrix.shape[0], batch, 1))
            else:
                x = sources.reduced(source, input_slice.summed)
                features.append(x.permute(input_slice.order).flatten(2 + len(group.kept)))
        rows = features[0] if len(features) == 1 else torch.cat(features, dim=-1)
        rows = rows.flatten(1, -2)
        widths = [output_slice.columns.stop - output_slice.columns.start for output_slice in group.outputs.values()]
        # Whichever is smaller is split: the gradient of a split is a copy.
        if rows.shape[1] > group.row_count:
            products = [tall_product(rows, columns) for columns in matrix.split(widths, dim=-1)]
        else:
            products = torch.bmm(rows, matrix).split(widths, dim=-1)
        addends = {}
        for (target, output_slice), product in zip(group.outputs.items(), products, strict=True):
            shape = (len(matrix), batch, *group.kept, *output_slice.shape)
            addends[target] = product.view(shape).permute(output_slice.order)
        return addends

    def _mix_channels(self, group: TermGroup, sources: Sources, total: Tensor | None) -> Tensor:
        """``total`` plus the addend of a group that mixes channels at every kept position."""
        ((source, input_slice),), (output_slice,) = group.inputs.items(), group.outputs.values()
        x = sources.reduced(source, input_slice.summed)
        x = x.reshape(*x.shape[:3], *group.kept, *output_slice.shape[1:])
        coefficient = self.matrices[group.name].mT[(slice(None), None, ..., *(None,) * (x.ndim - 3))]
        if self.in_channels == 1:
            coefficient = coefficient.squeeze(3)
            return coefficient * x if total is None else torch.addcmul(total, coefficient, x)
        mixed = (self.matrices[group.name].mT.unsqueeze(1) @ x.flatten(3)).unflatten(-1, x.shape[3:])
        return mixed if total is None else total + mixed


class EquivariantLayer(_PolynomialLayer):
    """E: U^d → U^e with E(gU) = gE(U) for every g of the group G_U of each block (thm:equivariant_layer).

    The sum of all terms of ``EQUIVARIANT_TERMS``; each transformer block has its own coefficients. Q, K, V are
    mixed along their input dimension, O along its output dimension by a·1 + b·11ᵀ, and everything that the group only
    permutes gets every invariant and equivariant polynomial of degree one or two.
    """

    terms = EQUIVARIANT_TERMS

    def __init__(
        self, spec: TransformerSpec, in_channels: int, out_channels: int, *, generator: torch.Generator | None = None
    ) -> None:
        super().__init__(spec, in_channels, out_channels, generator=generator)

    def forward(self, weights: BlockWeights) -> BlockWeights:
        """[*batch, d, blocks, …] → [*batch, e, blocks, …]."""
        targets, batch = self._targets(weights)
        moved = BlockWeights(**targets).map(lambda tensor: tensor.movedim(0, 2))
        return moved.map(lambda tensor: tensor.reshape(*batch, *tensor.shape[1:]))


class InvariantLayer(_PolynomialLayer):
    """I: U^d → R^{e×D'} with I(gU) = I(U) for every g of the group G_U of each block (thm:invariant_layer).

    I(U) = Φ_{(QK,•):p,q}·Σ_s[WW]^(QK,s)_{p,q} + Φ_{(VO,•):p,•}·Σ_s[WW]^(VO,s)_{p,q} + Φ_{(A):•,•}·[W]^(A)_{p,q}
         + Φ_{(B):•,q}·[W]^(B)_{p,q} + Φ_{(A):•}·[b]^(A)_q + Φ_{(B):q}·[b]^(B)_q + Φ_1,  repeated indices summed,

    for each transformer block with its own coefficients.
    """

    terms = INVARIANT_TERMS

    def forward(self, weights: BlockWeights) -> Float[Tensor, "*batch blocks e out"]:
        """[*batch, d, blocks, …] → [*batch, blocks, e, D']."""
        targets, batch = self._targets(weights)
        result = targets["invariant"].movedim(0, 1)
        return result.reshape(*batch, *result.shape[1:])


def relu_on_mlp(weights: BlockWeights) -> BlockWeights:
    """ReLU on W_A, b_A, W_B, b_B; Q, K, V, O pass unchanged.

    The group permutes the entries of the former, so any pointwise function commutes with it; on the latter it acts by
    GL(D_k) and GL(D_v), with which no such function commutes (appendix:transformer-nfn).
    """
    mlp = {name: F.relu(getattr(weights, name)) for name in TENSOR_NAMES if name not in ATTENTION}
    return replace(weights, **mlp)


def encoder_as_one_channel(weights: TransformerWeights) -> BlockWeights:
    """The encoder of a checkpoint as weights in U^1. Views."""
    channel = len(weights.batch_shape)
    return weights.encoder.map(lambda tensor: tensor.unsqueeze(channel))


def blocks_first(weights: BlockWeights, batch: torch.Size) -> BlockWeights:
    """[*batch, d, blocks, …] → [blocks, batch, d, …], the layout the layers compute in. Views where strides allow."""
    return weights.map(lambda tensor: tensor.reshape(batch.numel(), *tensor.shape[len(batch) :]).movedim(2, 0))
