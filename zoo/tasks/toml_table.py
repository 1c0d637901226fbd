"""A table of a TOML file, read key by key: whatever is wrong with it is one line that names file, key and remedy."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from zoo.storage.untrusted import is_finite

T = TypeVar("T")
REQUIRED: Any = object()
"""The default of a key that must be there."""


class TomlTable:
    """The values of one table. Reading a key makes it known; ``finish`` refuses the keys that nobody read.

    A key that is not there has its default, which may be None; without one it is missing.
    """

    def __init__(self, file: str, name: str, values: Mapping[str, Any]) -> None:
        self.file, self.name, self.values = file, name, values
        self.known: list[str] = []

    def fault(self, key: str, problem: str) -> ValueError:
        """The error about a key: ``digits.toml: [grid] dropout must be …``."""
        return ValueError(f"{self.file}: {f'[{self.name}] ' if self.name else ''}{key} {problem}")

    def text(self, key: str, default: Any = REQUIRED, *, choices: Sequence[str] = ()) -> str:
        """Text, one of ``choices`` where there are some."""
        allowed = f"one of {', '.join(choices)}" if choices else "text in quotes"
        return self._read(key, default, allowed, lambda value: is_text(value) and (not choices or value in choices))

    def optional_text(self, key: str) -> str | None:
        """Text, or None where the key is left out."""
        return self._read(key, None, "text in quotes", is_text)

    def boolean(self, key: str, default: Any = REQUIRED) -> Any:
        return self._read(key, default, "true or false", lambda value: isinstance(value, bool))

    def integer(self, key: str, default: Any = REQUIRED, *, least: int = 1, most: int) -> Any:
        allowed = f"a whole number from {least:,} to {most:,}"
        return self._read(key, default, allowed, lambda value: type(value) is int and least <= value <= most)

    def text_or_integer(self, key: str, default: Any = REQUIRED, *, least: int = 1, most: int) -> str | int:
        allowed = f"text in quotes, or a whole number from {least:,} to {most:,}"
        return self._read(
            key, default, allowed, lambda value: is_text(value) or (type(value) is int and least <= value <= most)
        )

    def number(self, key: str, default: Any = REQUIRED, *, allowed: str, accept: Callable[[float], bool]) -> float:
        """A finite number that ``accept`` takes; ``allowed`` says which those are."""
        return float(self._read(key, default, allowed, lambda value: is_finite(value) and accept(value)))

    def list_of(
        self, key: str, default: Any = REQUIRED, *, allowed: str, accept: Callable[[Any], bool]
    ) -> tuple[Any, ...]:
        """An array with at least one value, all different and each one that ``accept`` takes."""
        values = self._read(key, default, f"an array of {allowed}", lambda value: isinstance(value, list | tuple))
        if not values:
            raise self.fault(key, "is empty: name at least one value")
        for place, value in enumerate(values):
            if not accept(value):
                raise self.fault(key, f"must hold {allowed}, got {shown(value)}")
            if value in values[:place]:
                raise self.fault(key, f"names {shown(value)} twice")
        return tuple(values)

    def table(self, key: str, default: Any = REQUIRED) -> "TomlTable":
        """A table inside this one."""
        values = self._read(key, default, f"a table [{key}]", lambda value: isinstance(value, dict))
        return TomlTable(self.file, f"{self.name}.{key}" if self.name else key, values)

    def tables(self, key: str) -> list["TomlTable"]:
        """A table, or each of an array of tables."""
        allowed = f"a table [{key}], or several [[{key}]]"
        values = self._read(key, REQUIRED, allowed, is_tables)
        listed = [values] if isinstance(values, dict) else values
        return [TomlTable(self.file, key, each) for each in listed]

    def finish(self) -> None:
        """Refuses a key that was not read."""
        for key in self.values:
            if key not in self.known:
                raise self.fault(shown(key), f"is no key: there are {', '.join(self.known)}")

    def _read(self, key: str, default: T, allowed: str, accept: Callable[[Any], bool]) -> T:
        self.known.append(key)
        if key not in self.values:
            if default is REQUIRED:
                raise self.fault(key, f"is missing: it must be {allowed}")
            return default
        value = self.values[key]
        if is_blank(value):
            raise self.fault(key, f"is empty: it must be {allowed}")
        if not accept(value):
            raise self.fault(key, f"must be {allowed}, got {shown(value)}")
        return value


def is_text(value: Any) -> bool:
    return isinstance(value, str) and not is_blank(value)


def is_blank(value: Any) -> bool:
    return isinstance(value, str) and not value.strip()


def is_tables(value: Any) -> bool:
    listed = value if isinstance(value, list) else [value]
    return bool(listed) and all(isinstance(each, dict) for each in listed)


def shown(value: Any) -> str:
    """A value for a message, not longer than a line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
