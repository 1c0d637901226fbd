"""What every command of the project shares: one clear line on bad input, an exit code, progress on stderr.

@command
def main(arguments: list[str] | None = None) -> None:
    parser = command_parser("zoo.verify", __doc__)
    parser.add_argument(...)
    options = parser.parse_args(arguments)
    ...

if __name__ == "__main__":
    main()
"""

import argparse
import functools
import math
import os
import sys
import warnings
from collections.abc import Callable
from typing import NoReturn, Protocol, runtime_checkable

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from zoo.terminal import PlainConsole, printable

BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 2, 130, 141

Advance = Callable[[int], None]
"""Told how many more rows or bytes of a long piece of work are done."""


def command_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """The parser of ``python -m NAME``; its help shows the module's docstring as it is written, and every default."""
    return OneLineParser(prog=f"python -m {name}", description=description, formatter_class=HelpWithDefaults)


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong with the arguments in one line, like every other error, and leaves the usage to ``--help``."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"error: {unbroken(message)} (--help lists the arguments)\n")


class HelpWithDefaults(argparse.RawDescriptionHelpFormatter):
    """Ends the help of an argument with "(default: …)"; a help text itself says so only where the default is None.

    A switch has no default worth telling: it is off until it is named.
    """

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or isinstance(action.default, bool) or action.default == argparse.SUPPRESS:
            return action.help
        values = action.default if isinstance(action.default, list | tuple) else [action.default]
        shown = " ".join(map(str, values)).replace("%", "%%")
        return f"{action.help} (default: {shown})"


def positive(text: str) -> int:
    """An argument that counts something."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def not_negative(text: str) -> int:
    """An argument that counts something of which there may be none."""
    if (value := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, got {value}")
    return value


def any_seed(text: str) -> int:
    """An argument that chance starts from."""
    if not 0 <= (value := int(text)) < 1 << 32:
        raise argparse.ArgumentTypeError(f"must lie in [0, 2^32), got {value}")
    return value


def seconds(text: str) -> float:
    """An argument that is a length of time."""
    if not 0 <= (value := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, got {text}")
    return value


@runtime_checkable
class Main(Protocol):
    """A command: the words after its name, by default those of the command line."""

    def __call__(self, arguments: list[str] | None = None) -> None: ...


def command(main: Main) -> Main:
    """Wraps a command's ``main``: what a user can get wrong ends it with one line and a non-zero exit, no traceback.

    ``ValueError`` and ``OSError`` are what a user can get wrong (2, argparse's own code); control-C is 130; a reader
    that hung up, as in ``… | head``, is 141 and says nothing. Everything else is our mistake and keeps its traceback.
    """

    @functools.wraps(main)
    def guarded(arguments: list[str] | None = None) -> None:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = show_in_one_line
                main(arguments)
        except BrokenPipeError:
            # Python flushes stdout once more on its way out, which would complain again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(BROKEN_PIPE)
        except (ValueError, OSError) as error:
            print(f"error: {one_line(error)}", file=sys.stderr)
            sys.exit(BAD_INPUT)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            sys.exit(INTERRUPTED)

    return guarded


def show_in_one_line(message: Warning | str, *_: object) -> None:
    """A warning as a user of a command should see it: what it says, not where in the code it was said."""
    print(f"note: {unbroken(str(message))}", file=sys.stderr)


def one_line(error: Exception) -> str:
    """The message without line breaks and escape sequences; the operating system's own errors without their number."""
    if isinstance(error, OSError) and error.strerror:
        return printable(f"{error.filename}: {error.strerror}" if error.filename else error.strerror)
    return unbroken(str(error)) or type(error).__name__


def unbroken(text: str) -> str:
    """The text without line breaks and escape sequences."""
    return printable(" ".join(text.splitlines()))


def how_many(number: int, what: str) -> str:
    """Such as "1 checkpoint" and "2,000 checkpoints"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Seconds as a person would say them: 45 s, 12 min, 3.5 h, 9 days."""
    for limit, unit, size in ((99, "s", 1), (99 * 60, "min", 60), (48 * 3600, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.1f} {unit}" if unit == "h" else f"{max(1, round(seconds / size))} {unit}"
    return f"{seconds / 86400:,.0f} days"


def progress_bar() -> Progress:
    """A progress bar on stderr; silent where stderr is not a terminal."""
    console = PlainConsole(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
