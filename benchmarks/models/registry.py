"""The models of a table: those that come with the benchmarks, and predictors of the user's own.

One of the user's is named ``module:Class`` on the command line: an ``nn.Module`` with ``logits(weights)`` is trained
like the neural predictors here, anything else with ``fit(train, validation)`` and ``predict(rows)`` is fitted like the
trees. The module is imported, from the current folder or from where packages are installed; only names on a command
line are, never names read from a file.
"""

import ast
import copy
import hashlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import nn

import nfn
from benchmarks.data import Checkpoints, Fitted
from benchmarks.models.training import RECIPES
from benchmarks.models.trees import fit_current_label, fit_hyperparameters, fit_lightgbm, fit_random_forest, fit_xgboost
from benchmarks.options import Reads
from benchmarks.statistics import kendall_tau
from zoo import TransformerSpec
from zoo.command import missing

_Fit = Callable[[Checkpoints, Checkpoints, Sequence[int], int], Sequence[Fitted]]
"""Train, validation, seeds and threads → one fitted model per seed."""


@dataclass(frozen=True)
class BenchmarkModel:
    """One model. It has one of three: ``kind``, the class of a neural predictor; ``fit``, a function that fits any
    other model; ``parts``, the models that it is the average of.

    ``library`` is the package that ``fit`` imports. A model that is not ``seeded`` has no randomness, like boosting
    without subsampling: one fit stands for all seeds. ``recipe`` is how a neural predictor is trained for the main
    columns, alone or as a part of an average. ``reads`` has the words of a submission's card, and "label" for a model
    that reads what was measured at the checkpoint of the weights, to forecast a later one, and comes with every
    forecast. ``edition`` is raised when the way of fitting this model changes, so that stored trials of earlier
    editions are not used; ``source``, a hash of the user's source code, serves the same end. ``paper`` is where it, or
    the idea that it follows, is described; None for what comes from this repository.
    """

    name: str
    title: str
    kind: type[nn.Module] | None = None
    fit: _Fit | None = None
    parts: tuple[str, ...] = ()
    library: str | None = None
    seeded: bool = True
    recipe: str = "paper"
    reads: tuple[Reads | Literal["label"], ...] = ("weights",)
    edition: int = 1
    source: str | None = None
    paper: str | None = None

    @property
    def neural(self) -> bool:
        """Whether it, or a part of it, trains by a recipe, for epochs."""
        return self.fit is None

    @property
    def stacked(self) -> bool:
        """Whether several of them train together; a network of the user's that is not a ``Predictor`` trains alone."""
        kind = self.kind
        return kind is not None and issubclass(kind, nfn.Predictor) and kind.logits_of is not nfn.Predictor.logits_of

    @property
    def scalable(self) -> bool:
        """Whether what it reads can be brought to unit size; a predictor of the user's may lack ``fit_scale``."""
        return not self.stacked or getattr(self.kind, "fit_scale", None) is not nfn.Predictor.fit_scale

    def missing(self) -> str | None:
        """Why this model cannot be fitted on this machine, in one line; None if it can, or if only a part cannot."""
        return missing(self.title, [self.library] if self.library else [])


def _average(name: str, title: str, other: str) -> BenchmarkModel:
    """A model and, by ranks, hyperparameters only or today's label."""
    words = {"hyperparameters": "hyperparameters only", "current_label": "today's label"}[other]
    own = "hyperparameters" if name == "hyperparameters" else "weights"
    what: dict[str, Any] = {"parts": (name, other), "reads": (own, other.removeprefix("current_"))}
    return BenchmarkModel(f"{name}_{other}", f"{title} averaged with {words}", recipe="gauge", **what)


