"""The models of a table: those that come with the benchmarks, and predictors of the user's own.

A model of the benchmarks is one entry of ``MODELS``. One of the user's is named ``module:Class`` on the command line:
an ``nn.Module`` with ``logits(weights)`` is trained like the neural predictors here, anything else with
``fit(train, validation)`` and ``predict(rows)`` is fitted like the trees. The module is imported, from the current
folder or from where packages are installed; only names on a command line are, never names read from a file.
"""

import ast
import copy
import hashlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float
from torch import nn

from benchmarks.data import Checkpoints, Fitted
from benchmarks.models.hyperparameters import fit_hyperparameters
from benchmarks.models.trees import fit_lightgbm, fit_random_forest, fit_xgboost
from benchmarks.statistics import kendall_tau
from nfn import GaugeNFN, MLPPredictor, Predictor, ProbeNFN, RawMomentsPredictor, StatNN, TransformerNFN
from nfn.predictors.fixed_basis import CanonicalClassifierNFN, CanonicalNFN, InvariantClassifierNFN
from zoo import TransformerSpec


class FittedModel(Fitted, Protocol):
    """A fitted model: ``epoch`` of ``epochs`` did best on validation. It is a round of boosting for trees; None is not
    known."""

    @property
    def epoch(self) -> int | None: ...

    @property
    def epochs(self) -> int | None: ...

    @property
    def parameters(self) -> int | None: ...

    @property
    def validation_tau(self) -> float: ...


Fit = Callable[[Checkpoints, Checkpoints, Sequence[int], int], Sequence[FittedModel]]
"""Train, validation, seeds and threads → one fitted model per seed."""


@dataclass(frozen=True)
class BenchmarkModel:
    """One model. It has one of four: ``kind``, the class of a neural predictor, several of which train together;
    ``module``, the class of a network that trains alone; ``fit``, a function that fits any other model; ``parts``, the
    models that it is the average of.

    ``library`` is the package that ``fit`` imports. A model that is not ``seeded`` has no randomness, like boosting
    without subsampling: one fit stands for all seeds. ``recipe`` is how a neural predictor is trained for the main
    columns, alone or as a part of an average. A model that is not ``by_default`` is fitted only where it is named,
    because it takes hours without a GPU or answers a separate question; ``variant_of`` is the model that it changes in
    one respect, beside which it is shown. ``edition`` is raised when the way of fitting this model changes, so that
    stored trials of earlier editions are not used; ``source``, a hash of the user's source code, serves the same end.
    """

    name: str
    title: str
    kind: type[Predictor] | None = None
    module: type[nn.Module] | None = None
    fit: Fit | None = None
    parts: tuple[str, ...] = ()
    library: str | None = None
    seeded: bool = True
    recipe: str = "paper"
    by_default: bool = True
    variant_of: str | None = None
    reads_weights: bool = True
    reads_hyperparameters: bool = False
    edition: int = 1
    source: str | None = None

    @property
    def neural(self) -> bool:
        """Whether it, or a part of it, trains by a recipe, for epochs."""
        return self.fit is None

    @property
    def scalable(self) -> bool:
        """Whether what it reads can be brought to unit size; a predictor of the user's may lack ``fit_scale``."""
        return self.kind is None or self.kind.fit_scale is not Predictor.fit_scale

    def missing(self) -> str | None:
        """Why this model cannot be fitted on this machine, in one line; None if it can, or if only a part cannot."""
        if self.library is None or importlib.util.find_spec(self.library) is not None:
            return None
        return f"{self.title} needs {self.library}: pip install 'small-transformer-zoo[benchmarks]'"


