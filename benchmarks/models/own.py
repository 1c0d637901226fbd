"""Predictors of the user's own, named ``module:Class`` on the command line.

An ``nn.Module`` with ``logits(weights)`` is trained like the neural predictors here; anything else with
``fit(train, validation)`` and ``predict(rows)`` is fitted like the trees. The module is imported, from the current
folder or from where packages are installed; only names on a command line are, never names read from a file.
"""

import importlib
import inspect
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from torch import nn

from benchmarks.models.own_fit import fit_of
from benchmarks.models.registry import MODELS, BenchmarkModel, register
from benchmarks.models.source_digest import source_digest
from nfn import Predictor

METHODS = "fit(train, validation) and predict(rows)"


def check_models(names: Sequence[str]) -> tuple[str, ...]:
    """The names, each once: the models of the tables in their order, then the user's own, which are registered."""
    own = dict.fromkeys(name for name in names if name not in MODELS)
    for name in own:
        if ":" not in name:
            raise ValueError(f"unknown model {name!r}: choose some of {', '.join(MODELS)}, or module:Class of your own")
        register(load_model(name))
    return (*(name for name in MODELS if name in names), *own)


def load_model(name: str) -> BenchmarkModel:
    """The model called ``module:Class``, or ``module:object`` for one that is not neural."""
    module_name, _, title = name.partition(":")
    if not title.isidentifier() or not all(part.isidentifier() for part in module_name.split(".")):
        raise ValueError(f"{name!r} is not the name of a predictor: write module:Class, such as my_module:MyPredictor")
    module = import_named(module_name)
    if not hasattr(module, title):
        raise ValueError(f"{module_name} ({module.__file__}) has no {title}")
    own = getattr(module, title)
    defined_in = sys.modules.get(getattr(own, "__module__", module_name), module)
    source = source_digest([module, defined_in])
    neural, other = has(own, "logits"), has(own, "fit") and has(own, "predict")
    if isinstance(own, type) and issubclass(own, nn.Module) and neural:
        check_call(name, own, "(spec, generator=generator)", None, generator=None)
        if issubclass(own, Predictor) and own.logits_of is not Predictor.logits_of:
            if not hasattr(own, "kind"):
                raise ValueError(f'{name} derives from nfn.Predictor and lacks its kind, such as kind = "my_predictor"')
            return BenchmarkModel(name, title, kind=own, source=source)
        return BenchmarkModel(name, title, module=own, source=source)
    if other:
        takes_seed = isinstance(own, type) and "seed" in inspect.signature(own).parameters
        if isinstance(own, type):
            check_call(name, own, "(seed=seed)" if takes_seed else "()", **({"seed": 0} if takes_seed else {}))
        return BenchmarkModel(name, title, fit=fit_of(name, own, takes_seed), seeded=takes_seed, source=source)
    raise ValueError(f"{name} {shortcoming(own, neural)}")


def has(own: Any, method: str) -> bool:
    return callable(getattr(own, method, None))


def shortcoming(own: Any, neural: bool) -> str:
    """Why this is neither kind of predictor."""
    if neural and isinstance(own, nn.Module):
        return "is one network: name its class, which is built once for each seed"
    if neural:
        return "has logits but is not a class derived from torch.nn.Module"
    for method, other in (("fit", "predict"), ("predict", "fit")):
        if has(own, method):
            return f"has {method} but no {other}: a predictor that is not neural needs {METHODS}"
    return f"has neither logits(weights), of a neural predictor, nor {METHODS}, of any other"


def check_call(name: str, own: type, how: str, *arguments: object, **options: object) -> None:
    """A clear line now, instead of a TypeError when the first one is built."""
    try:
        inspect.signature(own).bind(*arguments, **options)
    except TypeError as error:
        raise ValueError(f"{name} cannot be built as {own.__name__}{how}: {error}") from error


def import_named(name: str) -> ModuleType:
    """The module, looked for in the current folder first, as ``python -m`` does."""
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ValueError(f"importing {name} failed: it needs {error.name}, which is not installed") from error
        raise ValueError(f"no module called {name} in {os.getcwd()} or among the installed packages") from error
    except Exception as error:
        raise ValueError(f"importing {name} failed: {type(error).__name__}: {error}") from error
