"""Choosing rows by their metadata: ``checkpoint == 'epoch_75' and test_accuracy >= 0.8``.

The text is parsed, never executed. It may hold comparisons (also chained: ``0.2 < test_accuracy < 0.8``), ``in`` and
``not in`` lists, ``and``, ``or``, ``not``, parentheses, column names, numbers and quoted text.

A ``Selection`` writes its expression in one way, because shards of ``--sample --where``, result rows and file names are
found by that text: the column comes first, chains are written out, operands and lists are sorted and without
duplicates, whole numbers are written like 75.0. Both spellings choose the same rows.
"""

import ast
import hashlib
import operator
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from jaxtyping import Bool

_MAX_LENGTH = 10_000
_FILE_NAME_DIGITS = 8
_MOST_LISTED = 12  # values of a column in a message
_LARGEST = sys.float_info.max
_EXACT_FLOATS = 2**53  # a smaller whole number is the same number as a float64, next to any column
_OPERATORS: dict[str, Callable] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SYMBOLS: dict[type[ast.cmpop], str] = dict(
    zip((ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE), _OPERATORS, strict=True)
)
_MIRROR = str.maketrans("<>", "><")

_Mask = Bool[np.ndarray, " n"]
_Constant = str | int | float
_MaskOf = Callable[[pd.DataFrame], _Mask]


@dataclass(frozen=True)
class Selection:
    """The rows that an expression chooses; two are equal where their expressions are written the same."""

    expression: str
    mask: _MaskOf = field(compare=False, repr=False)
    """True for the rows it chooses; an unknown column or a comparison of text with a number is a ValueError."""

    @classmethod
    def parse(cls, text: str) -> "Selection":
        """Checks the syntax; whether the columns exist is checked when the selection meets a table."""
        if len(text) > _MAX_LENGTH:
            raise ValueError(f"the expression has {len(text):,} characters, at most {_MAX_LENGTH:,} are read")
        try:
            condition = _Parser(text).condition(ast.parse(text.strip(), mode="eval").body)
        except (SyntaxError, RecursionError, MemoryError) as error:
            raise ValueError(f"cannot read the expression {text!r}: {error}") from error
        return cls(condition.text, condition.mask)

    @property
    def file_suffix(self) -> str:
        """The start of a hash, which keeps the files of this selection apart from those of others."""
        return hashlib.sha256(self.expression.encode()).hexdigest()[:_FILE_NAME_DIGITS]


Where = str | Selection | Callable[[pd.DataFrame], object] | Sequence[bool] | np.ndarray | pd.Series | None