_PAPER, _HIDDEN_PROBE = "https://arxiv.org/abs/2410.04209", "https://github.com/yonatansverdlov/HiddenProbe"
_with_probes = partial(BenchmarkModel, recipe="place", reads=("weights", "probes"))
MODELS = {
    model.name: model
    for model in (
        BenchmarkModel("mlp", "MLP", nfn.MLPPredictor, paper=_PAPER),
        BenchmarkModel("statnn", "STATNN", nfn.StatNN, paper="https://arxiv.org/abs/2002.11448"),
        BenchmarkModel("xgboost", "XGBoost", fit=fit_xgboost, library="xgboost", seeded=False, paper=_PAPER),
        BenchmarkModel("lightgbm", "LightGBM", fit=fit_lightgbm, library="lightgbm", seeded=False, paper=_PAPER),
        BenchmarkModel("random_forest", "Random Forest", fit=fit_random_forest, library="lightgbm", paper=_PAPER),
        BenchmarkModel(
            "hyperparameters",
            "hyperparameters only",
            fit=fit_hyperparameters,
            library="sklearn",
            seeded=False,
            reads=("hyperparameters",),
            edition=2,
        ),
        BenchmarkModel("raw_moments", "raw moments", nfn.RawMomentsPredictor, recipe="gauge"),
        _with_probes("probes", "probes", nfn.ProbeNFN),
        _with_probes("hidden_probe_nfn", "HiddenProbe", nfn.HiddenProbeNFN, paper=_HIDDEN_PROBE),
        _with_probes("probe_gen_nfn", "ProbeGen", nfn.ProbeGenNFN, paper="https://arxiv.org/abs/2410.10811"),
        BenchmarkModel("transformer_nfn", "Transformer-NFN", nfn.TransformerNFN, paper=_PAPER),
        BenchmarkModel("quasi_nfn", "Quasi-NFN", nfn.QuasiNFN, paper="https://arxiv.org/abs/2604.23720"),
        BenchmarkModel("invariant_nfn", "Invariant-NFN", nfn.InvariantNFN, recipe="gauge"),
        BenchmarkModel("response_nfn", "Response-NFN", nfn.ResponseNFN, recipe="gauge"),
        BenchmarkModel("gauge_nfn", "Gauge-NFN", nfn.GaugeNFN, recipe="gauge", edition=2),
        _average("invariant_nfn", "Invariant-NFN", "hyperparameters"),
        _average("gauge_nfn", "Gauge-NFN", "hyperparameters"),
        BenchmarkModel("current_label", "today's label", fit=fit_current_label, seeded=False, reads=("label",)),
        _average("hyperparameters", "hyperparameters only", "current_label"),
        _average("gauge_nfn", "Gauge-NFN", "current_label"),
    )
}
_THIS_PROJECT = ("zoo", "generation", "nfn", "benchmarks")
_DIGITS = 16
_OWN: ContextVar[dict[str, BenchmarkModel]] = ContextVar("own models")


@contextmanager
def own_models() -> Iterator[None]:
    """Inside, models of the user's own can be registered; afterwards they are forgotten. Also decorates a command."""
    before = _OWN.set({})
    try:
        yield
    finally:
        _OWN.reset(before)


def known_models() -> dict[str, BenchmarkModel]:
    """All models by name, in the order of the tables: those that come with the benchmarks, then the user's own."""
    return MODELS | _OWN.get({})


def weight_models() -> tuple[str, ...]:
    """The models that read weights and nothing else of a run."""
    models = known_models().items()
    return tuple(name for name, model in models if {*model.reads, "probes"} == {"weights", "probes"})


def builder(
    name: str, spec: TransformerSpec, channels: Sequence[int] | None, components: Sequence[str] | None
) -> Callable[[torch.Generator], Any]:
    """A function that makes a neural predictor from a generator; only Transformer-NFN has ``channels``."""
    kind: Callable[..., Any] | None = known_models()[name].kind
    assert kind is not None
    options = {} if channels is None else {"channels": tuple(channels)}
    options |= {} if components is None else {"components": tuple(components)}
    return lambda generator: kind(spec, generator=generator, **options)


def check_models(names: Sequence[str]) -> tuple[str, ...]:
    """The names, each once: the models of the tables in their order, then the user's own, which are registered."""
    own = dict.fromkeys(name for name in names if name not in MODELS)
    for name in own:
        if ":" not in name:
            raise ValueError(f"unknown model {name!r}: choose some of {', '.join(MODELS)}, or module:Class of your own")
        _OWN.get()[name] = _load_model(name)
    return (*(name for name in MODELS if name in names), *own)


