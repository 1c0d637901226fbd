"""Shared by all commands of the project: options, one clear line on bad input, an exit code, progress on stderr.

@dataclass(frozen=True)
class _Options:
    zoo: Annotated[str, Argument("folder of the zoo, or its name on the hub", "DIR")] = DEFAULT_NAME
    evaluate: Annotated[CountOrZero, Option("measure N random rows of each config again", "N")] = 0


_command = Command(__name__, "zoo.verify", __doc__, _Options)  # answers --help and wrong arguments at once

import torch  # whatever takes a second to import comes after it


@_command
def main(options: _Options) -> None: ...  # the last definition
"""

import argparse
import dataclasses
import functools
import importlib.util
import os
import signal
import sys
import types
import typing
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, NoReturn, TypeVar

from zoo.checked import checked, printable
from zoo.version import VERSION

if TYPE_CHECKING:
    from rich.progress import Progress

_T = TypeVar("_T")
DEFAULT_NAME = "small-transformer-zoo"
_BAD_INPUT, _INTERRUPTED, _BROKEN_PIPE = 2, 130, 141
_HELP = argparse.RawDescriptionHelpFormatter
_EXTRAS = {
    "generation": ("gensim", "mlxtend", "torchvision"),
    "fused": ("cuda.bindings", "cuda.core"),
    "ray": ("ray",),
    "benchmarks": ("lightgbm", "matplotlib", "scipy", "sklearn", "xgboost"),
    "page": ("vl_convert",),
    "browser": ("playwright",),
}
"""Extra of this package → the modules it is for. A checkout that was not installed has no metadata to read it from."""

Advance = Callable[[int], None]
"""Called with the number of rows or bytes that a long piece of work has done since the last call."""


@dataclasses.dataclass(frozen=True)
class Option:
    """How a field of an options class is written on the command line: ``--name VALUE``.

    The field's type decides the rest: a bool is a switch (``--no-name`` if it is on by default), a tuple takes several
    values, a Literal is a choice, and numbers may have limits (``zoo.checked``).
    """

    help: str
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    default: Any = None
    """For the command line alone; None is the field's own default."""


class Argument(Option):
    """A field that is given by its position. One with a default may be left out."""


_DEVICE = Option("cpu, cuda, cuda:1, or auto: the GPU if there is one")
Device = Annotated[str, _DEVICE]
ZooName = Annotated[str, Option("folder of the zoo, or its name on the hub", "DIR")]
DryRun = Annotated[bool, Option("print the rows without storing them")]


class Command(Generic[_T]):
    """``python -m NAME``: turns a ``main`` that takes options into one that takes arguments.

    ``options`` is a dataclass, or for ``python -m NAME VERB`` a dataclass and a line of help for each verb. The help
    shows the module's docstring as it is written, and every default. Where the module is run as a command, ``--help``,
    ``--version`` and wrong arguments are answered when this object is made, before the imports below it. So are modules
    of an extra that are not installed: ``needs`` gives those that a call with these options needs.
    """

    def __init__(
        self,
        module: str,
        name: str,
        description: str | None,
        options: type[_T] | dict[str, tuple[type[_T], str]],
        needs: Callable[[_T], Iterable[str]] = lambda _: (),
    ) -> None:
        self.name, self.description, self.options, self.needs = name, description, options, needs
        self.is_run = module == "__main__"
        if self.is_run:
            self.parse(None)
            signal.signal(signal.SIGINT, _interrupted)

    def parse(self, arguments: list[str] | None) -> _T:
        """The options in these arguments, or in those of the command line."""
        parser = _OneLineParser(prog=f"python -m {self.name}", description=self.description, formatter_class=_HELP)
        parser.add_argument("--version", action="version", version=VERSION, help="show the version and exit")
        if isinstance(self.options, dict):
            verbs = parser.add_subparsers(dest="verb", required=True, parser_class=_OneLineParser, help="what to do")
            for verb, (_, what) in self.options.items():
                verbs.add_parser(verb, help=what, description=what, formatter_class=_HELP)
            kinds, parsers = {verb: kind for verb, (kind, _) in self.options.items()}, verbs.choices
        else:
            kinds, parsers = {"": self.options}, {"": parser}
        for verb, kind in kinds.items():
            _add_options(parsers[verb], kind)
        given = vars(parser.parse_args(arguments))
        verb = given.pop("verb", "")
        options = _filled(kinds[verb], given, parsers[verb])
        if line := missing(self.name, self.needs(options)):
            parser.exit(_BAD_INPUT, f"error: {line}\n")
        return options

    def __call__(self, run: Callable[[_T], None]) -> Callable[..., None]:
        """Decorates the last definition of a module: where that is run as a command, it is called at once."""

        @_guarded
        @functools.wraps(run)
        def main(arguments: list[str] | None = None) -> None:
            run(self.parse(arguments))

        if self.is_run:
            main()
        return main


def missing(who: str, modules: Iterable[str]) -> str | None:
    """Which of these modules are not installed and what brings them, in one line; None if all are. None is imported."""
    absent = [module for module in modules if not _is_installed(module)]
    extras = ",".join(extra for extra, brought in _EXTRAS.items() if set(absent) & set(brought))
    return f"{who} needs {' and '.join(absent)}: pip install '{DEFAULT_NAME}[{extras}]'" if absent else None


def _is_installed(module: str) -> bool:
    package = module.rpartition(".")[0]  # which looking for the module imports
    return (not package or _is_installed(package)) and importlib.util.find_spec(module) is not None


