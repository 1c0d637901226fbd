"""The terms of the table, whole groups of them computed as one matrix product.

Terms are grouped by the indices they keep. A term that keeps the hidden index (D_A), say, does the same thing to each
hidden neuron: it multiplies what the sources hold for that neuron with its coefficient. All terms of a group read the
same rows of features and write side by side, so their coefficients are submatrices of one matrix [features, outputs].
Because the terms are a complete basis, they fill all of it.

Transformer blocks, each with its own coefficients, are one more dimension of the matrix. Tensors in this file are
[blocks, batch, channels, *axes].
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor

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
class TermGroup:
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


def group_terms(
    terms: Sequence[Term], size: dict[str, int], in_channels: int, out_channels: int
) -> tuple[TermGroup, ...]:
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
        groups.append(TermGroup(name, kept, inputs, outputs, tuple(members), rows, columns))
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


def tall_product(
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


def sum_of(addends: Sequence[Tensor]) -> Tensor:
    """The sum, smallest first: broadcast tensors are added up, contiguous in memory, before the full one is added."""
    *small, largest = sorted(addends, key=Tensor.numel)
    return reduce(torch.add, [*(addend.contiguous() for addend in small), largest])
