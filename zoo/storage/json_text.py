"""JSON from anywhere: whatever is wrong with it is a ValueError that names where it comes from."""

import json
from pathlib import Path
from typing import Any, NoReturn

from zoo.storage.bounded import read_bounded

MAX_BYTES = 1 << 20
"""Python's objects may take thirty times the text. The files read here have some kilobytes."""


def read_json(path: Path) -> Any:
    """The content of a small file; a large one is none of ours, and is not read."""
    return parse_json(read_bounded(path, MAX_BYTES), str(path))


def parse_json(data: bytes, where: str) -> Any:
    """The value in these bytes. Stricter than Python's own: no name twice in an object, no NaN, no infinity."""
    try:
        return json.loads(data.decode(), object_pairs_hook=unique, parse_constant=refuse, parse_float=finite)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is damaged: {type(error).__name__}: {error}") from error


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"{name[:80]!r} is there twice")
        values[name] = value
    return values


def finite(text: str) -> float:
    if (number := float(text)) in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:40]} is too large a number")
    return number


def refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