MODELS = {
    model.name: model
    for model in (
        BenchmarkModel("mlp", "MLP", kind=MLPPredictor),
        BenchmarkModel("statnn", "STATNN", kind=StatNN),
        BenchmarkModel("xgboost", "XGBoost", fit=fit_xgboost, library="xgboost", seeded=False),
        BenchmarkModel("lightgbm", "LightGBM", fit=fit_lightgbm, library="lightgbm", seeded=False),
        BenchmarkModel("random_forest", "Random Forest", fit=fit_random_forest, library="lightgbm"),
        BenchmarkModel(
            "hyperparameters",
            "hyperparameters only",
            fit=fit_hyperparameters,
            library="sklearn",
            seeded=False,
            reads_weights=False,
            reads_hyperparameters=True,
            edition=2,
        ),
        BenchmarkModel("raw_moments", "raw moments", kind=RawMomentsPredictor, recipe="gauge"),
        BenchmarkModel("probes", "probes", kind=ProbeNFN, recipe="place", by_default=False),
        BenchmarkModel("transformer_nfn", "Transformer-NFN", kind=TransformerNFN),
        BenchmarkModel("gauge_nfn", "Gauge-NFN", kind=GaugeNFN, recipe="gauge"),
        BenchmarkModel(
            "gauge_nfn_hyperparameters",
            "Gauge-NFN averaged with hyperparameters only",
            parts=("gauge_nfn", "hyperparameters"),
            recipe="gauge",
            reads_hyperparameters=True,
        ),
        BenchmarkModel(
            "transformer_nfn_canonical",
            "Transformer-NFN on canonical weights",
            kind=CanonicalNFN,
            by_default=False,
            variant_of="transformer_nfn",
        ),
        BenchmarkModel(
            "transformer_nfn_classifier_canonical",
            "Transformer-NFN, classifier canonical",
            kind=CanonicalClassifierNFN,
            by_default=False,
            variant_of="transformer_nfn",
        ),
        BenchmarkModel(
            "transformer_nfn_classifier_invariants",
            "Transformer-NFN, classifier's invariants",
            kind=InvariantClassifierNFN,
            by_default=False,
            variant_of="transformer_nfn",
        ),
    )
}
SIX_MODELS = ("mlp", "statnn", "xgboost", "lightgbm", "random_forest", "transformer_nfn")  # the paper's
USUAL_MODELS = tuple(name for name, model in MODELS.items() if model.by_default)
_METHODS = "fit(train, validation) and predict(rows)"
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


def _register(model: BenchmarkModel) -> None:
    """Makes a model one of ``known_models`` until the enclosing ``own_models`` ends."""
    if model.name in MODELS:
        raise ValueError(f"{model.name} is the name of a model that comes with the benchmarks: choose another")
    _OWN.get()[model.name] = model


def known_models() -> dict[str, BenchmarkModel]:
    """All models by name, in the order of the tables: those that come with the benchmarks, then the user's own."""
    return MODELS | _OWN.get({})


def weight_models() -> tuple[str, ...]:
    """The models that read weights and nothing else, without variants of others."""
    return tuple(
        name
        for name, model in known_models().items()
        if model.reads_weights and not model.reads_hyperparameters and model.variant_of is None
    )


def builder(
    name: str, spec: TransformerSpec, channels: Sequence[int] | None, components: Sequence[str] | None
) -> Callable[[torch.Generator], Predictor]:
    """A function that makes a neural predictor from a generator; only Transformer-NFN has ``channels``."""
    kind: Callable[..., Predictor] | None = known_models()[name].kind
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
        _register(_load_model(name))
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
    defined_in = sys.modules.get(getattr(own, "__module__", module_name), module)
    source = _source_digest([module, defined_in])
    neural, other = _has(own, "logits"), _has(own, "fit") and _has(own, "predict")
    if isinstance(own, type) and issubclass(own, nn.Module) and neural:
        _check_call(name, own, "(spec, generator=generator)", None, generator=None)
        if issubclass(own, Predictor) and own.logits_of is not Predictor.logits_of:
            if not hasattr(own, "kind"):
                raise ValueError(f'{name} derives from nfn.Predictor and lacks its kind, such as kind = "my_predictor"')
            return BenchmarkModel(name, title, kind=own, source=source)
        return BenchmarkModel(name, title, module=own, source=source)
    if other:
        takes_seed = isinstance(own, type) and "seed" in inspect.signature(own).parameters
        if isinstance(own, type):
            _check_call(name, own, "(seed=seed)" if takes_seed else "()", **({"seed": 0} if takes_seed else {}))
        return BenchmarkModel(name, title, fit=_fit_of(name, own, takes_seed), seeded=takes_seed, source=source)
    raise ValueError(f"{name} {_shortcoming(own, neural)}")


def _has(own: Any, method: str) -> bool:
    return callable(getattr(own, method, None))


def _shortcoming(own: Any, neural: bool) -> str:
    """Why this is neither kind of predictor."""
    if neural and isinstance(own, nn.Module):
        return "is one network: name its class, which is built once for each seed"
    if neural:
        return "has logits but is not a class derived from torch.nn.Module"
    for method, other in (("fit", "predict"), ("predict", "fit")):
        if _has(own, method):
            return f"has {method} but no {other}: a predictor that is not neural needs {_METHODS}"
    return f"has neither logits(weights), of a neural predictor, nor {_METHODS}, of any other"


