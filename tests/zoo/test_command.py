"""Commands end with one clear line and an exit code."""

import subprocess
import sys

import pytest

from zoo.command import command


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