def _interrupted(*_: object) -> NoReturn:
    """Ends a program that is still importing."""
    os.write(2, b"interrupted\n")
    os._exit(_INTERRUPTED)


class _OneLineParser(argparse.ArgumentParser):
    """Prints what is wrong with the arguments in one line, like every other error, and leaves the usage to --help."""

    def error(self, message: str) -> NoReturn:
        self.exit(_BAD_INPUT, f"error: {_unbroken(message)} (--help lists the arguments)\n")


def _fields_of(options: type) -> dict[str, tuple[dataclasses.Field[Any], Any, Option]]:
    """The fields with their types and their ``Option`` or ``Argument``, inherited ones last."""
    hints = typing.get_type_hints(options, include_extras=True)
    fields = {field.name: field for field in dataclasses.fields(options)}
    found = {}
    for name in (name for cls in options.__mro__ for name in vars(cls).get("__annotations__", ())):
        (option,) = (each for each in typing.get_args(hints[name])[1:] if isinstance(each, Option))
        found.setdefault(name, (fields[name], hints[name], option))
    return found


def _add_options(parser: argparse.ArgumentParser, options: type) -> None:
    for name, (field, hint, option) in _fields_of(options).items():
        kind = _without_none(typing.get_args(hint)[0])
        default = field.default if option.default is None else option.default
        required = default is dataclasses.MISSING
        default = None if required else list(default) if isinstance(default, tuple) else default
        values = default if isinstance(default, list) else [default]
        # a help text has its own "(default: …)" only where the default is None; a switch is off until it is named
        shown = "" if default is None else f" (default: {' '.join(map(str, values))})".replace("%", "%%")
        flag = _flag(name, option)
        if kind is bool:
            flag, action = (f"--no-{flag[2:]}", "store_false") if default else (flag, "store_true")
            parser.add_argument(flag, dest=name, action=action, help=option.help)
            continue
        several = typing.get_origin(kind) is tuple
        value = _without_none(typing.get_args(kind)[0]) if several else kind
        given: dict[str, Any] = {"default": default, "metavar": option.metavar, "help": option.help + shown}
        if isinstance(option, Argument):
            given["nargs"] = {(True, True): "+", (True, False): "*", (False, False): "?"}.get((several, required))
        else:
            given |= {"required": required, "nargs": "+" if several else None}
        if typing.get_origin(value) is Literal or option.choices:
            given["choices"] = option.choices or typing.get_args(value)
        parser.add_argument(flag, **given)


def _without_none(hint: Any) -> Any:
    """``int`` for ``int | None`` and for ``Annotated[int, …]``."""
    while typing.get_origin(hint) is Annotated or isinstance(hint, types.UnionType):
        hint = next(each for each in typing.get_args(hint) if each is not types.NoneType)
    return hint


def _filled(options: type[_T], given: dict[str, Any], parser: argparse.ArgumentParser) -> _T:
    """The words of the command line as the values they stand for; a wrong one ends the program in one line."""
    try:
        values = {
            name: checked(given[name], hint, f"argument {_flag(name, option)}: ", strict=False)
            for name, (_, hint, option) in _fields_of(options).items()
        }
        return options(**values)
    except ValueError as error:
        parser.error(str(error))


def _flag(name: str, option: Option) -> str:
    return name if isinstance(option, Argument) else f"--{name.replace('_', '-')}"


def _guarded(main: Callable[[list[str] | None], None]) -> Callable[..., None]:
    """Wraps a command's ``main``: a user's mistake ends it with one line and a non-zero exit, without a traceback.

    ``ValueError`` and ``OSError`` are a user's mistakes (2, argparse's own code); control-C is 130; a reader that hung
    up, as in ``… | head``, is 141, without a line. Everything else is our mistake and keeps its traceback.
    """

    @functools.wraps(main)
    def guarded(arguments: list[str] | None = None) -> None:
        if signal.getsignal(signal.SIGINT) is _interrupted:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with warnings.catch_warnings():
                # its text, without the line of code
                warnings.showwarning = lambda text, *_: print(f"note: {_unbroken(str(text))}", file=sys.stderr)
                main(arguments)
        except BrokenPipeError:
            # Python flushes stdout once more on its way out, which would complain again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(_BROKEN_PIPE)
        except (ValueError, OSError) as error:
            print(f"error: {one_line(error)}", file=sys.stderr)
            sys.exit(_BAD_INPUT)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            sys.exit(_INTERRUPTED)

    return guarded


def one_line(error: Exception) -> str:
    """The message without line breaks and escape sequences; the operating system's own errors without their number."""
    if isinstance(error, OSError) and error.strerror:
        return printable(f"{error.filename}: {error.strerror}" if error.filename else error.strerror)
    return _unbroken(str(error)) or type(error).__name__


def _unbroken(text: str) -> str:
    """The text without line breaks and escape sequences."""
    return printable(" ".join(text.splitlines()))


def how_many(number: int, what: str) -> str:
    """A count with its noun, such as "1 checkpoint" and "2,000 checkpoints"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Seconds in a readable unit: 45 s, 12 min, 3.5 h, 9 days."""
    for limit, unit, size in ((99, "s", 1), (99 * 60, "min", 60), (48 * 3600, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.1f} {unit}" if unit == "h" else f"{max(1, round(seconds / size))} {unit}"
    return f"{seconds / 86400:,.0f} days"


def progress_bar() -> "Progress":
    """A progress bar on stderr; silent where stderr is not a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from zoo.terminal import PlainConsole

    console = PlainConsole(stderr=True)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
