"""The terms of the table, merged: all that read their sources in the same way are one matrix product.

Terms fall into sites by what they keep. A term that keeps the hidden index (D_A), say, does the same thing to each
hidden neuron: it multiplies what the sources say about that neuron with its coefficient. All terms of a site read the
same rows of features and write side by side, so their coefficients are the blocks of one matrix [features, outputs].
These matrices are the parameters; because the terms are a complete basis, no block is empty and no parameter is
wasted. Transformer blocks, each with its own coefficients, are one more dimension of the matrix.

Tensors in this file are [blocks, batch, channels, *axes].
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod, sqrt

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nfn.terms import ATTENTION, AXES, INNER, Term


class Sources:
    """What the terms read: the eight weight tensors and the two products, summed over heads as every term has them."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = dict(tensors)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._tensors:
            self._tensors[name] = self._product(name)
        return self._tensors[name]

    def _product(self, name: str) -> Tensor:
        """Σ_s W^(Q,s)·(W^(K,s))ᵀ or Σ_s W^(V,s)·W^(O,s): heads and inner dimension are one contracted index."""
        left, right = ("query", "key") if name == "qk" else ("value", "output")
        rows = self[left].transpose(-3, -2).flatten(-2)
        columns = self[right].mT if name == "qk" else self[right]
        return rows @ columns.flatten(-3, -2)

    def vo_row_sums(self) -> Tensor:
        """Σ_{s,q} [WW]^(VO,s)_{p,q}, without the product where nobody else needs it."""
        if "vo" in self._tensors:
            return self._tensors["vo"].sum(-1)
        return (self["value"] @ self["output"].sum(-1, keepdim=True)).squeeze(-1).sum(-2)

    def reduced(self, name: str, summed: Sequence[int]) -> Tensor:
        """A source with some of its axes summed away."""
        if name == "vo" and tuple(summed) == (1,):
            return self.vo_row_sums()
        tensor = self[name]
        first = tensor.ndim - source_rank(name)
        return tensor.sum([first + axis for axis in summed]) if summed else tensor


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

    @property
    def summed(self) -> tuple[int, ...]:
        return tuple(
            axis for axis in range(source_rank(self.source)) if axis not in self.kept and axis not in self.contracted
        )


@dataclass(frozen=True)
class Site:
    """One matrix product: the slots of its rows, the columns of its targets."""

    name: str
    kept: tuple[str, ...]
    slots: Mapping[str, Slot]
    columns: Mapping[str, slice]
    terms: tuple[Term, ...]
    rows: int
    width: int

    @property
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
        columns: dict[str, slice] = {}
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
            if term.target not in columns:
                count = out_channels * prod(size[term.axis[x]] for x in term.created)
                columns[term.target] = slice(width, width + count)
                width += count
        assert len(members) == len(slots) * len(columns), f"site {name} has an empty block"
        kept = tuple(members[0].axis[x] for x in members[0].kept)
        sites.append(Site(name, kept, slots, columns, tuple(members), rows, width))
    return tuple(sites)