def _load_model(name: str) -> BenchmarkModel:
    """The model called ``module:Class``, or ``module:object`` for one that is not neural."""
    module_name, _, title = name.partition(":")
    if not title.isidentifier() or not all(part.isidentifier() for part in module_name.split(".")):
        raise ValueError(f"{name!r} is not the name of a predictor: write module:Class, such as my_module:MyPredictor")
    module = _import_named(module_name)
    if not hasattr(module, title):
        raise ValueError(f"{module_name} ({module.__file__}) has no {title}")
    own = getattr(module, title)
    source = _source_digest({module_name, getattr(own, "__module__", module_name)})
    has = [method for method in ("logits", "fit", "predict") if callable(getattr(own, method, None))]
    if isinstance(own, type) and issubclass(own, nn.Module) and "logits" in has:
        _check_call(name, own, "(spec, generator=generator)", None, generator=None)
        make = _with_probes if issubclass(own, nfn.ProbeNFN) else BenchmarkModel
        model = make(name, title, own, recipe=getattr(own, "recipe", "paper"), source=source)
        if model.recipe not in tuple(RECIPES):
            raise ValueError(f"{name} has an unknown recipe, {model.recipe!r}: one of {', '.join(RECIPES)}")
        if model.stacked and not hasattr(own, "kind"):
            raise ValueError(f'{name} derives from nfn.Predictor and lacks its kind, such as kind = "my_predictor"')
        return model
    if {"fit", "predict"} <= {*has}:
        takes_seed = isinstance(own, type) and "seed" in inspect.signature(own).parameters
        if isinstance(own, type):
            _check_call(name, own, "(seed=seed)" if takes_seed else "()", **({"seed": 0} if takes_seed else {}))
        return BenchmarkModel(name, title, fit=_fit_of(name, own, takes_seed), seeded=takes_seed, source=source)
    what = "a class" if isinstance(own, type) else "an object"
    raise ValueError(
        f"{name} is {what} with {' and '.join(has) or 'no method of a predictor'}: "
        "a neural predictor is a class derived from torch.nn.Module with logits(weights), built once for each seed; "
        "any other has fit(train, validation) and predict(rows)"
    )


def _check_call(name: str, own: type, how: str, *arguments: object, **options: object) -> None:
    """A clear line now, instead of a TypeError when the first one is built."""
    try:
        inspect.signature(own).bind(*arguments, **options)
    except TypeError as error:
        raise ValueError(f"{name} cannot be built as {own.__name__}{how}: {error}") from error


def _import_named(name: str) -> Any:
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


def _fit_of(name: str, own: Any, takes_seed: bool) -> _Fit:
    """Fits a new object for each seed: an instance of the class, or a copy of the object."""

    def fit_one(train: Checkpoints, validation: Checkpoints, seed: int) -> Fitted:
        options = {"seed": seed} if takes_seed else {}
        predictor = own(**options) if isinstance(own, type) else copy.deepcopy(own)
        predictor.fit(_on_cpu(train), _on_cpu(validation))

        def predict(rows: Checkpoints) -> Float[np.ndarray, " n"]:
            result = predictor.predict(replace(_on_cpu(rows), metadata=rows.metadata.assign(goodness=np.nan)))
            predicted = np.asarray(result.detach().cpu() if isinstance(result, torch.Tensor) else result)
            if predicted.shape != (len(rows),) or predicted.dtype.kind not in "fiu":
                got = f"{predicted.dtype} of shape {list(predicted.shape)}"
                raise ValueError(f"{name}.predict must return one number per checkpoint, [{len(rows)}] here, got {got}")
            return predicted.astype(np.float64)

        return Fitted(predict, kendall_tau(predict(validation), validation.truth()))

    return lambda train, validation, seeds, jobs: [fit_one(train, validation, seed) for seed in seeds]


def _on_cpu(rows: Checkpoints) -> Checkpoints:
    return replace(rows, weights=rows.weights.cpu())


def _source_digest(names: set[str]) -> str:
    """A hash of the source of these modules and of those that they import from the same package, or from the same
    folder of the user's: changed code is fitted again. This project's own models have editions."""
    packages = {name.partition(".")[0] for name in names}
    folders = {folder for folder in map(_top_folder, names) if folder and "site-packages" not in folder.parts}
    found: dict[str, bytes] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        package, folder = name.partition(".")[0], _top_folder(name)
        beside = folder in folders and package not in _THIS_PROJECT
        if name in found or folder is None or not (package in packages or beside):
            continue
        found[name] = Path(sys.modules[name].__file__ or "").read_bytes()
        for node in ast.walk(ast.parse(found[name])):
            if isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                with suppress(ImportError):  # beyond the package: an import that fails
                    relative = "." * node.level + (node.module or "")
                    start = importlib.util.resolve_name(relative, sys.modules[name].__package__)
                    waiting += [start, *(f"{start}.{alias.name}" for alias in node.names)]
    hashes = (f"{name} {hashlib.sha256(source).hexdigest()}" for name, source in sorted(found.items()))
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()[:_DIGITS]


def _top_folder(name: str) -> Path | None:
    """The folder that the first name of a loaded module lies in; None for one without source."""
    path = Path(getattr(sys.modules.get(name), "__file__", None) or "").resolve()
    if path.suffix != ".py" or not path.is_file():
        return None
    return path.parents[name.count(".") + (path.stem == "__init__")]
