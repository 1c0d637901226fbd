"""Every term of the paper's equivariant and invariant polynomial layers, as a table.

A term adds to one tensor of the output (its target) the contraction of one tensor of the input (its source) with a
learned coefficient. The einsum is the paper's own (appendix:pseudocode_equivariant, appendix:pseudocode_invariant) with
its letters: b batch, d channels in, e channels out, h heads. Indices of the target that the einsum does not produce are
broadcast. Sources besides the eight weight tensors are the products of def:additional_terms,

    qk = [WW]^(QK,s) = W^(Q,s)·(W^(K,s))ᵀ        vo = [WW]^(VO,s) = W^(V,s)·W^(O,s)        one = 1.

Where the paper's formula and pseudocode disagree, the choice that is equivariant is taken:

- [E(W)]^(Q,i), (K,i), (V,i): the bullet formula writes [W]_{p,q} where thm:equivariant_layer and the einsum have
  [W]_{p,k}.
- Φ^{(B):•,k} in [E(W)]^(B): the pseudocode's ``.unsqueeze(0)`` alone would align channels with rows; the formula,
  constant in the row j, needs ``.unsqueeze(0).unsqueeze(-2)``.
- I(U): the bullet formula sums twice over the heads s; thm:invariant_layer and the einsum sum once.
"""

from dataclasses import dataclass, fields
from functools import cached_property
from math import prod

from zoo import BlockWeights, TransformerSpec

TENSOR_NAMES = tuple(field.name for field in fields(BlockWeights))

# The axes of every source; the same names stand for the axes of the targets.
AXES: dict[str, tuple[str, ...]] = {
    "query": ("h", "D", "D_k"),
    "key": ("h", "D", "D_k"),
    "value": ("h", "D", "D_v"),
    "output": ("h", "D_v", "D"),
    "weight_a": ("D", "D_A"),
    "weight_b": ("D_A", "D"),
    "bias_a": ("D_A",),
    "bias_b": ("D",),
    "qk": ("h", "D", "D"),
    "vo": ("h", "D", "D"),
    "one": (),
    "invariant": ("D'",),
}
ATTENTION = ("query", "key", "value", "output")
# The inner dimension of a product: each of its entries is a sum of that many products of weights.
_INNER = {"qk": "D_k", "vo": "D_v"}


def sizes(spec: TransformerSpec, invariant_dim: int = 1) -> dict[str, int]:
    """The length of every axis, by the paper's letter."""
    return {
        "h": spec.heads,
        "D": spec.dim,
        "D_k": spec.key_dim,
        "D_v": spec.value_dim,
        "D_A": spec.hidden_dim,
        "D'": invariant_dim,
    }


@dataclass(frozen=True)
class Term:
    """One line of the table.

    ``label`` is the paper's coefficient; ``number`` its subscript where several share the symbol.
    """

    target: str
    source: str
    einsum: str
    label: str
    number: int | None = None

    @property
    def name(self) -> str:
        """target.source, with the paper's subscript where there is one."""
        return f"{self.target}.{self.source}" + (f".{self.number}" if self.number else "")

    @cached_property
    def _operands(self) -> tuple[str, str, str]:
        """Letters of source, coefficient and output, without batch and channels; heads are kept."""
        inputs, output = self.einsum.split("->")
        *source, coefficient = inputs.split(",")
        return "".join(source).lstrip("bd"), coefficient.lstrip("ed"), output.lstrip("be")

    @cached_property
    def source_letters(self) -> str:
        """The letters of the source's axes; products come summed over heads."""
        return self._operands[0].removeprefix("h") if self.source in _INNER else self._operands[0]

    @cached_property
    def target_letters(self) -> str:
        """The letters of the target's axes: h, j, k with as many of j, k as it has."""
        rank = len(AXES[self.target])
        return "hjk" if self.target in ATTENTION else "jk"[2 - rank :]

    @cached_property
    def axis(self) -> dict[str, str]:
        """Letter → axis, for all letters of the einsum."""
        letters = dict(zip(self.target_letters, AXES[self.target], strict=True))
        return letters | dict(zip(self._operands[0], AXES[self.source], strict=True))

    @cached_property
    def kept(self) -> str:
        """Source letters that pass to the output untouched: the term acts on each of their positions alike."""
        source, coefficient, output = self._operands
        return "".join(letter for letter in source if letter in output and letter not in coefficient)

    @cached_property
    def contracted(self) -> str:
        """Source letters that the coefficient has too."""
        return "".join(letter for letter in self._operands[0] if letter in self.coefficient_letters)

    @cached_property
    def created(self) -> str:
        """Output letters that only the coefficient has."""
        return "".join(letter for letter in self.coefficient_letters if letter not in self._operands[0])

    @cached_property
    def coefficient_letters(self) -> str:
        """The coefficient's letters after e and d, in the paper's order."""
        return self._operands[1]

    def fan_in(self, size: dict[str, int], in_channels: int) -> int:
        """How many products of independent weights one output entry sums: d times every axis that is not kept."""
        summed = prod(size[self.axis[letter]] for letter in self._operands[0] if letter not in self.kept)
        return in_channels * summed * (size[_INNER[self.source]] if self.source in _INNER else 1)


