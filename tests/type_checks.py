"""The checks of types and shapes that jaxtyping's import hook adds to zoo, generation and nfn, in a third of its time.

The hook binds all arguments of each call to the signature, whether there are sizes to compare or not, and checks them a
second time with what is returned. Here beartype checks a function once, and where an annotation has a shape, a context
of jaxtyping compares the sizes that arguments and result share.
"""

from collections.abc import Callable
from dataclasses import is_dataclass
from functools import wraps
from inspect import isgeneratorfunction
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

_jaxtyped = jaxtyping.jaxtyped
_typed = beartype(conf=BeartypeConf(violation_type=TypeError))  # which readers of files make one line of


def checked(item: Any) -> Any:
    """A function whose arguments and result are checked, or a dataclass whose fields are."""
    if isinstance(item, type):
        if is_dataclass(item):
            if hasattr(item, "__post_init__"):  # which refuses bad values first, in words of its own
                return _jaxtyped(item, typechecker=_typed)
            item.__init__ = checked(item.__init__)
        return item
    hints = item.__annotations__ = {name: _known(hint) for name, hint in item.__annotations__.items()}
    if not any("jaxtyping" in repr(hint) for hint in hints.values()):
        return _typed(item)
    return _jaxtyped(item, typechecker=_typed) if isgeneratorfunction(item) else _comparing_sizes(item)


def _known(hint: Any) -> Any:
    """Like the hook, anything for a name in quotes: its class is not there yet, or only for a type checker."""
    return Any if isinstance(hint, str) else hint


def _comparing_sizes(function: Callable[..., Any]) -> Callable[..., Any]:
    checked = _typed(function)

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        with _jaxtyped("context"):
            return checked(*arguments, **options)

    return call


def install() -> None:
    """What the hook puts above every function and class is ``@jaxtyping.jaxtyped(typechecker=…)``."""
    jaxtyping.jaxtyped = lambda *, typechecker: checked