def _check_call(name: str, own: type, how: str, *arguments: object, **options: object) -> None:
    """A clear line now, instead of a TypeError when the first one is built."""
    try:
        inspect.signature(own).bind(*arguments, **options)
    except TypeError as error:
        raise ValueError(f"{name} cannot be built as {own.__name__}{how}: {error}") from error


def _import_named(name: str) -> ModuleType:
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


@dataclass(frozen=True)
class _FittedOwn:
    """A fitted object of the user's. How it was fitted is not known."""

    name: str
    fitted: Any
    validation_tau: float
    epoch: None = None
    epochs: None = None
    parameters: None = None

    def predict(self, rows: Checkpoints) -> Float[np.ndarray, " n"]:
        return _predictions(self.name, self.fitted, rows)


def _fit_of(name: str, own: Any, takes_seed: bool) -> Fit:
    """Fits a new object for each seed: an instance of the class, or a copy of the object."""

    def build(seed: int) -> Any:
        if not isinstance(own, type):
            return copy.deepcopy(own)
        return own(seed=seed) if takes_seed else own()

    def fit(train: Checkpoints, validation: Checkpoints, seeds: Sequence[int], jobs: int) -> list[_FittedOwn]:
        all_fitted = []
        for seed in seeds:
            predictor = build(seed)
            predictor.fit(_on_cpu(train), _on_cpu(validation))
            tau = kendall_tau(_predictions(name, predictor, validation), validation.truth())
            all_fitted.append(_FittedOwn(name, predictor, tau))
        return all_fitted

    return fit


def _on_cpu(rows: Checkpoints) -> Checkpoints:
    return replace(rows, weights=rows.weights.cpu(), accuracy=rows.accuracy.cpu())


def _predictions(name: str, predictor: Any, rows: Checkpoints) -> Float[np.ndarray, " n"]:
    """Its predictions for rows whose accuracies are hidden: they are NaN."""
    hidden = replace(_on_cpu(rows), accuracy=torch.full((len(rows),), torch.nan))
    result = predictor.predict(hidden)
    predicted = np.asarray(result.detach().cpu() if isinstance(result, torch.Tensor) else result)
    if predicted.shape != (len(rows),) or predicted.dtype.kind not in "fiu":
        got = f"{predicted.dtype} of shape {list(predicted.shape)}"
        raise ValueError(f"{name}.predict must return one number per checkpoint, [{len(rows)}] here, got {got}")
    return predicted.astype(np.float64)


def _source_digest(modules: Sequence[ModuleType]) -> str:
    """A hash of the source of these modules and of those beside them that they import: changed code is fitted again."""
    found: dict[str, bytes] = {}

    def collect(module: ModuleType) -> None:
        path = _source_file(module)
        if module.__name__ in found or path is None:
            return
        found[module.__name__] = path.read_bytes()
        for name in _imported_names(ast.parse(found[module.__name__]), module.__package__ or ""):
            other = sys.modules.get(name)
            if other is not None and _belong_together(module, other):
                collect(other)

    for module in modules:
        collect(module)
    hashes = (f"{name} {hashlib.sha256(source).hexdigest()}" for name, source in sorted(found.items()))
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()[:_DIGITS]


def _belong_together(module: ModuleType, other: ModuleType) -> bool:
    """Whether both are of one package, or lie in one folder of the user's. This project's models have editions."""
    first, second = (one.__name__.partition(".")[0] for one in (module, other))
    folder = _top_folder(module)
    beside = folder is not None and folder == _top_folder(other) and "site-packages" not in folder.parts
    return first == second or (beside and second not in _THIS_PROJECT)


def _top_folder(module: ModuleType) -> Path | None:
    """The folder that the module's first name lies in; None for a module without source."""
    path = _source_file(module)
    if path is None:
        return None
    depth = module.__name__.count(".") + (1 if hasattr(module, "__path__") else 0)
    return path.parents[depth] if depth < len(path.parents) else None


def _source_file(module: ModuleType) -> Path | None:
    """None for what is compiled or built in."""
    path = Path(getattr(module, "__file__", None) or "").resolve()
    return path if path.suffix == ".py" and path.is_file() else None


def _imported_names(tree: ast.Module, package: str) -> Iterator[str]:
    """Every name that may be a module in the import statements of a source file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            if node.level > len(package.split(".") if package else ()):
                continue  # beyond the package: an import that fails
            start = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            yield start
            for alias in node.names:
                yield f"{start}.{alias.name}"
