"""Commands end with one clear line and an exit code."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest

from tests.refusal import refusal
from zoo.checked import Count, CountOrZero, NotNegative, Seed
from zoo.command import Argument, Command, Option, _guarded, how_many


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (
            ValueError("shard 40 does not exist:\nthis sweep has 32"),
            2,
            "error: shard 40 does not exist: this sweep has 32",
        ),
        (FileNotFoundError(2, "No such file or directory", "runs"), 2, "error: runs: No such file or directory"),
        (FileNotFoundError("runs/manifest.json is missing"), 2, "error: runs/manifest.json is missing"),
        (ValueError(), 2, "error: ValueError"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_bad_input_ends_with_one_line_and_a_code(capsys, error, code, line):
    @_guarded
    def main(arguments: list[str] | None = None) -> None:
        raise error

    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == code
    assert capsys.readouterr().err == line + "\n"


@dataclass(frozen=True)
class Options:
    paths: Annotated[tuple[Path, ...], Argument("where to", "PATH")]
    how: Annotated[Literal["fast", "slow"], Option("how to fly")] = "slow"
    wings: Annotated[Count | None, Option("how many (default: two)")] = None
    lives: Annotated[CountOrZero, Option("how often to come back")] = 9
    wait: Annotated[NotNegative, Option("seconds", "S")] = 0.0
    seed: Annotated[Seed, Option("seed of the wind")] = 0
    winds: Annotated[tuple[float, ...], Option("their speeds")] = (1.0, 2.0)
    night: Annotated[bool, Option("fly by night")] = False
    lights: Annotated[bool, Option("leave the lights off")] = True

    def __post_init__(self) -> None:
        if self.night and self.how == "fast":
            raise ValueError("--night is slow: leave out --how fast")


def parsed(*arguments: str) -> Options:
    return Command(__name__, "zoo.fly", "Flies.", Options).parse(list(arguments))


def test_words_fill_the_fields_of_a_class():
    assert parsed("a", "b") == Options((Path("a"), Path("b")))
    words = "a --how fast --wings 1 --lives 0 --wait 0.5 --seed 0 --winds 3 4.5 --no-lights"
    assert parsed(*words.split()) == Options((Path("a"),), "fast", 1, 0, 0.5, 0, (3.0, 4.5), lights=False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "the following arguments are required: PATH"),
        ("a --fast", "unrecognized arguments: --fast"),
        ("a --how never", "argument --how: invalid choice: 'never'"),
        ("a --wings 0", "argument --wings: must be a whole number of at least 1, got '0'"),
        ("a --wings \x1b[2J", "argument --wings: must be a whole number of at least 1, got "),
        ("a --lives -1", "argument --lives: must be a whole number of at least 0, got '-1'"),
        ("a --seed -1", "argument --seed: must be a whole number from 0 to 4,294,967,295, got '-1'"),
        ("a --seed 4294967296", "argument --seed: must be a whole number from 0 to 4,294,967,295"),
        ("a --wait -1", "argument --wait: must be a number of at least 0, got '-1'"),
        ("a --wait nan", "argument --wait: must be a number of at least 0, got 'nan'"),
        ("a --wait inf", "argument --wait: must be a number of at least 0, got 'inf'"),
        ("a --winds 1 x", "argument --winds: each value must be a number, got 'x'"),
        ("a --night --how fast", "--night is slow: leave out --how fast"),
    ],
)
def test_a_wrong_argument_is_one_line_too(capsys, words, message):
    @Command(__name__, "zoo.fly", "Flies.", Options)
    def main(options: Options) -> None:
        pass

    printed = refusal(main, words.split(), capsys)
    assert printed.startswith(f"error: {message}")
    assert "\x1b" not in printed


def test_main_gets_the_options(capsys):
    @Command(__name__, "zoo.walk", "Walks.", Walk)
    def main(options: Walk) -> None:
        print(options.steps)

    main(["--steps", "4"])
    assert capsys.readouterr().out == "4\n"
    assert refusal(main, ["--steps", "0"], capsys).startswith("error: argument --steps: must be a whole number")


def test_help_shows_every_default_once(capsys):
    with pytest.raises(SystemExit) as ended:
        parsed("--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0
    for words in ("how many (default: two)", "come back (default: 9)", "their speeds (default: 1.0 2.0)"):
        assert words in shown
    assert "fly by night (default" not in shown


def test_a_verb_has_options_of_its_own(capsys):
    verbs = {"fly": (Options, "flies"), "walk": (Walk, "walks")}
    command = Command(__name__, "zoo.move", "Moves.", verbs)
    assert command.parse(["walk", "--steps", "3"]) == Walk(3)
    assert command.parse(["fly", "a"]) == Options((Path("a"),))
    for words, message in (([], "the following arguments are required: verb"), (["swim"], "argument verb: invalid")):
        printed = refusal(command(lambda options: None), words, capsys)
        assert printed.startswith(f"error: {message}")


@dataclass(frozen=True)
class Walk:
    steps: Annotated[Count, Option("how many")]


def test_counts_have_commas_and_the_right_plural():
    assert [how_many(number, "row") for number in (0, 1, 2, 2000)] == ["0 rows", "1 row", "2 rows", "2,000 rows"]


def test_our_own_mistakes_keep_their_traceback():
    @_guarded
    def main(arguments: list[str] | None = None) -> None:
        raise AssertionError("never")

    with pytest.raises(AssertionError, match="never"):
        main([])


def test_a_reader_that_hangs_up_is_not_an_error():
    script = """
from zoo.command import _guarded
@_guarded
def main(arguments=None):
    for _ in range(100_000):
        print("a line")
main()
"""
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.readline()
    child.stdout.close()
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait() == 141
