"""Which terms of the table are computed together, and where each has its coefficient.

Terms fall into sites by what they keep. A term that keeps the hidden index (D_A), say, does the same thing to each
hidden neuron: it multiplies what the sources say about that neuron with its coefficient. All terms of a site read the
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
class Slot:
    """How a site reads one source: which axes it keeps, which it contracts, and which rows the result fills."""

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
class Share:
    """What a site gives to one target: its columns, and how [*kept, columns] becomes [e, *axes of the target].

    The columns are unflattened to ``shape``, which ends in a 1 for every axis that is broadcast, then permuted by
    ``order``.
    """

    columns: slice
    shape: tuple[int, ...]
    order: tuple[int, ...]


@dataclass(frozen=True)
class Site:
    """One matrix product: the slots of its rows by source, the shares of its columns by target."""

    name: str
    kept: tuple[int, ...]
    slots: Mapping[str, Slot]
    shares: Mapping[str, Share]
    terms: tuple[Term, ...]
    rows: int
    width: int

    @cached_property
    def mixes_channels_only(self) -> bool:
        """Coefficients [e, d] and nothing else, applied at every kept position."""
        return bool(self.kept) and not any(term.coefficient_letters for term in self.terms)


def site_name(term: Term) -> str:
    kept = "_".join(term.axis[letter] for letter in term.kept) or "all"
    return f"{term.target}_{kept}" if term.target in ATTENTION else kept


def merge(terms: Sequence[Term], size: dict[str, int], in_channels: int, out_channels: int) -> tuple[Site, ...]:
    """Groups the terms into sites and gives every term its block of the site's matrix."""
    groups: dict[str, list[Term]] = {}
    for term in terms:
        groups.setdefault(site_name(term), []).append(term)
    sites = []
    for name, members in groups.items():
        slots: dict[str, Slot] = {}
        shares: dict[str, Share] = {}
        rows = width = 0
        for term in members:
            letters = source_letters(term)
            positions = (
                tuple(letters.index(x) for x in term.kept),
                tuple(letters.index(x) for x in letters if x in term.contracted),
            )
            if term.source not in slots:
                count = 1 if term.source == "one" else in_channels
                count *= prod(size[term.axis[x]] for x in term.contracted)
                slots[term.source] = Slot(term.source, *positions, slice(rows, rows + count))
                rows += count
            assert (slots[term.source].kept, slots[term.source].contracted) == positions, term.name
            if term.target not in shares:
                shares[term.target] = share_of(term, size, out_channels, width)
                width = shares[term.target].columns.stop
        assert len(members) == len(slots) * len(shares), f"site {name} has an empty block"
        kept = tuple(size[members[0].axis[x]] for x in members[0].kept)
        sites.append(Site(name, kept, slots, shares, tuple(members), rows, width))
    return tuple(sites)


def share_of(term: Term, size: dict[str, int], out_channels: int, start: int) -> Share:
    """The share of a term's target, its columns beginning at ``start``."""
    created = [size[term.axis[letter]] for letter in term.created]
    broadcast = [letter for letter in term.target_letters if letter not in term.kept + term.created]
    present = [*term.kept, "e", *term.created, *broadcast]
    return Share(
        columns=slice(start, start + out_channels * prod(created)),
        shape=(out_channels, *created, *(1 for _ in broadcast)),
        order=(0, 1, *(2 + present.index(letter) for letter in ("e", *term.target_letters))),
    )
