"""The terms of the table, merged: all terms of a site are one matrix product.

The parameters are the sites' matrices, of which the paper's coefficients are views. Transformer blocks, each with
coefficients of its own, are one more dimension of the matrix. Tensors in this file are [blocks, batch, channels,
*axes].
"""

from collections.abc import Mapping, Sequence
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nfn.layers.term_groups import Site, merge, source_letters, source_rank
from nfn.layers.terms import Term


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
            if coefficient.is_meta:  # a plan of the layer: shapes without numbers
                continue
            drawn = torch.randn(coefficient.shape, generator=generator, device=generator.device)
            coefficient.copy_(drawn * (0.0 if term.source == "one" else std))

    def coefficient(self, term: Term) -> Float[Tensor, "blocks e ..."]:
        """The paper's coefficient of one term for every block, [blocks, e, d, …]: a view of the site's matrix."""
        site = next(site for site in self.sites if term in site.terms)
        block = self.matrices[site.name][:, site.slots[term.source].rows, site.shares[term.target].columns]
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
        sites = self.sites if sites is None else sites
        parts: dict[str, list[Tensor]] = {}
        for site in sites:
            if not site.mixes_channels_only:
                for target, part in self._multiply(site, sources, batch).items():
                    parts.setdefault(target, []).append(part)
        totals = {target: sum_of(found) for target, found in parts.items()}
        for site in sites:
            if site.mixes_channels_only:
                (target,) = site.shares
                totals[target] = self._mix_channels(site, sources, totals.get(target))
        return totals

    def _multiply(self, site: Site, sources: Sources, batch: int) -> dict[str, Tensor]:
        """The site's part of each target, [blocks, batch, e, *axes] with length 1 where it is broadcast."""
        matrix = self.matrices[site.name]
        features = []
        for slot in site.slots.values():
            if slot.source == "one":
                features.append(matrix.new_ones(matrix.shape[0], batch, 1))
            else:
                x = sources.reduced(slot.source, slot.summed)
                features.append(x.permute(slot.order).flatten(2 + len(site.kept)))
        rows = features[0] if len(features) == 1 else torch.cat(features, dim=-1)
        rows = rows.flatten(1, -2)
        widths = [share.columns.stop - share.columns.start for share in site.shares.values()]
        # Whichever is smaller is split: the gradient of a split is a copy.
        if rows.shape[1] > site.rows:
            products = [tall_product(rows, part) for part in matrix.split(widths, dim=-1)]
        else:
            products = torch.bmm(rows, matrix).split(widths, dim=-1)
        parts = {}
        for (target, share), product in zip(site.shares.items(), products, strict=True):
            parts[target] = product.view(-1, batch, *site.kept, *share.shape).permute(share.order)
        return parts

    def _mix_channels(self, site: Site, sources: Sources, total: Tensor | None) -> Tensor:
        """``total`` plus the part of a site that mixes channels at every kept position."""
        ((slot,), ((_, share),)) = site.slots.values(), site.shares.items()
        x = sources.reduced(slot.source, slot.summed)
        x = x.reshape(*x.shape[:3], *site.kept, *share.shape[1:])
        coefficient = self.matrices[site.name].mT[(slice(None), None, ..., *(None,) * (x.ndim - 3))]
        if self.in_channels == 1:
            coefficient = coefficient.squeeze(3)
            return coefficient * x if total is None else torch.addcmul(total, coefficient, x)
        mixed = (self.matrices[site.name].mT.unsqueeze(1) @ x.flatten(3)).unflatten(-1, x.shape[3:])
        return mixed if total is None else total + mixed


STRETCH = 256


def tall_product(
    rows: Float[Tensor, "blocks n inputs"], matrix: Float[Tensor, "blocks inputs outputs"]
) -> Float[Tensor, "blocks n outputs"]:
    """``rows @ matrix`` for many rows and a small matrix, in stretches of rows.

    The matrix's gradient sums over all rows. As one product it has so few entries that most of a GPU would idle while
    a few of its processors walk down the rows; in stretches each has its own part, added up at the end.
    """
    if rows.shape[1] % STRETCH or rows.device.type == "cpu":
        return torch.bmm(rows, matrix)
    return product_in_stretches(rows, matrix)


def product_in_stretches(
    rows: Float[Tensor, "blocks n inputs"], matrix: Float[Tensor, "blocks inputs outputs"]
) -> Float[Tensor, "blocks n outputs"]:
    """The same product, a stretch at a time; the number of rows is a multiple of ``STRETCH``."""
    return (rows.unflatten(1, (-1, STRETCH)) @ matrix.unsqueeze(1)).flatten(1, 2)


def sum_of(parts: Sequence[Tensor]) -> Tensor:
    """The sum, smallest first: what is broadcast is added up, in order of memory, before it meets the full tensor."""
    *small, largest = sorted(parts, key=Tensor.numel)
    total = None
    for part in small:
        total = part.contiguous() if total is None else total + part.contiguous()
    return largest if total is None else total + largest
