"""Choosing rows by their metadata: ``checkpoint == 'epoch_75' and test_accuracy >= 0.8``.

The text is parsed, never executed. It knows comparisons (also chained: ``0.2 < test_accuracy < 0.8``), ``in`` and
``not in`` lists, ``and``, ``or``, ``not``, parentheses, column names, numbers and quoted text.

A ``Selection`` is an expression in its canonical form, so that different spellings of it are equal and have one name:
the column comes first, chains are written out, operands and lists are sorted and without duplicates, whole numbers are
written like 75.0. The canonical form chooses the same rows as the text it was made from.
"""

import ast
import hashlib
import operator
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
import pandas as pd
from jaxtyping import Bool

MAX_LENGTH = 10_000
FILE_NAME_DIGITS = 8
MOST_LISTED = 12  # values of a column in a message
LARGEST = sys.float_info.max
EXACT_FLOATS = 2**53  # a smaller whole number is the same number as a float64, next to any column
OPERATORS: dict[str, Callable] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
SYMBOLS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}

Mask = Bool[np.ndarray, " n"]
Constant = str | int | float


@dataclass(frozen=True)
class Selection:
    """The rows that an expression chooses. Selections are equal when their canonical expressions are."""

    expression: str
    condition: "Condition" = field(compare=False, repr=False)

    @classmethod
    def parse(cls, text: str) -> "Selection":
        """Checks the syntax; whether the columns exist is checked when the selection meets a table."""
        condition = ExpressionParser(text).parse()
        return cls(condition.text, condition)

    @property
    def file_suffix(self) -> str:
        """What tells the files of this selection apart from those of others: the start of a hash."""
        return hashlib.sha256(self.expression.encode()).hexdigest()[:FILE_NAME_DIGITS]

    def mask(self, metadata: pd.DataFrame) -> Mask:
        """True for the rows it chooses; an unknown column or a comparison of text with a number is a ValueError."""
        return self.condition.mask(metadata)


Where = str | Selection | Callable[[pd.DataFrame], object] | Sequence[bool] | np.ndarray | pd.Series | None


def select(metadata: pd.DataFrame, where: Where) -> Mask:
    """True for the rows that ``where`` chooses: a selection or its text, a function of the metadata, or a mask."""
    if where is None:
        return np.ones(len(metadata), dtype=bool)
    if isinstance(where, str):
        where = Selection.parse(where)
    if isinstance(where, Selection):
        return where.mask(metadata)
    mask = np.asarray(where(metadata) if callable(where) else where)
    if mask.dtype != bool or mask.shape != (len(metadata),):
        raise ValueError(f"where must give one bool per row, {len(metadata):,} in all, got {mask.dtype} {mask.shape}")
    return mask


