"""The measurement of cost itself: work that is too large or too slow must fail, or tests that use it prove nothing."""

import sys
import time

import pytest

from tests.faults.limits import measure, within_limits


def take(megabytes: int) -> None:
    print(len(bytearray(b"x") * (megabytes << 20)))


def end_with(code: int) -> None:
    print("a line", file=sys.stderr)
    sys.exit(code)


def test_memory_is_counted_at_its_peak() -> None:
    assert 100 < measure(take, 100).megabytes < 120
    with pytest.raises(AssertionError, match="MB, at most 50"):
        within_limits(take, 100, megabytes=50.0)


def test_slow_work_fails() -> None:
    with pytest.raises(AssertionError, match=r"s, at most 0\.05"):
        within_limits(time.sleep, 0.1, seconds=0.05)


def test_the_exit_code_and_the_output_come_back() -> None:
    outcome = within_limits(end_with, 2)
    assert (outcome.code, outcome.text) == (2, "a line\n")
    assert within_limits(int, "no number").code == 1
