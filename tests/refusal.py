"""How a command refuses: one line, and exit code 2."""

from collections.abc import Callable

import pytest


def refusal(main: Callable[[list[str]], None], arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line with which a command refuses its arguments."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    errors = capsys.readouterr().err
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    return errors