EQUIVARIANT_TERMS: tuple[Term, ...] = (
    Term("query", "query", "bdhpk,edjp->behjk", "Φ^{(Q:•):j,•}_{(Q:•):p,•}"),
    Term("key", "key", "bdhpk,edjp->behjk", "Φ^{(K:•):j,•}_{(K:•):p,•}"),
    Term("value", "value", "bdhpk,edjp->behjk", "Φ^{(V:•):j,•}_{(V:•):p,•}"),
    Term("output", "output", "bdhjk,ed->behj", "(Φ^{(O:•):•,•}_{(O:•):•,•})_1", 1),
    Term("output", "output", "bdhjk,ed->behjk", "(Φ^{(O:•):•,•}_{(O:•):•,•})_2", 2),
    Term("weight_a", "qk", "bdhpq,edpq->be", "Φ^{(A):•,•}_{(QK,•):p,q}"),
    Term("weight_a", "vo", "bdhpq,edp->be", "(Φ^{(A):•,•}_{(VO,•):p,•})_1", 1),
    Term("weight_a", "vo", "bdhpj,edp->bej", "(Φ^{(A):•,•}_{(VO,•):p,•})_2", 2),
    Term("weight_a", "weight_a", "bdpq,ed->be", "(Φ^{(A):•,•}_{(A):•,•})_1", 1),
    Term("weight_a", "weight_a", "bdjq,ed->bej", "(Φ^{(A):•,•}_{(A):•,•})_2", 2),
    Term("weight_a", "weight_a", "bdpk,ed->bek", "(Φ^{(A):•,•}_{(A):•,•})_3", 3),
    Term("weight_a", "weight_a", "bdjk,ed->bejk", "(Φ^{(A):•,•}_{(A):•,•})_4", 4),
    Term("weight_a", "weight_b", "bdpq,edq->be", "(Φ^{(A):•,•}_{(B):•,q})_1", 1),
    Term("weight_a", "weight_b", "bdkq,edq->bek", "(Φ^{(A):•,•}_{(B):•,q})_2", 2),
    Term("weight_a", "bias_a", "bdq,ed->be", "(Φ^{(A):•,•}_{(A):•})_1", 1),
    Term("weight_a", "bias_a", "bdk,ed->bek", "(Φ^{(A):•,•}_{(A):•})_2", 2),
    Term("weight_a", "bias_b", "bdq,edq->be", "Φ^{(A):•,•}_{(B):q}"),
    Term("weight_a", "one", "e->e", "Φ^{(A):•,•}"),
    Term("bias_a", "qk", "bdhpq,edpq->be", "Φ^{(A):•}_{(QK,•):p,q}"),
    Term("bias_a", "vo", "bdhpq,edp->be", "Φ^{(A):•}_{(VO,•):p,•}"),
    Term("bias_a", "weight_a", "bdpq,ed->be", "(φ^{(A):•}_{(A):•,•})_1", 1),
    Term("bias_a", "weight_a", "bdpk,ed->bek", "(φ^{(A):•}_{(A):•,•})_2", 2),
    Term("bias_a", "weight_b", "bdpq,edq->be", "(Φ^{(A):•}_{(B):•,q})_1", 1),
    Term("bias_a", "weight_b", "bdkq,edq->bek", "(Φ^{(A):•}_{(B):•,q})_2", 2),
    Term("bias_a", "bias_a", "bdq,ed->be", "(Φ^{(A):•}_{(A):•})_1", 1),
    Term("bias_a", "bias_a", "bdk,ed->bek", "(Φ^{(A):•}_{(A):•})_2", 2),
    Term("bias_a", "bias_b", "bdq,edq->be", "Φ^{(A):•}_{(B):q}"),
    Term("bias_a", "one", "e->e", "Φ^{(A):•}"),
    Term("weight_b", "qk", "bdhpq,edkpq->bek", "Φ^{(B):•,k}_{(QK,•):p,q}"),
    Term("weight_b", "vo", "bdhpq,edkp->bek", "Φ^{(B):•,k}_{(VO,•):p,•}"),
    Term("weight_b", "weight_a", "bdpq,edk->bek", "(Φ^{(B):•,k}_{(A):•,•})_1", 1),
    Term("weight_b", "weight_a", "bdpj,edk->bejk", "(Φ^{(B):•,k}_{(A):•,•})_2", 2),
    Term("weight_b", "weight_b", "bdpq,edkq->bek", "(Φ^{(B):•,k}_{(B):•,q})_1", 1),
    Term("weight_b", "weight_b", "bdjq,edkq->bejk", "(Φ^{(B):•,k}_{(B):•,q})_2", 2),
    Term("weight_b", "bias_a", "bdq,edk->bek", "(Φ^{(B):•,k}_{(A):•})_1", 1),
    Term("weight_b", "bias_a", "bdj,edk->bejk", "(Φ^{(B):•,k}_{(A):•})_2", 2),
    Term("weight_b", "bias_b", "bdq,edkq->bek", "Φ^{(B):•,k}_{(B):q}"),
    Term("weight_b", "one", "ek->ek", "Φ^{(B):•,k}"),
    Term("bias_b", "qk", "bdhpq,edkpq->bek", "Φ^{(B):k}_{(QK,•):p,q}"),
    Term("bias_b", "vo", "bdhpq,edkp->bek", "Φ^{(B):k}_{(VO,•):p,•}"),
    Term("bias_b", "weight_a", "bdpq,edk->bek", "Φ^{(B):k}_{(A):•,•}"),
    Term("bias_b", "weight_b", "bdpq,edkq->bek", "Φ^{(B):k}_{(B):•,q}"),
    Term("bias_b", "bias_a", "bdq,edk->bek", "Φ^{(B):k}_{(A):•}"),
    Term("bias_b", "bias_b", "bdq,edkq->bek", "Φ^{(B):k}_{(B):q}"),
    Term("bias_b", "one", "ek->ek", "Φ^{(B):k}"),
)

INVARIANT_TERMS: tuple[Term, ...] = (
    Term("invariant", "qk", "bdhpq,edpqk->bek", "Φ_{(QK,•):p,q}"),
    Term("invariant", "vo", "bdhpq,edpk->bek", "Φ_{(VO,•):p,•}"),
    Term("invariant", "weight_a", "bdpq,edk->bek", "Φ_{(A):•,•}"),
    Term("invariant", "weight_b", "bdpq,edqk->bek", "Φ_{(B):•,q}"),
    Term("invariant", "bias_a", "bdq,edk->bek", "Φ_{(A):•}"),
    Term("invariant", "bias_b", "bdq,edqk->bek", "Φ_{(B):q}"),
    Term("invariant", "one", "ek->ek", "Φ_1"),
)
