"""TOML read with one line for whatever is wrong, and written out in one way, whatever its comments and spaces."""

import json
import math
import re
import tomllib
from typing import Any

from zoo.storage.untrusted import faults_named

_MOST_LEVELS = 16
_MOST_BITS = 1 << 12  # of a whole number: one in hexadecimal may have more digits than Python prints
_BARE_PARTS = re.compile(rf"(?<![\w-])[\w-]++(?:[ \t]*+\.[ \t]*+[\w-]++){{{_MOST_LEVELS}}}")
_QUOTED_PART = re.compile(r"""["'][ \t]*+\.""")


def parse_toml(text: str | bytes, where: str) -> dict[str, Any]:
    """The content of a file; text that is not TOML, or not UTF-8, is a ValueError that names ``where`` it lies."""
    with faults_named(f"{where} is not TOML", RecursionError):
        text = text if isinstance(text, str) else text.decode()
        # tomllib's time grows with the square of the parts of a dotted key
        if _BARE_PARTS.search(text) or any(len(_QUOTED_PART.findall(line)) > _MOST_LEVELS for line in text.split("\n")):
            raise ValueError(f"a key has more than {_MOST_LEVELS} parts")
        content = tomllib.loads(text)
        level: list[Any] = [content]
        for _ in range(_MOST_LEVELS):
            inner = [value for outer in level for value in (outer.values() if isinstance(outer, dict) else outer)]
            if any(isinstance(value, int) and value.bit_length() > _MOST_BITS for value in inner):
                raise ValueError(f"a whole number has more than {_MOST_BITS:,} bits")
            level = [value for value in inner if isinstance(value, dict | list)]
        if level:
            raise ValueError(f"tables and arrays are more than {_MOST_LEVELS} deep")
        return content


def toml_text(content: dict[str, Any]) -> str:
    """TOML of plain values, then of tables and arrays of tables, in the order they have; others are a ValueError."""
    lines = [f"{_toml_key(key)} = {toml_value(value)}" for key, value in content.items() if not _is_table(value)]
    for key, value in content.items():
        if _is_table(value):
            heading = f"[{_toml_key(key)}]" if isinstance(value, dict) else f"[[{_toml_key(key)}]]"
            for table in [value] if isinstance(value, dict) else value:
                lines += ["", heading, *(f"{_toml_key(name)} = {toml_value(entry)}" for name, entry in table.items())]
    return "\n".join(lines) + "\n"


def _toml_key(key: str) -> str:
    return key if key.isascii() and key.isidentifier() else toml_value(key)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) or (
        isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)
    )


def toml_value(value: Any) -> str:
    """A string, a boolean, a number, or an array of them; JSON writes all of these as TOML does."""
    if isinstance(value, list) and not any(isinstance(each, list | dict) for each in value):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    raise ValueError(f"{value!r} cannot stand in a task file: use text, true, false, numbers, or an array of them")
