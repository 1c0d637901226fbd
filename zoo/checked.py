"""Values from outside (a task file, a card, a manifest, a command line), checked against the types they should have.

    @dataclass(frozen=True)
    class Grid:
        dropout: tuple[Annotated[float, Meta(ge=0, le=0.99)], ...] = (0.0,)

    checked({"dropout": [1.5]}, Grid, "digits.toml: ")
    ValueError: digits.toml: dropout: each value must be a number from 0 to 0.99, got 1.5

msgspec converts and finds the fault; the message is made here from the type, so that it names the rule and the value.
"""

import re
import sys
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec
from msgspec import Meta
from msgspec import inspect as kinds

_T = TypeVar("_T")
_FAULT = re.compile(r"(.*) - at `\$?(.*)`", re.DOTALL)
_LONGEST = 2000  # of what is printed in one line
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")

_NOT_BLANK, _SHA256 = r"\S", r"\A[0-9a-f]{64}\Z"

Text = Annotated[str, Meta(pattern=_NOT_BLANK)]
"""Text that is not blank."""
LARGEST = sys.float_info.max
"""As a limit it is not mentioned: it only keeps infinity out."""
Positive = Annotated[float, Meta(gt=0, le=LARGEST)]
NotNegative = Annotated[float, Meta(ge=0, le=LARGEST)]
Count = Annotated[int, Meta(ge=1, lt=1 << 62)]
CountOrZero = Annotated[int, Meta(ge=0, lt=1 << 62)]
Seed = Annotated[int, Meta(ge=0, lt=1 << 32)]
Sha256 = Annotated[str, Meta(pattern=_SHA256)]


def checked(raw: Any, kind: type[_T] | Any, where: str, *, strict: bool = True) -> _T:
    """``raw`` as a ``kind``; the first fault is a ValueError that begins with ``where``.

    ``kind`` is a dataclass or any type that msgspec converts to. Keys that it lacks are refused. If not ``strict``,
    text such as "3" is read as the number it should be.
    """
    _refuse_unknown(raw, _kind_of(kind), [], where)
    try:
        return msgspec.convert(raw, kind, strict=strict, dec_hook=_path)
    except msgspec.ValidationError as error:
        raise ValueError(f"{where}{_explained(error, raw, _kind_of(kind))}") from error


def check_fields(instance: Any) -> None:
    """Refuses a dataclass with a value that its field's type does not allow; to be called in ``__post_init__``."""
    # not vars(instance): msgspec leaves a default to the class
    values = {field.name: getattr(instance, field.name) for field in fields(instance)}
    try:
        msgspec.convert(values, _values_of(type(instance)), dec_hook=_path)
    except msgspec.ValidationError as error:
        raise ValueError(_explained(error, values, _kind_of(_values_of(type(instance))))) from error


def allowed(hint: Any) -> str:
    """The values of a type in words, such as "a number from 0 to 0.99"."""
    return _in_words(_kind_of(hint))


