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

from zoo.storage.untrusted import faults_named

_MAX_LENGTH = 10_000
_FILE_NAME_DIGITS = 8
_MOST_LISTED = 12  # values of a column in a message
_LARGEST = sys.float_info.max
_EXACT_FLOATS = 2**53  # a smaller whole number is the same number as a float64, next to any column
_OPERATORS: dict[type[ast.cmpop], Callable] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_MIRROR = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}

_Mask = Bool[np.ndarray, " n"]
_Constant = str | int | float


@dataclass(frozen=True)
class Selection:
    """The rows that an expression chooses; two are equal where their expressions are written the same."""

    expression: str
    condition: ast.expr = field(compare=False, repr=False)
    """The expression as a tree of ``and``, ``or``, ``not`` and comparisons of a column with one other value."""

    @classmethod
    def parse(cls, text: str) -> "Selection":
        """Checks the syntax; whether the columns exist is checked when it is applied to a table."""
        if len(text) > _MAX_LENGTH:
            raise ValueError(f"the expression has {len(text):,} characters, at most {_MAX_LENGTH:,} are read")
        with faults_named(f"cannot read the expression {text!r}", SyntaxError, RecursionError, MemoryError):
            condition = _canonical(ast.parse(text.strip(), mode="eval").body)
            return cls(_written(condition), condition)

    def mask(self, table: pd.DataFrame) -> _Mask:
        """True for the chosen rows; an unknown column or a comparison of text with a number is a ValueError."""
        return _evaluate(self.condition, table)

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


def why_none(metadata: pd.DataFrame, where: Where) -> str:
    """The end of the message where no row fits: the expression, and the values of the columns that it names."""
    parsed = Selection.parse(where) if isinstance(where, str) else where
    if not isinstance(parsed, Selection):
        return f"the given where: there are {len(metadata):,} rows"
    described = []
    for name in dict.fromkeys(node.id for node in ast.walk(parsed.condition) if isinstance(node, ast.Name)):
        values = sorted(set(column := _column(metadata, name)))
        if len(values) <= _MOST_LISTED:
            described.append(f"{name} is one of {', '.join(str(value) for value in values)}")
        elif _is_text(column):
            described.append(f"{name} has {len(values):,} values, such as {values[0]}")
        else:
            described.append(f"{name} lies between {values[0]:g} and {values[-1]:g}")
    return f"{where if isinstance(where, str) else parsed.expression!r}: {'; '.join(described)}"


def _canonical(node: ast.expr) -> ast.expr:
    """The condition in canonical form; anything but a condition is a ValueError."""
    match node:
        case ast.BoolOp(op=op, values=values):
            return _joined(op, [_canonical(value) for value in values])
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            match _canonical(operand):
                case ast.UnaryOp(operand=positive):
                    return positive
                case ast.Compare(left=left, ops=[ast.In() | ast.NotIn() as op], comparators=values):
                    return ast.Compare(left, [ast.NotIn() if isinstance(op, ast.In) else ast.In()], values)
                case condition:
                    return ast.UnaryOp(ast.Not(), condition)
        case ast.Compare(left=left, ops=ops, comparators=others):
            sides = zip([left, *others], ops, others, strict=False)
            return _joined(ast.And(), [_comparison(*each) for each in sides])
    raise _unreadable(node)


def _joined(op: ast.boolop, conditions: Sequence[ast.expr]) -> ast.expr:
    """The conditions joined by ``and`` or ``or``: each once, in the order of their texts, nested ones of the same kind
    taken apart."""
    operands: dict[str, ast.expr] = {}
    for each in conditions:
        nested = each.values if isinstance(each, ast.BoolOp) and type(each.op) is type(op) else [each]
        operands |= {_written(operand): operand for operand in nested}
    if len(operands) == 1:
        return next(iter(operands.values()))
    return ast.BoolOp(op, [operands[text] for text in sorted(operands)])


def _comparison(left: ast.expr, op: ast.cmpop, right: ast.expr) -> ast.Compare:
    """A column compared with a constant, another column or a list."""
    if isinstance(op, ast.In | ast.NotIn):
        if not isinstance(left, ast.Name):
            raise _unreadable(left)
        if not isinstance(right, ast.List | ast.Tuple | ast.Set):
            raise _unreadable(right)
        return ast.Compare(left, [op], [ast.List(_distinct([_constant(element) for element in right.elts]))])
    if type(op) not in _OPERATORS:
        raise _unreadable(left)
    a, b = (
        node if isinstance(node, ast.Name) else ast.Constant(_plain_number(_constant(node))) for node in (left, right)
    )
    if isinstance(a, ast.Name) and (not isinstance(b, ast.Name) or a.id <= b.id):
        return ast.Compare(a, [op], [b])
    if isinstance(b, ast.Name):
        return ast.Compare(b, [_MIRROR.get(type(op), type(op))()], [a])
    raise ValueError(f"neither {ast.unparse(left)!r} nor {ast.unparse(right)!r} is a column")


