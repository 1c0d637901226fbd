"""The terms of the table, a whole group of them computed as one matrix product.

The parameters are the matrices of the term groups; the paper's coefficients are views of them. Transformer blocks, each
with its own coefficients, are one more dimension of the matrix. Tensors in this file are [blocks, batch, channels,
*axes].
"""

from collections.abc import Mapping, Sequence
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nfn.layers.term_groups import TermGroup, group_terms, source_letters, source_rank
from nfn.layers.terms import Term


class Sources:
    """What the terms read: the eight weight tensors and the two products, summed over heads as all terms need them."""

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
        """Σ_{s,q} [WW]^(VO,s)_{p,q}, without the product where nothing else needs it."""
        if "vo" in self._tensors:
            return self._tensors["vo"].sum(-1)
        return (self["value"] @ self["output"].sum(-1, keepdim=True)).squeeze(-1).sum(-2)

    def reduced(self, name: str, summed: Sequence[int]) -> Tensor:
        """A source summed over some of its axes."""
        if name == "vo" and tuple(summed) == (1,):
            return self.vo_row_sums()
        tensor = self[name]
        first = tensor.ndim - source_rank(name)
        return tensor.sum([first + axis for axis in summed]) if summed else tensor


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
        self.terms = tuple(terms)
        self.size = dict(size)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.groups = group_terms(terms, size, in_channels, out_channels)
        self.matrices = nn.ParameterDict(
            {
                group.name: nn.Parameter(torch.empty(blocks, group.row_count, group.column_count))
                for group in self.groups
            }
        )
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
        block = self.matrices[group.name][:, group.inputs[term.source].rows, group.outputs[term.target].columns]
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

    def forward(self, sources: Sources, batch: int, groups: Sequence[TermGroup] | None = None) -> dict[str, Tensor]:
        """Every target of the given term groups; all groups for None."""
        groups = self.groups if groups is None else groups
        parts: dict[str, list[Tensor]] = {}
        for group in groups:
            if not group.mixes_channels_only:
                for target, part in self._multiply(group, sources, batch).items():
                    parts.setdefault(target, []).append(part)
        totals = {target: sum_of(addends) for target, addends in parts.items()}
        for group in groups:
            if group.mixes_channels_only:
                (target,) = group.outputs
                totals[target] = self._mix_channels(group, sources, totals.get(target))
        return totals

    def _multiply(self, group: TermGroup, sources: Sources, batch: int) -> dict[str, Tensor]:
        """The group's part of each target, [blocks, batch, e, *axes] with length 1 where it is broadcast."""
        matrix = self.matrices[group.name]
        features = []
        for input_slice in group.inputs.values():
            if input_slice.source == "one":
                features.append(matrix.new_ones(matrix.shape[0], batch, 1))
            else:
                x = sources.reduced(input_slice.source, input_slice.summed)
                features.append(x.permute(input_slice.order).flatten(2 + len(group.kept)))
        rows = features[0] if len(features) == 1 else torch.cat(features, dim=-1)
        rows = rows.flatten(1, -2)
        widths = [output_slice.columns.stop - output_slice.columns.start for output_slice in group.outputs.values()]
        # Whichever is smaller is split: the gradient of a split is a copy.
        if rows.shape[1] > group.row_count:
            products = [tall_product(rows, part) for part in matrix.split(widths, dim=-1)]
        else:
            products = torch.bmm(rows, matrix).split(widths, dim=-1)
        parts = {}
        for (target, output_slice), product in zip(group.outputs.items(), products, strict=True):
            shape = (len(matrix), batch, *group.kept, *output_slice.shape)
            parts[target] = product.view(shape).permute(output_slice.order)
        return parts

    def _mix_channels(self, group: TermGroup, sources: Sources, total: Tensor | None) -> Tensor:
        """``total`` plus the part of a group that mixes channels at every kept position."""
        (input_slice,), (output_slice,) = group.inputs.values(), group.outputs.values()
        x = sources.reduced(input_slice.source, input_slice.summed)
        x = x.reshape(*x.shape[:3], *group.kept, *output_slice.shape[1:])
        coefficient = self.matrices[group.name].mT[(slice(None), None, ..., *(None,) * (x.ndim - 3))]
        if self.in_channels == 1:
            coefficient = coefficient.squeeze(3)
            return coefficient * x if total is None else torch.addcmul(total, coefficient, x)
        mixed = (self.matrices[group.name].mT.unsqueeze(1) @ x.flatten(3)).unflatten(-1, x.shape[3:])
        return mixed if total is None else total + mixed


CHUNK_ROWS = 256


def tall_product(
    rows: Float[Tensor, "blocks n inputs"], matrix: Float[Tensor, "blocks inputs outputs"]
) -> Float[Tensor, "blocks n outputs"]:
    """``rows @ matrix`` for many rows and a small matrix, in chunks of rows.

    The matrix's gradient sums over all rows. As one product it has so few entries that most of a GPU would be idle
    while a few of its processors go through the rows; in chunks each processor has its own part, and the parts are
    added up at the end.
    """
    if rows.shape[1] % CHUNK_ROWS or rows.device.type == "cpu":
        return torch.bmm(rows, matrix)
    return product_in_chunks(rows, matrix)


def product_in_chunks(
    rows: Float[Tensor, "blocks n inputs"], matrix: Float[Tensor, "blocks inputs outputs"]
) -> Float[Tensor, "blocks n outputs"]:
    """The same product, one chunk at a time; the number of rows is a multiple of ``CHUNK_ROWS``."""
    return (rows.unflatten(1, (-1, CHUNK_ROWS)) @ matrix.unsqueeze(1)).flatten(1, 2)


def sum_of(parts: Sequence[Tensor]) -> Tensor:
    """The sum, smallest first: broadcast parts are added up, contiguous in memory, before the full tensor is added."""
    *small, largest = sorted(parts, key=Tensor.numel)
    total = None
    for part in small:
        total = part.contiguous() if total is None else total + part.contiguous()
    return largest if total is None else total + largest
