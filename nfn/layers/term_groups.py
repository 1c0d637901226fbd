"""Which terms of the table are computed together, and where the coefficient of each is.

Terms are grouped by the indices they keep. A term that keeps the hidden index (D_A), say, does the same thing to each
hidden neuron: it multiplies what the sources say about that neuron with its coefficient. All terms of a group read the
same rows of features and write side by side, so their coefficients are the blocks of one matrix [features, outputs].
Because the terms are a complete basis, no block of it is empty.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from nfn.layers.terms import ATTENTION, AXES, INNER, Term


def source_letters(term: Term) -> str:
    """The source's letters; products come summed over heads."""
    letters = term.einsum.split(",")[0].lstrip("bd") if term.source != "one" else ""
    return letters.removeprefix("h") if term.source in INNER else letters


def source_rank(name: str) -> int:
    return len(AXES[name]) - (name in INNER)


@dataclass(frozen=True)
class InputSlice:
    """The rows of a group's matrix that read one source: which axes of the source are kept, and which contracted."""

    source: str
    kept: tuple[int, ...]
    contracted: tuple[int, ...]
    rows: slice

    @cached_property
    def summed(self) -> tuple[int, ...]:
        return tuple(
            axis for axis in range(source_rank(self.source)) if axis not in self.kept and axis not in self.contracted
        )

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The permutation of [blocks, batch, d, *remaining axes] that puts kept axes before d and contracted after."""
        remaining = sorted((*self.kept, *self.contracted))
        kept, contracted = ([3 + remaining.index(axis) for axis in axes] for axes in (self.kept, self.contracted))
        return (0, 1, *kept, 2, *contracted)


@dataclass(frozen=True)
class OutputSlice:
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
    inputs: Mapping[str, InputSlice]
    outputs: Mapping[str, OutputSlice]
    terms: tuple[Term, ...]
    row_count: int
    column_count: int

    @cached_property
    def mixes_channels_only(self) -> bool:
        """Coefficients [e, d] and nothing else, applied at every kept position."""
        return bool(self.kept) and not any(term.coefficient_letters for term in self.terms)


def group_name(term: Term) -> str:
    kept = "_".join(term.axis[letter] for letter in term.kept) or "all"
    return f"{term.target}_{kept}" if term.target in ATTENTION else kept


def group_terms(
    terms: Sequence[Term], size: dict[str, int], in_channels: int, out_channels: int
) -> tuple[TermGroup, ...]:
    """Groups the terms and gives every term its block of its group's matrix."""
    by_name: dict[str, list[Term]] = {}
    for term in terms:
        by_name.setdefault(group_name(term), []).append(term)
    groups = []
    for name, members in by_name.items():
        inputs: dict[str, InputSlice] = {}
        outputs: dict[str, OutputSlice] = {}
        rows = columns = 0
        for term in members:
            letters = source_letters(term)
            positions = (
                tuple(letters.index(x) for x in term.kept),
                tuple(letters.index(x) for x in letters if x in term.contracted),
            )
            if term.source not in inputs:
                count = 1 if term.source == "one" else in_channels
                count *= prod(size[term.axis[x]] for x in term.contracted)
                inputs[term.source] = InputSlice(term.source, *positions, slice(rows, rows + count))
                rows += count
            assert (inputs[term.source].kept, inputs[term.source].contracted) == positions, term.name
            if term.target not in outputs:
                outputs[term.target] = output_slice(term, size, out_channels, columns)
                columns = outputs[term.target].columns.stop
        assert len(members) == len(inputs) * len(outputs), f"term group {name} has an empty block"
        kept = tuple(size[members[0].axis[x]] for x in members[0].kept)
        groups.append(TermGroup(name, kept, inputs, outputs, tuple(members), rows, columns))
    return tuple(groups)


def output_slice(term: Term, size: dict[str, int], out_channels: int, start: int) -> OutputSlice:
    """Where and how a term's target is written, its columns beginning at ``start``."""
    created = [size[term.axis[letter]] for letter in term.created]
    broadcast = [letter for letter in term.target_letters if letter not in term.kept + term.created]
    present = [*term.kept, "e", *term.created, *broadcast]
    return OutputSlice(
        columns=slice(start, start + out_channels * prod(created)),
        shape=(out_channels, *created, *(1 for _ in broadcast)),
        order=(0, 1, *(2 + present.index(letter) for letter in ("e", *term.target_letters))),
    )
