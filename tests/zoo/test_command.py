"""Commands end with one clear line and an exit code."""

import subprocess
import sys

import pytest

from tests.refusal import refusal
from zoo.command import any_seed, command, command_parser, how_many, not_negative, positive, seconds


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
    @command
    def main(arguments: list[str] | None = None) -> None:
        raise error

    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == code
    assert capsys.readouterr().err == line + "\n"


def test_a_wrong_argument_is_one_line_too(capsys):
    @command
    def main(arguments: list[str] | None = None) -> None:
        parser = command_parser("zoo.fly", "Flies.")
        parser.add_argument("--wings", type=positive)
        parser.add_argument("--lives", type=not_negative)
        parser.add_argument("--wait", type=seconds)
        parser.add_argument("--seed", type=any_seed)
        parser.parse_args(arguments)

    for arguments, message in (
        (["--fast"], "unrecognized arguments: --fast"),
        (["--wings", "0"], "argument --wings: must be at least 1, got 0"),
        (["--wings", "\x1b[2J"], "argument --wings: invalid positive value: "),
        (["--lives", "-1"], "argument --lives: must be at least 0, got -1"),
        (["--seed", "-1"], "argument --seed: must lie in [0, 2^32), got -1"),
        (["--seed", "4294967296"], "argument --seed: must lie in [0, 2^32), got 4294967296"),
        (["--wait", "-1"], "argument --wait: must be a number of seconds, got -1"),
        (["--wait", "nan"], "argument --wait: must be a number of seconds, got nan"),
        (["--wait", "inf"], "argument --wait: must be a number of seconds, got inf"),
    ):
        said = refusal(main, arguments, capsys)
        assert said.startswith(f"error: {message}")
        assert "\x1b" not in said
    main(["--wings", "1", "--lives", "0", "--wait", "0.5", "--seed", "0"])


def test_things_are_counted_as_a_person_would():
    assert [how_many(number, "row") for number in (0, 1, 2, 2000)] == ["0 rows", "1 row", "2 rows", "2,000 rows"]


def test_our_own_mistakes_keep_their_traceback():
    @command
    def main(arguments: list[str] | None = None) -> None:
        raise AssertionError("never")

    with pytest.raises(AssertionError, match="never"):
        main([])


def test_a_reader_that_hangs_up_is_not_an_error():
    script = """
from zoo.command import command
@command
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