def shown(value: Any) -> str:
    """A value for a message, not longer than a line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def printable(text: object) -> str:
    r"""The text in one line, every character that is not printable in Python's notation, such as ``\x1b``.

    That takes away escape sequences (colors, titles, links, the cursor), line breaks, and the characters that turn
    the direction of what follows.
    """
    text = str(text)
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}… ({len(text):,} characters)"
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _path(kind: type, value: Any) -> Any:
    """The one type of our fields that msgspec does not convert to."""
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    raise TypeError(f"{shown(value)} is not a {kind.__name__}")


@cache
def _kind_of(hint: Any) -> kinds.Type:
    return kinds.type_info(hint)


@cache
def _values_of(cls: type) -> type:
    """The fields of a dataclass, as a type whose instances check nothing when they are made."""
    hints = get_type_hints(cls, include_extras=True)
    return msgspec.defstruct(cls.__name__, [(field.name, hints[field.name]) for field in fields(cls)], kw_only=True)


def _bare(kind: kinds.Type) -> kinds.Type:
    """The type without its metadata, and without None where one other type is allowed too."""
    while isinstance(kind, kinds.Metadata):
        kind = kind.type
    if isinstance(kind, kinds.UnionType):
        others = [each for each in kind.types if not isinstance(each, kinds.NoneType)]
        return _bare(others[0]) if len(others) == 1 else kind
    return kind


def _refuse_unknown(raw: Any, kind: kinds.Type, names: list[str], where: str) -> None:
    """msgspec ignores the keys that a dataclass does not have."""
    if not isinstance(raw, dict | list | tuple | Mapping):
        return
    kind = _bare(kind)
    if isinstance(kind, kinds.DataclassType) and isinstance(raw, Mapping):
        known = {field.name: field.type for field in kind.fields}
        for key, value in raw.items():
            if key not in known:
                raise ValueError(f"{where}{_named([*names, shown(key)])} is not a key: there are {', '.join(known)}")
            _refuse_unknown(value, known[key], [*names, key], where)
    elif isinstance(kind, kinds.ListType | kinds.VarTupleType) and isinstance(raw, list | tuple):
        for value in raw:
            _refuse_unknown(value, kind.item_type, names, where)
    elif isinstance(kind, kinds.DictType) and isinstance(raw, Mapping):
        for key, value in raw.items():
            _refuse_unknown(value, kind.value_type, [*names, str(key)], where)


def _explained(error: msgspec.ValidationError, raw: Any, kind: kinds.Type) -> str:
    """The fault that msgspec found, in one line: where it is, what is allowed there, and what was received."""
    found = _FAULT.fullmatch(str(error))
    problem, steps = (found[1], _STEP.findall(found[2])) if found else (str(error), [])
    names: list[str] = []
    in_array = False
    for name, index in steps:
        kind = _bare(kind)
        if name:
            assert isinstance(kind, kinds.DataclassType | kinds.StructType)
            names.append(name)
            kind = next(field.type for field in kind.fields if field.encode_name == name)
            raw, in_array = raw[name], False
        elif isinstance(kind, kinds.DictType):
            return f"{_named(names)}: {problem}"
        else:
            assert isinstance(kind, kinds.ListType | kinds.VarTupleType)
            kind, raw, in_array = kind.item_type, raw[int(index)], True
    if error.__cause__ is not None:  # raised by our own code
        inside = isinstance(_bare(kind), kinds.DataclassType) and names
        return f"[{'.'.join(names)}] {error.__cause__}" if inside else f"{_named(names)} {error.__cause__}".lstrip()
    if missing := re.fullmatch(r"Object missing required field `(\w+)`", problem):
        fields = {field.encode_name: field.type for field in getattr(_bare(kind), "fields", ())}
        return f"{_named([*names, missing[1]])} is missing: it must be {_in_words(fields[missing[1]])}"
    subject = _named(names)
    if in_array:
        subject = f"{subject}: each value" if subject else "each value"
    return f"{subject} must be {_in_words(kind)}, got {shown(raw)}".lstrip()


def _named(names: list[str]) -> str:
    """As TOML writes it: ``[grid] dropout``."""
    return f"[{'.'.join(names[:-1])}] {names[-1]}" if len(names) > 1 else "".join(names)


def _in_words(kind: kinds.Type) -> str:
    kind = _bare(kind)
    match kind:
        case kinds.IntType():
            return f"a whole number{_limits(kind)}"
        case kinds.FloatType():
            return f"a number{_limits(kind)}"
        case kinds.BoolType():
            return "true or false"
        case kinds.LiteralType():
            return f"one of {', '.join(map(str, kind.values))}"
        case kinds.ListType() | kinds.VarTupleType():
            least = " of at least one value" if kind.min_length else ""
            return f"an array{least}, each {_in_words(kind.item_type)}"
        case kinds.DataclassType() | kinds.DictType():
            return "a table"
        case kinds.UnionType():
            return " or ".join(_in_words(each) for each in kind.types if not isinstance(each, kinds.NoneType))
        case kinds.StrType(pattern=pattern) if pattern == _SHA256:
            return "a SHA-256, 64 digits from 0 to f"
        case kinds.StrType(pattern=pattern) if pattern not in (None, _NOT_BLANK):
            return f"text that matches {pattern}"
        case _:
            return "text in quotes"


def _limits(kind: kinds.IntType | kinds.FloatType) -> str:
    most = kind.le
    if isinstance(kind, kinds.IntType) and kind.lt is not None:
        most = kind.lt - 1
    if kind.ge in (None, -LARGEST) and kind.gt is None:
        return ""
    if most in (None, LARGEST, (1 << 62) - 1):
        return f" of at least {kind.ge:g}" if kind.ge is not None else f" above {kind.gt:g}"
    return f" from {kind.ge:,g} to {most:,}" if kind.ge is not None else f" above {kind.gt:g}, at most {most:,g}"