def select(metadata: pd.DataFrame, where: Where) -> _Mask:
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
    """The values of the columns that an expression names, for the message where it chose no row."""
    if isinstance(where, str):
        where = Selection.parse(where)
    if not isinstance(where, Selection):
        return f"there are {len(metadata):,} rows"
    tree = ast.parse(where.expression, mode="eval")
    names = dict.fromkeys(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    return "; ".join(_describe_column(name, _column(metadata, name)) for name in names)


def _describe_column(name: str, column: pd.Series) -> str:
    values = sorted(set(column))
    if len(values) <= _MOST_LISTED:
        return f"{name} is one of {', '.join(str(value) for value in values)}"
    if _is_text(column):
        return f"{name} has {len(values):,} values, such as {values[0]}"
    return f"{name} lies between {values[0]:g} and {values[-1]:g}"


@dataclass(frozen=True)
class _Condition:
    """A part of an expression: its text, and for each row of a table whether it is true.

    The text is written once, from those of the parts, so that a deeply nested expression needs no recursion.
    """

    text: str
    mask: _MaskOf
    word: str = ""
    """How it is joined from ``operands``: by ``and``, by ``or``, or not at all."""
    operands: "tuple[_Condition, ...]" = ()
    negated: "Callable[[], _Condition] | None" = None
    """Its opposite, where that is not written with ``not``."""

    @property
    def as_operand(self) -> str:
        return f"({self.text})" if self.word else self.text


@dataclass(frozen=True)
class _Column:
    name: str


@dataclass(frozen=True)
class _Parser:
    """From one text to its condition; whatever it cannot read is a ValueError that shows the part of the text."""

    text: str

    def condition(self, node: ast.expr) -> _Condition:
        match node:
            case ast.BoolOp(op=op, values=values):
                return _joined("and" if isinstance(op, ast.And) else "or", [self.condition(value) for value in values])
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return _negation(self.condition(operand))
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                sides = [left, *comparators]
                return _joined("and", [self.comparison(sides[i], op, sides[i + 1]) for i, op in enumerate(ops)])
        raise self.unreadable(node)

    def comparison(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> _Condition:
        if isinstance(op, ast.In | ast.NotIn):
            if not isinstance(left, ast.Name):
                raise self.unreadable(left)
            if not isinstance(right, ast.List | ast.Tuple | ast.Set):
                raise self.unreadable(right)
            values = _distinct([self.constant(element) for element in right.elts])
            return _membership(_Column(left.id), values, isinstance(op, ast.NotIn))
        if type(op) not in _SYMBOLS:
            raise self.unreadable(left)
        symbol, (a, b) = _SYMBOLS[type(op)], (self.side(node) for node in (left, right))
        if isinstance(a, _Column) and (not isinstance(b, _Column) or a.name <= b.name):
            return _comparison(a, symbol, b)
        if isinstance(b, _Column):
            return _comparison(b, symbol.translate(_MIRROR), a)
        raise ValueError(f"{_quoted(left)} and {_quoted(right)} in {self.text!r}: neither is a column")

    def side(self, node: ast.expr) -> _Column | _Constant:
        return _Column(node.id) if isinstance(node, ast.Name) else _plain_number(self.constant(node))

    def constant(self, node: ast.expr) -> _Constant:
        match node:
            case ast.Constant(value=str() | int() | float() as value) if not isinstance(value, bool):
                pass
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                value = -value
            case _:
                raise self.unreadable(node)
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise ValueError(f"a number in {self.text[:80]!r} is too large: the largest that is read is {_LARGEST:g}")
        return value

    def unreadable(self, node: ast.expr) -> ValueError:
        return ValueError(
            f"cannot read {_quoted(node)} in {self.text!r}: use columns, numbers, quoted text, == != < <= > >=, in, "
            "and, or, not"
        )


def _joined(word: str, conditions: Sequence[_Condition]) -> _Condition:
    """The conditions joined by ``and`` or ``or``: each once, in the order of their texts, nested ones of the same kind
    taken apart."""
    parts = [part for each in conditions for part in (each.operands if each.word == word else (each,))]
    operands = tuple(dict(sorted({part.text: part for part in parts}.items())).values())
    if len(operands) == 1:
        return operands[0]
    join = np.logical_and if word == "and" else np.logical_or
    text = f" {word} ".join(operand.as_operand for operand in operands)
    return _Condition(text, lambda table: join.reduce([each.mask(table) for each in operands]), word, operands)


def _negation(condition: _Condition) -> _Condition:
    if condition.negated is not None:
        return condition.negated()
    return _Condition(f"not {condition.as_operand}", lambda table: ~condition.mask(table), negated=lambda: condition)


def _membership(column: _Column, values: tuple[_Constant, ...], negated: bool) -> _Condition:
    """Whether a column's value is one of some constants, or none of them."""

    def mask(table: pd.DataFrame) -> _Mask:
        # one by one, as == has it: pandas' isin would not find 0.9 in a column of float32
        members = np.zeros(len(_column(table, column.name)), dtype=bool)
        for value in values:
            members |= _comparison(column, "==", value).mask(table)
        return ~members if negated else members

    text = f"{column.name} {'not in' if negated else 'in'} [{', '.join(map(_as_text, values))}]"
    return _Condition(text, mask, negated=lambda: _membership(column, values, not negated))


def _comparison(column: _Column, symbol: str, other: _Column | _Constant) -> _Condition:
    """A column compared with a constant or another column."""

    def mask(table: pd.DataFrame) -> _Mask:
        left = _column(table, column.name)
        right = _column(table, other.name) if isinstance(other, _Column) else other
        if _is_text(left) != _is_text(right):  # pandas would quietly find them unequal
            text, number = (column, other) if _is_text(left) else (other, column)
            raise ValueError(
                f"{_as_text(text)} is text and {_as_text(number)} is a number: "
                "compare text with text, numbers with numbers"
            )
        # a number beyond float32 is infinite beside a column of float32, which compares as it should
        with np.errstate(over="ignore"):
            return np.asarray(_OPERATORS[symbol](left, right), dtype=bool)

    return _Condition(f"{column.name} {symbol} {_as_text(other)}", mask)


def _column(table: pd.DataFrame, name: str) -> pd.Series:
    if name not in table.columns:
        raise ValueError(f"no column {name!r}: there are {', '.join(table.columns)}")
    column = table[name]
    assert isinstance(column, pd.Series)
    return column


def _distinct(values: list[_Constant]) -> tuple[_Constant, ...]:
    """The values of a list, sorted, each once; a number that float64 rounds leaves all numbers as they are."""
    if all(_is_exact(value) for value in values):
        values = [_plain_number(value) for value in values]
    by_text = {_as_text(value): value for value in values}
    texts = sorted(text for text, value in by_text.items() if isinstance(value, str))
    numbers = sorted((value, text) for text, value in by_text.items() if not isinstance(value, str))
    return tuple(by_text[text] for text in (*(text for _, text in numbers), *texts))


def _plain_number(value: _Constant) -> _Constant:
    """75 as 75.0 and -0.0 as 0.0, where that is the same number beside a column of any type."""
    return value if isinstance(value, str) or not _is_exact(value) else float(value) + 0.0


def _is_exact(value: _Constant) -> bool:
    return not isinstance(value, int) or abs(value) < _EXACT_FLOATS


def _as_text(value: _Column | _Constant) -> str:
    return value.name if isinstance(value, _Column) else ast.unparse(ast.Constant(value))


def _is_text(value: object) -> bool:
    return not pd.api.types.is_numeric_dtype(value) if isinstance(value, pd.Series) else isinstance(value, str)


def _quoted(node: ast.expr) -> str:
    return repr(ast.unparse(node))
