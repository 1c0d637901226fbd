"""Choosing rows by their metadata: ``checkpoint == 'epoch_75' and test_accuracy >= 0.8``.

The text is parsed, never executed. It knows comparisons (also chained: ``0.2 < test_accuracy < 0.8``), ``in`` and
``not in`` lists, ``and``, ``or``, ``not``, parentheses, column names, numbers and quoted text.
"""

import ast
import operator
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from jaxtyping import Bool

Mask = Bool[np.ndarray, " n"]
Where = str | Callable[[pd.DataFrame], object] | Sequence[bool] | np.ndarray | pd.Series | None

MAX_LENGTH = 10_000
COMPARISONS: dict[type[ast.cmpop], Callable] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def select(metadata: pd.DataFrame, where: Where) -> Mask:
    """True for the rows that ``where`` chooses: an expression, a function of the metadata, or a mask itself."""
    if where is None:
        return np.ones(len(metadata), dtype=bool)
    if isinstance(where, str):
        return evaluate_expression(metadata, where)
    mask = np.asarray(where(metadata) if callable(where) else where)
    if mask.dtype != bool or mask.shape != (len(metadata),):
        raise ValueError(f"where must give one bool a row, {len(metadata):,} in all, got {mask.dtype} {mask.shape}")
    return mask


def evaluate_expression(metadata: pd.DataFrame, text: str) -> Mask:
    """The mask of an expression; whatever it does not know is a ValueError that shows the place."""
    if len(text) > MAX_LENGTH:
        raise ValueError(f"the expression has {len(text):,} characters, at most {MAX_LENGTH:,} are read")
    try:
        tree = ast.parse(text.strip(), mode="eval")
        return Expression(metadata, text).mask(tree.body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"cannot read the expression {text!r}: {error}") from error


class Expression:
    """One expression over one table."""

    def __init__(self, metadata: pd.DataFrame, text: str) -> None:
        self.metadata = metadata
        self.text = text

    def mask(self, node: ast.expr) -> Mask:
        """A node that is true or false for each row."""
        match node:
            case ast.BoolOp(op=op, values=values):
                combine = np.logical_and if isinstance(op, ast.And) else np.logical_or
                return combine.reduce([self.mask(value) for value in values])
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return ~self.mask(operand)
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                sides = [left, *comparators]
                parts = [self.compare(sides[i], op, sides[i + 1]) for i, op in enumerate(ops)]
                return np.logical_and.reduce(parts)
        raise self.unreadable(node)

    def compare(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Mask:
        if isinstance(op, ast.In | ast.NotIn):
            column, values = self.column(left), self.constants(right)
            for value in values:
                self.check_kinds(left, column, right, value)
            found = column.isin(values).to_numpy(dtype=bool)
            return found if isinstance(op, ast.In) else ~found
        if type(op) not in COMPARISONS:
            raise self.unreadable(left)
        a, b = (self.column(side) if isinstance(side, ast.Name) else self.constant(side) for side in (left, right))
        if not isinstance(a, pd.Series) and not isinstance(b, pd.Series):
            raise ValueError(f"{self.quote(left)} and {self.quote(right)} in {self.text!r}: neither is a column")
        self.check_kinds(left, a, right, b)
        return np.asarray(COMPARISONS[type(op)](a, b), dtype=bool)

    def column(self, node: ast.expr) -> pd.Series:
        if not isinstance(node, ast.Name):
            raise self.unreadable(node)
        if node.id not in self.metadata.columns:
            raise ValueError(f"no column {node.id!r} in {self.text!r}: there are {', '.join(self.metadata.columns)}")
        column = self.metadata[node.id]
        assert isinstance(column, pd.Series)
        return column

    def constants(self, node: ast.expr) -> list[str | int | float]:
        if not isinstance(node, ast.List | ast.Tuple | ast.Set):
            raise self.unreadable(node)
        return [self.constant(element) for element in node.elts]

    def constant(self, node: ast.expr) -> str | int | float:
        match node:
            case ast.Constant(value=str() | int() | float() as value) if not isinstance(value, bool):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                return -value
        raise self.unreadable(node)

    def check_kinds(self, left: ast.expr, a: object, right: ast.expr, b: object) -> None:
        """Text is compared with text and numbers with numbers; the rest would be quietly false."""
        if is_text(a) != is_text(b):
            raise ValueError(f"{self.quote(left)} and {self.quote(right)} in {self.text!r}: one is text, one a number")

    def unreadable(self, node: ast.expr) -> ValueError:
        return ValueError(
            f"cannot read {self.quote(node)} in {self.text!r}: use columns, numbers, quoted text, == != < <= > >=, in, "
            "and, or, not"
        )

    def quote(self, node: ast.expr) -> str:
        return f"«{ast.unparse(node)}»"


def is_text(value: object) -> bool:
    return not pd.api.types.is_numeric_dtype(value) if isinstance(value, pd.Series) else isinstance(value, str)
