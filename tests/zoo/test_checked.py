"""Values from outside: what a type allows is converted, anything else is one line with the rule and the value."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta

from zoo.checked import Count, NotNegative, Positive, Seed, Sha256, Text, allowed, check_fields, checked


@dataclass(frozen=True)
class Grid:
    optimizer: Annotated[tuple[Literal["sgd", "adam"], ...], Meta(min_length=1)]
    dropout: tuple[Annotated[float, Meta(ge=0, le=0.99)], ...] = (0.0,)
    shards: Count | None = None
    path: Path | None = None
    fraction: Annotated[float, Meta(gt=0, le=1)] = 1.0

    def __post_init__(self) -> None:
        if self.shards == 7:
            raise ValueError("shards cannot be 7")


@dataclass(frozen=True)
class File:
    name: Text
    grid: list[Grid]
    sha256: Sha256 = "0" * 64
    switch: bool = False
    named: dict[str, Grid] = field(default_factory=dict)


GRID = {"optimizer": ["sgd"]}
FILE = {"name": "digits", "grid": [GRID]}


def test_what_is_allowed_is_converted() -> None:
    raw = {"name": "digits", "grid": [GRID | {"dropout": [0, 0.5], "path": "a/b", "shards": 3}]}
    assert checked(raw, File, "") == File("digits", [Grid(("sgd",), (0.0, 0.5), 3, Path("a/b"))])


def test_words_of_a_command_line_become_numbers() -> None:
    assert checked({"optimizer": ["adam"], "shards": "5", "dropout": ["0.3"]}, Grid, "", strict=False) == Grid(
        ("adam",), (0.3,), 5
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer": ["sgd", "lion"]}, "[grid] optimizer: each value must be one of adam, sgd, got 'lion'"),
        ({"optimizer": []}, "[grid] optimizer must be an array of at least one value, each one of adam, sgd, got []"),
        ({"optimizer": "sgd"}, "each one of adam, sgd, got 'sgd'"),
        ({"dropout": [0, 1.5]}, "[grid] dropout: each value must be a number from 0 to 0.99, got 1.5"),
        ({"dropout": [True]}, "[grid] dropout: each value must be a number from 0 to 0.99, got True"),
        ({"dropout": [float("nan")]}, "a number from 0 to 0.99, got nan"),
        ({"dropout": [10**400]}, "a number from 0 to 0.99, got 1000"),
        ({"fraction": 2}, "[grid] fraction must be a number above 0, at most 1, got 2"),
        ({"shards": 0}, "[grid] shards must be a whole number of at least 1, got 0"),
        ({"shards": 2.0}, "[grid] shards must be a whole number of at least 1, got 2.0"),
        ({"shards": "3"}, "[grid] shards must be a whole number of at least 1, got '3'"),
        ({"shards": 7}, "[grid] shards cannot be 7"),
        ({"path": 3}, "[grid] path 3 is not a Path"),
        ({"foo": 1}, "[grid] 'foo' is not a key: there are optimizer, dropout, shards, path, fraction"),
    ],
)
def test_a_fault_in_a_table_is_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"\Ax\.toml: ") as raised:
        checked(FILE | {"grid": [GRID | change]}, File, "x.toml: ")
    assert message in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ([], "must be a table, got []"),
        ({"name": "digits"}, "grid is missing: it must be an array, each a table"),
        (FILE | {"name": " "}, "name must be text in quotes, got ' '"),
        (FILE | {"grid": {}}, "grid must be an array, each a table, got {}"),
        (FILE | {"sha256": "abc"}, "sha256 must be a SHA-256, 64 digits from 0 to f, got 'abc'"),
        (FILE | {"switch": 1}, "switch must be true or false, got 1"),
        (FILE | {"named": {"a": {"optimizer": ["x"]}}}, "named: Invalid enum value 'x'"),
        (FILE | {"named": {"a": {"optimizers": []}}}, "[named.a] 'optimizers' is not a key"),
    ],
)
def test_a_fault_at_the_top_is_one_line(raw: Any, message: str) -> None:
    with pytest.raises(ValueError, match="here: ") as raised:
        checked(raw, File, "here: ")
    assert message in str(raised.value)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), "1", None, True])
def test_numbers_are_finite(value: Any) -> None:
    for kind in (Positive, NotNegative):
        with pytest.raises(ValueError, match="must be a number"):
            checked(value, kind, "")


def test_limits_in_words() -> None:
    assert allowed(Seed) == "a whole number from 0 to 4,294,967,295"
    assert allowed(Positive) == "a number above 0"
    assert allowed(Count | Literal["all"]) == "a whole number of at least 1 or one of all"


@dataclass(frozen=True)
class Run:
    rate: Positive
    grid: Grid | None = None

    def __post_init__(self) -> None:
        check_fields(self)


def test_a_dataclass_checks_its_own_fields() -> None:
    run = Run(0.1, Grid(("sgd",)))
    assert replace(run, rate=0.2).rate == 0.2
    with pytest.raises(ValueError, match=r"rate must be a number above 0, got 0\.0"):
        replace(run, rate=0.0)
