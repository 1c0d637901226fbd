"""Makes hostile files out of sound ones: any list of changes to bytes, to JSON values, to safetensors headers.

A change is plain data, so that Hypothesis can draw and shrink it and the soak can draw it from a seed.
"""

import json
import random
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

EXTREMES = (
    0,
    1,
    127,
    128,
    255,
    2**15,
    2**16 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**33,
    2**60,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1,
    10**9,
    10**18,
    10**400,
    1.5,
    1e308,
    "",
    "x" * 1000,
    "../../etc/passwd",
    "/etc/passwd",
    "a\0b",
    "\ud800",
    [],
    {},
    [0, -1],
    [10**9, 10**9],
    [[[[]]]],
    {"a": {"b": []}},
    ["F64"],
)
KINDS = ("flip", "set", "cut", "drop", "repeat", "insert", "zero")


@dataclass(frozen=True)
class Change:
    """The operation, its position (a share of the length), and its value."""

    kind: str
    place: float
    value: int

    @classmethod
    def drawn(cls, source: random.Random) -> "Change":
        return cls(source.choice(KINDS), source.random(), source.randrange(1 << 16))


def spoil(data: bytes, changes: list[Change]) -> bytes:
    """The bytes after the changes."""
    for change in changes:
        at = int(change.place * len(data))
        length = change.value % 64 + 1
        match change.kind:
            case "flip" if data:
                data = data[:at] + bytes([data[at] ^ (change.value % 255 + 1)]) + data[at + 1 :]
            case "set":
                # where numbers stand in a file: at multiples of four
                at, width = at // 4 * 4, (2, 4, 8)[change.value % 3]
                number = EXTREMES[change.value % len(EXTREMES)] % (1 << 8 * width)
                order = "big" if change.value & 64 else "little"
                data = data[:at] + number.to_bytes(width, order) + data[at + width :]
            case "cut":
                data = data[:at]
            case "drop":
                data = data[:at] + data[at + length :]
            case "repeat":
                data = data[: at + length] + data[at:]
            case "insert":
                data = data[:at] + bytes([change.value % 256]) * length + data[at:]
            case "zero":
                data = data[:at] + bytes(len(data[at : at + length])) + data[at + length :]
    return data


def spoil_json(data: bytes, changes: list[Change]) -> bytes:
    """The JSON text with some of its values replaced, removed or duplicated."""
    value = json.loads(data)
    for change in changes:
        places = list(positions(value))
        if not places:
            break
        holder, key = places[int(change.place * len(places))]
        match change.kind:
            case "drop" | "cut":
                del holder[key]
            case "repeat" if isinstance(holder, dict):
                holder[f"{key}{change.value % 3}"] = deepcopy(holder[key])
            case "insert":
                holder[key] = [deepcopy(holder[key]) for _ in range(change.value % 3)]
            case _:
                holder[key] = deepcopy(VALUES[change.value % len(VALUES)])
    text = json.dumps(value)
    if changes and changes[0].value % 11 == 0:
        text = text.replace("null", "NaN").replace("true", "Infinity", 1)
    if changes and changes[0].value % 13 == 0:
        text = text.replace("{", '{"bytes": 1, "bytes": 2, ', 1)
    return text.encode()


def positions(value: Any) -> Any:
    """Every position in a JSON value: the container, and the key in it."""
    if isinstance(value, dict | list):
        for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
            yield value, key
            yield from positions(inner)


def spoil_safetensors(data: bytes, changes: list[Change]) -> bytes:
    """A safetensors file with a spoiled header of a fitting length."""
    length = int.from_bytes(data[:8], "little")
    header = spoil_json(data[8 : 8 + length], changes)
    return len(header).to_bytes(8, "little") + header + data[8 + length :]