def values_there_are(metadata: pd.DataFrame, where: Where) -> str:
    """What the columns that an expression names hold, for a message to someone who chose nothing."""
    if isinstance(where, str):
        where = Selection.parse(where)
    if not isinstance(where, Selection):
        return f"there are {len(metadata):,} rows"
    tree = ast.parse(where.expression, mode="eval")
    names = dict.fromkeys(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    return "; ".join(describe_column(name, Column(name).of(metadata)) for name in names)


def describe_column(name: str, column: pd.Series) -> str:
    values = sorted(set(column))
    if len(values) <= MOST_LISTED:
        return f"{name} is one of {', '.join(str(value) for value in values)}"
    if is_text(column):
        return f"{name} has {len(values):,} values, such as {values[0]}"
    return f"{name} lies between {values[0]:g} and {values[-1]:g}"


@runtime_checkable
class Condition(Protocol):
    """A part of an expression that is true or false for each row; ``text`` is its canonical form.

    The texts are kept, so that a deeply nested expression is written without recursion.
    """

    @cached_property
    def text(self) -> str: ...

    def mask(self, metadata: pd.DataFrame) -> Mask: ...


@dataclass(frozen=True)
class Column:
    name: str

    def of(self, metadata: pd.DataFrame) -> pd.Series:
        if self.name not in metadata.columns:
            raise ValueError(f"no column {self.name!r}: there are {', '.join(metadata.columns)}")
        column = metadata[self.name]
        assert isinstance(column, pd.Series)
        return column


@dataclass(frozen=True)
class Comparison:
    """A column compared with a constant or another column."""

    column: Column
    symbol: str
    other: Column | Constant

    @cached_property
    def text(self) -> str:
        return f"{self.column.name} {self.symbol} {as_text(self.other)}"

    def mask(self, metadata: pd.DataFrame) -> Mask:
        left = self.column.of(metadata)
        right = self.other.of(metadata) if isinstance(self.other, Column) else self.other
        check_kinds(self.column, left, self.other, right)
        # a number beyond float32 is infinite beside a column of float32, which compares as it should
        with np.errstate(over="ignore"):
            return np.asarray(OPERATORS[self.symbol](left, right), dtype=bool)


@dataclass(frozen=True)
class Membership:
    """Whether a column's value is one of some constants, or none of them."""

    column: Column
    values: tuple[Constant, ...]
    negated: bool

    @cached_property
    def text(self) -> str:
        listed = ", ".join(as_text(value) for value in self.values)
        return f"{self.column.name} {'not in' if self.negated else 'in'} [{listed}]"

    def mask(self, metadata: pd.DataFrame) -> Mask:
        # one by one, as == has it: pandas' isin would not find 0.9 in a column of float32
        members = np.zeros(len(self.column.of(metadata)), dtype=bool)
        for value in self.values:
            members |= Comparison(self.column, "==", value).mask(metadata)
        return ~members if self.negated else members


@dataclass(frozen=True)
class Negation:
    operand: Condition

    @cached_property
    def text(self) -> str:
        return f"not {operand_text(self.operand)}"

    def mask(self, metadata: pd.DataFrame) -> Mask:
        return ~self.operand.mask(metadata)


@dataclass(frozen=True)
class Combination:
    """Conditions joined by ``and`` or by ``or``; see ``combine``."""

    word: str
    operands: tuple[Condition, ...]

    @cached_property
    def text(self) -> str:
        return f" {self.word} ".join([operand_text(operand) for operand in self.operands])

    def mask(self, metadata: pd.DataFrame) -> Mask:
        join = np.logical_and if self.word == "and" else np.logical_or
        return join.reduce([operand.mask(metadata) for operand in self.operands])


class ExpressionParser:
    """From one text to its condition; whatever it does not know is a ValueError that shows the place."""

    def __init__(self, text: str) -> None:
        self.text = text

    def parse(self) -> Condition:
        if len(self.text) > MAX_LENGTH:
            raise ValueError(f"the expression has {len(self.text):,} characters, at most {MAX_LENGTH:,} are read")
        try:
            return self.condition(ast.parse(self.text.strip(), mode="eval").body)
        except (SyntaxError, RecursionError, MemoryError) as error:
            raise ValueError(f"cannot read the expression {self.text!r}: {error}") from error

    def condition(self, node: ast.expr) -> Condition:
        match node:
            case ast.BoolOp(op=op, values=values):
                return combine("and" if isinstance(op, ast.And) else "or", [self.condition(value) for value in values])
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return negate(self.condition(operand))
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                sides = [left, *comparators]
                return combine("and", [self.comparison(sides[i], op, sides[i + 1]) for i, op in enumerate(ops)])
        raise self.unreadable(node)

    def comparison(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Condition:
        if isinstance(op, ast.In | ast.NotIn):
            return Membership(self.column(left), distinct(self.constants(right)), isinstance(op, ast.NotIn))
        if type(op) not in SYMBOLS:
            raise self.unreadable(left)
        symbol, (a, b) = SYMBOLS[type(op)], (self.column_or_constant(side) for side in (left, right))
        if isinstance(a, Column) and (not isinstance(b, Column) or a.name <= b.name):
            return Comparison(a, symbol, b if isinstance(b, Column) else plain_number(b))
        if isinstance(b, Column):
            return Comparison(b, MIRRORED[symbol], a if isinstance(a, Column) else plain_number(a))
        raise ValueError(f"{quoted(left)} and {quoted(right)} in {self.text!r}: neither is a column")

    def column_or_constant(self, node: ast.expr) -> Column | Constant:
        return self.column(node) if isinstance(node, ast.Name) else self.constant(node)

    def column(self, node: ast.expr) -> Column:
        if not isinstance(node, ast.Name):
            raise self.unreadable(node)
        return Column(node.id)

    def constants(self, node: ast.expr) -> list[Constant]:
        if not isinstance(node, ast.List | ast.Tuple | ast.Set):
            raise self.unreadable(node)
        return [self.constant(element) for element in node.elts]

    def constant(self, node: ast.expr) -> Constant:
        match node:
            case ast.Constant(value=str() | int() | float() as value) if not isinstance(value, bool):
                pass
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                value = -value
            case _:
                raise self.unreadable(node)
        if isinstance(value, int) and abs(value) > LARGEST:
            raise ValueError(f"a number in {self.text[:80]!r} is too large: the largest that is read is {LARGEST:g}")
        return value

    def unreadable(self, node: ast.expr) -> ValueError:
        return ValueError(
            f"cannot read {quoted(node)} in {self.text!r}: use columns, numbers, quoted text, == != < <= > >=, in, "
            "and, or, not"
        )


def combine(word: str, conditions: Sequence[Condition]) -> Condition:
    """The conditions joined by ``and`` or ``or``: each once, in the order of their texts, nested ones of the same kind
    taken apart."""
    operands: dict[str, Condition] = {}
    for condition in conditions:
        parts = condition.operands if isinstance(condition, Combination) and condition.word == word else (condition,)
        operands |= {part.text: part for part in parts}
    ordered = tuple(operands[text] for text in sorted(operands))
    return ordered[0] if len(ordered) == 1 else Combination(word, ordered)


def negate(condition: Condition) -> Condition:
    match condition:
        case Negation(operand=operand):
            return operand
        case Membership(negated=negated):
            return replace(condition, negated=not negated)
    return Negation(condition)


def distinct(values: Iterable[Constant]) -> tuple[Constant, ...]:
    """The values of a list, sorted, each once.

    pandas compares a list as a whole, with or without rounding to float64, so large numbers leave all as they are.
    """
    values = list(values)
    if all(is_exact(value) for value in values):
        values = [plain_number(value) for value in values]
    by_text = {as_text(value): value for value in values}
    texts = sorted(text for text, value in by_text.items() if isinstance(value, str))
    numbers = sorted((value, text) for text, value in by_text.items() if not isinstance(value, str))
    return tuple(by_text[text] for text in (*(text for _, text in numbers), *texts))


def plain_number(value: Constant) -> Constant:
    """75 as 75.0 and -0.0 as 0.0, where that is the same number beside a column of any type."""
    return value if isinstance(value, str) or not is_exact(value) else float(value) + 0.0


def is_exact(value: Constant) -> bool:
    return not isinstance(value, int) or abs(value) < EXACT_FLOATS


def as_text(value: Column | Constant) -> str:
    return value.name if isinstance(value, Column) else ast.unparse(ast.Constant(value))


def operand_text(condition: Condition) -> str:
    return f"({condition.text})" if isinstance(condition, Combination) else condition.text


def check_kinds(column: Column, values: pd.Series, other: Column | Constant, other_values: object) -> None:
    """Text is compared with text and numbers with numbers; anything else would be quietly false."""
    if is_text(values) != is_text(other_values):
        text, number = (column, other) if is_text(values) else (other, column)
        raise ValueError(
            f"{as_text(text)} is text and {as_text(number)} is a number: compare text with text, numbers with numbers"
        )


def is_text(value: object) -> bool:
    return not pd.api.types.is_numeric_dtype(value) if isinstance(value, pd.Series) else isinstance(value, str)


def quoted(node: ast.expr) -> str:
    return repr(ast.unparse(node))
