"""The terms of the table, whole groups of them computed as one matrix product.

Terms are grouped by the indices they keep. A term that keeps the hidden index (D_A), say, does the same thing to each
hidden neuron: it multiplies what the sources hold for that neuron with its coefficient. All terms of a group read the
same rows of features and write side by side, so their coefficients are submatrices of one matrix [features, outputs].
Because the terms are a complete basis, they fill all of it.

The parameters are the matrices of the term groups; the paper's coefficients are views of them. Transformer blocks, each
with its own coefficients, are one more dimension of the matrix. Tensors in this file are [blocks, batch, channels,
*axes].
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod, sqrt

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nfn.layers.terms import ATTENTION, Term

_CHUNK_ROWS = 256


@dataclass(frozen=True)
class _InputSlice:
    """The rows of a group's matrix that read one source, and how the source becomes [*kept, d, *contracted].

    The axes ``summed`` of the source are summed; [blocks, batch, d, *remaining axes] are then permuted by ``order``.
    """

    rows: slice
    summed: tuple[int, ...]
    order: tuple[int, ...]


@dataclass(frozen=True)
class _OutputSlice:
    """The columns of a group's matrix that write one target, and how [*kept, columns] becomes [e, *target axes].

    The columns are unflattened to ``shape``, which ends in a 1 for every axis that is broadcast, then permuted by
    ``order``.
    """

    columns: slice
    shape: tuple[int, ...]
    order: tuple[int, ...]


@dataclass(frozen=True)
class _TermGroup:
    """Terms computed as one matrix product: rows of the matrix by source, columns by target."""

    name: str
    kept: tuple[int, ...]
    inputs: Mapping[str, _InputSlice]
    outputs: Mapping[str, _OutputSlice]
    terms: tuple[Term, ...]
    row_count: int
    column_count: int

    @cached_property
    def mixes_channels_only(self) -> bool:
        """Coefficients [e, d] and nothing else, applied at every kept position."""
        return bool(self.kept) and not any(term.coefficient_letters for term in self.terms)


def _group_terms(
    terms: Sequence[Term], size: dict[str, int], in_channels: int, out_channels: int
) -> tuple[_TermGroup, ...]:
    """Groups the terms and gives every term its submatrix of its group's matrix."""
    by_name: dict[str, list[Term]] = {}
    for term in terms:
        kept = "_".join(term.axis[letter] for letter in term.kept) or "all"
        by_name.setdefault(f"{term.target}_{kept}" if term.target in ATTENTION else kept, []).append(term)
    groups = []
    for name, members in by_name.items():
        inputs: dict[str, _InputSlice] = {}
        outputs: dict[str, _OutputSlice] = {}
        rows = columns = 0
        for term in members:
            read = _input_slice(term, size, in_channels, rows)
            if term.source not in inputs:
                inputs[term.source], rows = read, read.rows.stop
            assert (inputs[term.source].summed, inputs[term.source].order) == (read.summed, read.order), term.name
            if term.target not in outputs:
                outputs[term.target] = _output_slice(term, size, out_channels, columns)
                columns = outputs[term.target].columns.stop
        assert len(members) == len(inputs) * len(outputs), f"term group {name} has an empty submatrix"
        kept = tuple(size[members[0].axis[x]] for x in members[0].kept)
        groups.append(_TermGroup(name, kept, inputs, outputs, tuple(members), rows, columns))
    return tuple(groups)


def _input_slice(term: Term, size: dict[str, int], in_channels: int, start: int) -> _InputSlice:
    """How a term's source is read, its rows beginning at ``start``."""
    remaining = [letter for letter in term.source_letters if letter in term.kept + term.contracted]
    place = {letter: 3 + number for number, letter in enumerate(remaining)}
    count = (1 if term.source == "one" else in_channels) * prod(size[term.axis[letter]] for letter in term.contracted)
    return _InputSlice(
        rows=slice(start, start + count),
        summed=tuple(axis for axis, letter in enumerate(term.source_letters) if letter not in remaining),
        order=(0, 1, *(place[letter] for letter in term.kept), 2, *(place[letter] for letter in term.contracted)),
    )


def _output_slice(term: Term, size: dict[str, int], out_channels: int, start: int) -> _OutputSlice:
    """Where and how a term's target is written, its columns beginning at ``start``."""
    created = [size[term.axis[letter]] for letter in term.created]
    broadcast = [letter for letter in term.target_letters if letter not in term.kept + term.created]
    present = [*term.kept, "e", *term.created, *broadcast]
    return _OutputSlice(
        columns=slice(start, start + out_channels * prod(created)),
        shape=(out_channels, *created, *(1 for _ in broadcast)),
        order=(0, 1, *(2 + present.index(letter) for letter in ("e", *term.target_letters))),
    )


