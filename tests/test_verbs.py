"""The console script: every verb is a command, and passes its options and exit code on."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from zoo.__main__ import VERBS

ROOT = Path(__file__).parent.parent


def run(*words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "zoo", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_every_command_has_a_verb_and_every_verb_a_command() -> None:
    commands = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for package in ("zoo", "generation", "benchmarks")
        for path in (ROOT / package).glob("*.py")
        if path.name != "command.py"  # whose docstring shows how
        if {"@command", 'if __name__ == "__main__":'} <= set(path.read_text(encoding="utf-8").splitlines())
    }
    assert commands | {"benchmarks.speed", "benchmarks.leaderboard"} == {module for module, _ in VERBS.values()}
    for module, _ in VERBS.values():
        assert find_spec(module) is not None


def test_the_list_of_verbs_is_what_one_sees_without_a_word() -> None:
    done = run()
    assert done.returncode == 2
    for verb in VERBS:
        assert f"  {verb} " in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["verify", "nowhere"], 2, "error: no zoo called 'nowhere'"),
        (["describe", "--help"], 0, "usage: python -m zoo.describe"),
        (["swim"], 2, "error: unknown verb 'swim': one of generate, "),
    ],
)
def test_options_and_exit_codes_pass_through(words: list[str], code: int, message: str) -> None:
    done = run(*words)
    assert done.returncode == code
    assert message in done.stdout + done.stderr