class MergedTerms(nn.Module):
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
        self.terms = tuple(terms)
        self.size = dict(size)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.sites = merge(terms, size, in_channels, out_channels)
        self.matrices = nn.ParameterDict(
            {site.name: nn.Parameter(torch.empty(blocks, site.rows, site.width)) for site in self.sites}
        )
        self.initialise(generator)

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        targets = [term.target for term in self.terms]
        for term in self.terms:
            std = 1 / sqrt(targets.count(term.target) * term.fan_in(self.size, self.in_channels))
            coefficient = self.coefficient(term)
            drawn = torch.randn(coefficient.shape, generator=generator, device=generator.device)
            coefficient.copy_(drawn * (0.0 if term.source == "one" else std))

    def coefficient(self, term: Term) -> Float[Tensor, "blocks e ..."]:
        """The paper's coefficient of one term for every block, [blocks, e, d, …]: a view of the site's matrix."""
        site = next(site for site in self.sites if term in site.terms)
        block = self.matrices[site.name][:, site.slots[term.source].rows, site.columns[term.target]]
        contracted = [letter for letter in source_letters(term) if letter in term.contracted]
        length = {letter: self.size[axis] for letter, axis in term.axis.items()}
        block = block.unflatten(-1, [self.out_channels, *(length[x] for x in term.created)])
        channels = [] if term.source == "one" else [self.in_channels]
        block = block.unflatten(1, [*channels, *(length[x] for x in contracted)] or [1])
        order = ["d"] * len(channels) + contracted + ["e", *term.created]
        if term.source == "one":
            block = block.squeeze(1)
        wanted = ["e"] + ["d"] * len(channels) + list(term.coefficient_letters)
        return block.permute(0, *(1 + order.index(letter) for letter in wanted))

    def forward(self, sources: Sources, batch: int, sites: Sequence[Site] | None = None) -> dict[str, Tensor]:
        """Every target of some sites, of all for None."""
        parts: dict[str, list[Tensor]] = {}
        for site in self.sites if sites is None else sites:
            for target, part in self._multiply(site, sources, batch).items():
                parts.setdefault(target, []).append(part)
        return {target: sum_of(found) for target, found in parts.items()}

    def _multiply(self, site: Site, sources: Sources, batch: int) -> dict[str, Tensor]:
        """One site's share of each target, [blocks, batch, e, *axes] with length 1 where it is broadcast."""
        matrix = self.matrices[site.name]
        blocks = matrix.shape[0]
        kept = [self.size[axis] for axis in site.kept]
        if site.mixes_channels_only:
            (slot,), (target,) = site.slots.values(), site.columns
            x = sources.reduced(slot.source, slot.summed).flatten(3)
            mixed = matrix.mT.unsqueeze(1) * x if self.in_channels == 1 else matrix.mT.unsqueeze(1) @ x
            return {target: self._place(mixed.unflatten(-1, kept), site, target)}
        features = []
        for slot in site.slots.values():
            if slot.source == "one":
                features.append(matrix.new_ones(blocks, batch, 1))
                continue
            x = sources.reduced(slot.source, slot.summed)
            remaining = [axis for axis in range(source_rank(slot.source)) if axis not in slot.summed]
            order = [3 + remaining.index(axis) for axis in slot.kept]
            order += [2, *(3 + remaining.index(axis) for axis in slot.contracted)]
            features.append(x.permute(0, 1, *order).flatten(2 + len(kept)))
        rows = features[0] if len(features) == 1 else torch.cat(features, dim=-1)
        product = torch.bmm(rows.flatten(1, -2), matrix).unflatten(1, (batch, *kept))
        shares = {}
        widths = [columns.stop - columns.start for columns in site.columns.values()]
        for target, share in zip(site.columns, product.split(widths, dim=-1), strict=True):
            term = next(term for term in site.terms if term.target == target)
            created = [self.size[term.axis[letter]] for letter in term.created]
            share = share.unflatten(-1, (self.out_channels, *created))
            channel_first = share.movedim(2 + len(kept), 2)
            shares[target] = self._place(channel_first, site, target)
        return shares

    def _place(self, share: Tensor, site: Site, target: str) -> Tensor:
        """[blocks, batch, e, *kept, *created] → the target's axes in their order, length 1 where the term has none."""
        term = next(term for term in site.terms if term.target == target)
        letters = term.kept + term.created
        present = [letter for letter in term.target_letters if letter in letters]
        share = share.permute(0, 1, 2, *(3 + letters.index(letter) for letter in present))
        for position, letter in enumerate(term.target_letters):
            if letter not in letters:
                share = share.unsqueeze(3 + position)
        return share


def sum_of(parts: Sequence[Tensor]) -> Tensor:
    """The sum, smallest first: what is broadcast is added up before it meets the full tensor."""
    total, *rest = sorted(parts, key=Tensor.numel)
    for part in rest:
        total = total + part
    return total