class Sources:
    """The inputs of the terms: the eight weight tensors, and the two products, summed over heads as all need them."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = dict(tensors)

    def __getitem__(self, name: str) -> Tensor:
        """A tensor by its name; Σ_s W^(Q,s)·(W^(K,s))ᵀ and Σ_s W^(V,s)·W^(O,s) are computed when first needed."""
        if name not in self._tensors:
            left, right = (self["query"], self["key"].mT) if name == "qk" else (self["value"], self["output"])
            # heads and inner dimension are one contracted index
            self._tensors[name] = left.transpose(-3, -2).flatten(-2) @ right.flatten(-3, -2)
        return self._tensors[name]

    def reduced(self, name: str, summed: Sequence[int]) -> Tensor:
        """A source summed over some of its axes, counted after [blocks, batch, channels]."""
        return self[name].sum([3 + axis for axis in summed]) if summed else self[name]


class TermProducts(nn.Module):
    """The sum of all terms of a table, for every target: [blocks, batch, d, …] → [blocks, batch, e, …].

    Coefficients start normal with standard deviation 1/√(T·fan_in), T the number of terms of the target: with
    independent weights of unit variance, every output entry has unit variance.
    """

    def __init__(
        self,
        terms: Sequence[Term],
        size: dict[str, int],
        blocks: int,
        in_channels: int,
        out_channels: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.terms, self.size = tuple(terms), dict(size)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.groups = _group_terms(terms, size, in_channels, out_channels)
        shapes = {group.name: (blocks, group.row_count, group.column_count) for group in self.groups}
        self.matrices = nn.ParameterDict({name: nn.Parameter(torch.empty(shape)) for name, shape in shapes.items()})
        self.initialize(generator)

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
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

    def forward(self, sources: Sources, batch: int, groups: Sequence[_TermGroup] | None = None) -> dict[str, Tensor]:
        """Every target of the given term groups; all groups for None."""
        groups = self.groups if groups is None else groups
        addends: dict[str, list[Tensor]] = {}
        for group in groups:
            if not group.mixes_channels_only:
                for target, addend in self._multiply(group, sources, batch).items():
                    addends.setdefault(target, []).append(addend)
        totals = {target: _sum_of(tensors) for target, tensors in addends.items()}
        for group in groups:
            if group.mixes_channels_only:
                (target,) = group.outputs
                totals[target] = self._mix_channels(group, sources, totals.get(target))
        return totals

    def _multiply(self, group: _TermGroup, sources: Sources, batch: int) -> dict[str, Tensor]:
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
            products = [_tall_product(rows, columns) for columns in matrix.split(widths, dim=-1)]
        else:
            products = torch.bmm(rows, matrix).split(widths, dim=-1)
        addends = {}
        for (target, output_slice), product in zip(group.outputs.items(), products, strict=True):
            shape = (len(matrix), batch, *group.kept, *output_slice.shape)
            addends[target] = product.view(shape).permute(output_slice.order)
        return addends

    def _mix_channels(self, group: _TermGroup, sources: Sources, total: Tensor | None) -> Tensor:
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


def _tall_product(
    rows: Float[Tensor, "blocks n inputs"], matrix: Float[Tensor, "blocks inputs outputs"]
) -> Float[Tensor, "blocks n outputs"]:
    """``rows @ matrix`` for many rows and a small matrix, in chunks of rows.

    The matrix's gradient sums over all rows. As one product it has so few entries that most of a GPU would be idle
    while a few of its processors go through the rows; in chunks each processor has its own rows, and the sums of
    all are added up at the end.
    """
    if rows.shape[1] % _CHUNK_ROWS or rows.device.type == "cpu":
        return torch.bmm(rows, matrix)
    return _product_in_chunks(rows, matrix)


def _product_in_chunks(
    rows: Float[Tensor, "blocks n inputs"], matrix: Float[Tensor, "blocks inputs outputs"]
) -> Float[Tensor, "blocks n outputs"]:
    """The same product, one chunk at a time; the number of rows is a multiple of ``_CHUNK_ROWS``."""
    return (rows.unflatten(1, (-1, _CHUNK_ROWS)) @ matrix.unsqueeze(1)).flatten(1, 2)


def _sum_of(addends: Sequence[Tensor]) -> Tensor:
    """The sum, smallest first: broadcast tensors are added up, contiguous in memory, before the full one is added."""
    *small, largest = sorted(addends, key=Tensor.numel)
    total = None
    for addend in small:
        total = addend.contiguous() if total is None else total + addend.contiguous()
    return largest if total is None else total + largest
