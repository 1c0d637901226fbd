"""JSON from anywhere: whatever is wrong with it is a ValueError that names where it comes from."""

import json
from pathlib import Path
from typing import Any, NoReturn

MAX_BYTES = 64 << 20
"""The largest file read, a vocabulary of a million words, has some 10 MB; Python's objects take ten times the text."""


def read_json(path: Path) -> Any:
    """The content of a file, which is not read where it is too large to be one of ours."""
    if (size := path.stat().st_size) > MAX_BYTES:
        raise ValueError(f"{path} is damaged: {size:,} bytes, at most {MAX_BYTES:,} are read")
    return parse_json(path.read_bytes(), str(path))


def parse_json(data: bytes, where: str) -> Any:
    """The value in these bytes. Stricter than Python's own: no name twice in an object, no NaN, no infinity."""
    try:
        return json.loads(data.decode(), object_pairs_hook=unique, parse_constant=refuse, parse_float=finite)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is damaged: {type(error).__name__}: {error}") from error


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
    return values


def finite(text: str) -> float:
    if (number := float(text)) in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:40]} is too large a number")
    return number


def refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
