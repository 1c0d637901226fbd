"""The help of every command: each argument is explained, and each default shown in the same way."""

import argparse
import importlib
import re

import pytest

from zoo.__main__ import _VERBS

COMMANDS = [
    *(
        module
        for module, _ in _VERBS.values()
        if module not in ("benchmarks.speed", "benchmarks.leaderboard", "zoo.page")
    ),
    "benchmarks.leaderboard.__main__",
    "benchmarks.speed.__main__",
    "zoo.page.__main__",
    "tests.browser",
    "tests.kernel_resources",
    "tests.soak",
]
SHOWN = re.compile(r"\(default: ([^()]+)\)$")


class Parsed(Exception):
    """Raised in place of reading the command line, with the parser that would have read it."""


@pytest.fixture
def parsers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[argparse.ArgumentParser]:
    """The parser of a command, and those of its subcommands."""

    def parse_args(parser: argparse.ArgumentParser, *_: object) -> None:
        raise Parsed(parser)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
    with pytest.raises(Parsed) as raised:
        importlib.import_module(request.param).main([])
    return with_subcommands(raised.value.args[0])


def with_subcommands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    choices = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return [parser, *(found for names in choices for child in names.values() for found in with_subcommands(child))]


def shown_help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """The help of an argument as a user sees it, in one line."""
    return parser._get_formatter()._expand_help(action)


@pytest.mark.parametrize("parsers", COMMANDS, indirect=True)
def test_every_argument_is_explained_with_its_default_in_one_manner(parsers: list[argparse.ArgumentParser]) -> None:
    for parser in parsers:
        for action in parser._actions:
            name = f"{parser.prog} {action.dest}"
            assert action.help, f"{name} has no help"
            shown = shown_help(parser, action)
            default = SHOWN.search(shown)
            assert shown.count("default") == (default is not None), f"{name}: {shown!r}"
            assert not shown.startswith("(default"), f"{name} has a default and no explanation"
            if action.default is None:
                continue
            if isinstance(action, argparse._StoreConstAction):
                assert default is None, f"{name} is a switch and shows a default: {shown!r}"
                continue
            if action.default != argparse.SUPPRESS:
                values = action.default if isinstance(action.default, list) else [action.default]
                assert default, f"{name} does not show its default"
                assert default[1] == " ".join(map(str, values))


@pytest.mark.parametrize("parsers", ["generation.run", "generation.launch"], indirect=True)
def test_presets_and_seed_policies_are_explained_where_they_are_chosen(parsers: list[argparse.ArgumentParser]) -> None:
    help_of = {action.dest: shown_help(parsers[0], action) for action in parsers[0]._actions}
    assert "lite, 500 runs of 20 epochs;" in help_of["preset"]
    assert "distinct: a seed for each run" in help_of["seeds"]