def _constant(node: ast.expr) -> _Constant:
    match node:
        case ast.Constant(value=str() | int() | float() as value) if not isinstance(value, bool):
            pass
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            value = -value
        case _:
            raise _unreadable(node)
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise ValueError(f"a number is too large: the largest that is read is {_LARGEST:g}")
    return value


def _unreadable(node: ast.expr) -> ValueError:
    return ValueError(
        f"{ast.unparse(node)!r} is not one of columns, numbers, quoted text, == != < <= > >=, in, and, or, not"
    )


def _written(condition: ast.expr) -> str:
    """The text of a condition; ``ast.unparse`` alone would put parentheses around only some operands."""
    match condition:
        case ast.BoolOp(op=op, values=values):
            word = " and " if isinstance(op, ast.And) else " or "
            return word.join(
                f"({_written(each)})" if isinstance(each, ast.BoolOp) else _written(each) for each in values
            )
        case ast.UnaryOp(operand=ast.BoolOp() as operand):
            return f"not ({_written(operand)})"
    return ast.unparse(condition)


def _evaluate(condition: ast.expr, table: pd.DataFrame) -> _Mask:
    match condition:
        case ast.BoolOp(op=op, values=values):
            join = np.logical_and if isinstance(op, ast.And) else np.logical_or
            return join.reduce([_evaluate(value, table) for value in values])
        case ast.UnaryOp(operand=operand):
            return ~_evaluate(operand, table)
        case ast.Compare(left=ast.Name() as column, ops=[op], comparators=[ast.List(elts=values)]):
            # one by one, like ==: pandas' isin would not find 0.9 in a column of float32
            members = np.zeros(len(_column(table, column.id)), dtype=bool)
            for value in values:
                members |= _compare(table, column, ast.Eq(), value)
            return members if isinstance(op, ast.In) else ~members
        case ast.Compare(left=column, ops=[op], comparators=[other]):
            return _compare(table, column, op, other)
    raise AssertionError(ast.dump(condition))


def _compare(table: pd.DataFrame, column: ast.expr, op: ast.cmpop, other: ast.expr) -> _Mask:
    left, right = (
        _column(table, side.id) if isinstance(side, ast.Name) else ast.literal_eval(side) for side in (column, other)
    )
    if _is_text(left) != _is_text(right):  # pandas would quietly find them unequal
        text, number = (column, other) if _is_text(left) else (other, column)
        raise ValueError(
            f"{ast.unparse(text)} is text and {ast.unparse(number)} is a number: "
            "compare text with text, numbers with numbers"
        )
    # a number beyond float32 is infinite beside a column of float32, which compares as it should
    with np.errstate(over="ignore"):
        return np.asarray(_OPERATORS[type(op)](left, right), dtype=bool)


def _column(table: pd.DataFrame, name: str) -> pd.Series:
    if name not in table.columns:
        raise ValueError(f"no column {name!r}: there are {', '.join(table.columns)}")
    column = table[name]
    assert isinstance(column, pd.Series)
    return column


def _distinct(values: list[_Constant]) -> list[ast.expr]:
    """The values of a list, numbers first, sorted, each once; a number that float64 rounds leaves all as they are."""
    if all(_is_exact(value) for value in values):
        values = [_plain_number(value) for value in values]
    by_text = {ast.unparse(ast.Constant(value)): value for value in values}
    texts = sorted(text for text, value in by_text.items() if isinstance(value, str))
    numbers = sorted((value, text) for text, value in by_text.items() if not isinstance(value, str))
    return [ast.Constant(by_text[text]) for text in (*(text for _, text in numbers), *texts)]


def _plain_number(value: _Constant) -> _Constant:
    """75 as 75.0 and -0.0 as 0.0, where that is the same number beside a column of any type."""
    return value if isinstance(value, str) or not _is_exact(value) else float(value) + 0.0


def _is_exact(value: _Constant) -> bool:
    return not isinstance(value, int) or abs(value) < _EXACT_FLOATS


def _is_text(value: object) -> bool:
    return not pd.api.types.is_numeric_dtype(value) if isinstance(value, pd.Series) else isinstance(value, str)
