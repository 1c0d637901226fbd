"""Predictors on disk, in two forms.

A folder of ``save_predictor``: ``config.json`` is the architecture, ``model.safetensors`` its parameters and buffers.

A fitted predictor in one small file, like those that come with this package: ``NAME.safetensors`` has the architecture
in its header, the parameters, and the interval around predictions; the large matrices are stored in half precision,
everything else in float32. ``NAME.toml`` is its card: the data it was fitted on, the recipe, its accuracy on the test
split, and what it must not be used for.
"""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from nfn.predictors.baselines import MLPPredictor, RawMomentsPredictor, StatNN
from nfn.predictors.conformal import MOST_BINS, ConformalInterval
from nfn.predictors.gauge_nfn import GaugeNFN, InvariantNFN, ResponseNFN
from nfn.predictors.predictor import Predictor
from nfn.predictors.probes import HiddenProbeNFN, ProbeGenNFN, ProbeNFN
from nfn.predictors.quasi_nfn import QuasiNFN
from nfn.predictors.transformer_nfn import TransformerNFN
from zoo import TransformerSpec, TransformerWeights
from zoo.format.schema import GAP, labels_of
from zoo.storage.atomic import write_atomically
from zoo.storage.untrusted import HeldFile, parse_json, read_bounded, read_json
from zoo.tasks.toml_text import parse_toml
from zoo.transformer.weights import FlatLike

_SUFFIX, CARD_SUFFIX = ".safetensors", ".toml"
_KINDS: dict[str, type[Predictor]] = {
    cls.kind: cls
    for cls in (
        TransformerNFN,
        MLPPredictor,
        StatNN,
        GaugeNFN,
        InvariantNFN,
        ResponseNFN,
        RawMomentsPredictor,
        ProbeNFN,
        HiddenProbeNFN,
        ProbeGenNFN,
        QuasiNFN,
    )
}
_CONFIG, _TENSORS = "config.json", "model.safetensors"
_LONGEST_HEADER = 1 << 20
_FLOATS = {"F16", "BF16", "F32", "F64"}
_PRETRAINED = Path(__file__).parent.parent / "pretrained"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}")
_MAX_BYTES, _MAX_CARD_BYTES = 64 << 20, 1 << 16
_HALVED = 1 << 16  # matrices of at least so many numbers are stored in half precision; a scale could be infinite there
_EDGES, _WIDTHS = "interval.edges", "interval.half_widths"
_LABEL = "label"  # in the header, unless it is test accuracy


def save_predictor(predictor: nn.Module, folder: Path | str) -> None:
    """Writes a predictor into a folder, which is created if it does not exist.

    A class of your own can be saved if it derives from ``Predictor`` and has a ``kind`` that no other class has.
    """
    folder, predictor = Path(folder), _storable(predictor)
    tensors = {name: tensor.detach().contiguous() for name, tensor in predictor.state_dict().items()}
    write_atomically(folder / _TENSORS, save(tensors))
    write_atomically(folder / _CONFIG, json.dumps(predictor.config(), indent=2).encode() + b"\n")


def _storable(predictor: nn.Module) -> Predictor:
    """The predictor, unless its class lacks what is needed to build it again."""
    name = type(predictor).__name__
    if not isinstance(predictor, Predictor):
        raise ValueError(
            f"{name} cannot be saved: it must derive from nfn.Predictor, have a kind, and give its options in config()"
        )
    own = type(predictor)
    if not hasattr(own, "kind"):
        raise ValueError(f'{name} cannot be saved: it needs a kind, such as kind = "my_predictor"')
    if (other := _KINDS.get(own.kind, own)) is not own:
        raise ValueError(
            f"{name} cannot be saved: its kind {own.kind!r} is that of {other.__name__}, give it one of its own"
        )
    return predictor


def load_predictor(folder: Path | str, own: type[Predictor] | None = None) -> Predictor:
    """The predictor that ``save_predictor`` wrote, on the CPU, in the dtype it had.

    A predictor of a class of your own needs that class as ``own``: nothing is imported because a file names it.
    """
    folder = Path(folder)
    for name in (_CONFIG, _TENSORS):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} does not hold a predictor: {name} is missing")
    config = read_json(folder / _CONFIG)
    tensors = _read_tensors(folder / _TENSORS, _expected_shapes(config, own))
    if len(dtypes := {str(tensor.dtype) for tensor in tensors.values()}) != 1:
        raise ValueError(f"{_TENSORS} in {folder} holds {', '.join(sorted(dtypes))}, not one kind of float")
    predictor = _build_predictor(config, own)
    predictor.to(next(iter(tensors.values())).dtype).load_state_dict(tensors)
    return predictor


def _expected_shapes(config: dict[str, Any], own: type[Predictor] | None = None) -> dict[str, list[int]]:
    """The tensors that a predictor of this architecture has.

    Built without memory: a forged config may describe any size, but the file must hold as much.
    """
    with torch.device("meta"):
        plan = _build_predictor(config, own)
    return {name: list(tensor.shape) for name, tensor in plan.state_dict().items()}


def _read_tensors(path: Path, expected: dict[str, list[int]]) -> dict[str, torch.Tensor]:
    """The tensors of a file, which must be floats of these shapes."""
    try:
        HeldFile(path).refuse_larger(sum(8 * math.prod(shape) for shape in expected.values()) + _LONGEST_HEADER)
        with safe_open(path, framework="pt") as file:
            headers = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            stored = {name: header.get_shape() for name, header in headers.items()}
            if expected != stored:
                names = expected.keys() | stored.keys()
                wrong = sorted(name for name in names if expected.get(name) != stored.get(name))
                raise ValueError(f"{path.name} in {path.parent} does not fit its {_CONFIG}: {wrong[0]} differs")
            if not (dtypes := {header.get_dtype() for header in headers.values()}) <= _FLOATS:
                raise ValueError(f"{path.name} in {path.parent} holds {', '.join(sorted(dtypes))}, not floats")
            tensors = {name: file.get_tensor(name) for name in headers}
            for name, tensor in tensors.items():
                if not bool(tensor.isfinite().all()):
                    raise ValueError(f"{path.name} in {path.parent} holds NaN or infinity in {name}: fit it again")
            return tensors
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is damaged ({error}): save the predictor again") from error


def _build_predictor(config: dict[str, Any], own: type[Predictor] | None = None) -> Predictor:
    """A new predictor of the architecture that a config describes, one of the ``_KINDS`` or of the class ``own``."""
    if not isinstance(config, dict):
        raise ValueError(f"the config of a predictor is an object, got a {type(config).__name__}")
    options = dict(config)
    kind = options.pop("kind", None)
    kinds = _KINDS if own is None else _KINDS | {own.kind: own}
    if kind not in tuple(kinds):
        raise ValueError(f"unknown kind of predictor {kind!r}: one of {', '.join(kinds)}")
    if kind == GaugeNFN.kind:
        options.setdefault("reads", ["invariants"])  # all that it read when files did not state it
    try:
        return kinds[kind](TransformerSpec(**options.pop("spec")), **options)
    # torch raises a RuntimeError for a negative width, an OverflowError past 64 bits.
    except (TypeError, KeyError, AttributeError, RuntimeError, OverflowError, ZeroDivisionError) as error:
        raise ValueError(f"the config of a {kind} predictor does not fit: {error}") from error


class Prediction(NamedTuple):
    """Predicted accuracies and the ends of their intervals."""

    accuracy: Float[Tensor, "*batch"]
    low: Float[Tensor, "*batch"]
    high: Float[Tensor, "*batch"]


class Pretrained(nn.Module):
    """A fitted predictor: called, it predicts accuracies like any other; ``predict`` gives intervals too.

    What it predicts is its ``label``: of language models that may be the test loss, less of which is better.
    """

    def __init__(
        self, predictor: Predictor, interval: ConformalInterval, card: dict[str, Any], label: str = "test_accuracy"
    ) -> None:
        super().__init__()
        least, most = (0.0, 1.0) if label == "test_accuracy" else (-math.inf if label == GAP else 0.0, math.inf)
        self.predictor, self.interval = predictor, replace(interval, least=least, most=most)
        self.card, self.label = card, label

    @property
    def spec(self) -> TransformerSpec:
        """The dimensions of the transformers it reads."""
        return self.predictor.spec

    def logits(self, weights: TransformerWeights | Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
        """The prediction before the sigmoid."""
        return self.predictor.logits(weights)

    def forward(self, weights: TransformerWeights | FlatLike) -> Float[Tensor, "*batch"]:
        """The predicted accuracy of each checkpoint."""
        return self.predictor(weights)

    @torch.no_grad()
    def predict(self, weights: TransformerWeights | FlatLike) -> Prediction:
        """The predicted accuracy of each checkpoint, and the ends of its interval; without gradients."""
        accuracy = self(weights)
        return Prediction(accuracy, *self.interval(accuracy))


def save_pretrained(predictor: nn.Module, interval: ConformalInterval, path: Path, label: str = "test_accuracy") -> int:
    """Writes the file of a predictor and returns its size; the card beside it is written after measuring it."""
    predictor = _storable(predictor)
    tensors = {
        name: (tensor.half() if tensor.ndim > 1 and tensor.numel() >= _HALVED else tensor.float()).contiguous()
        for name, tensor in predictor.state_dict().items()
    }
    tensors |= {_EDGES: interval.edges.float(), _WIDTHS: interval.half_widths.float()}
    metadata = {"config": json.dumps(predictor.config(), sort_keys=True)}
    data = save(tensors, metadata=metadata | ({} if label == "test_accuracy" else {_LABEL: label}))
    write_atomically(path, data)
    return len(data)


def load_pretrained(name: str | Path) -> Pretrained:
    """A fitted predictor of this package by name (``pretrained_names``), or any by the path of its file; float32."""
    path = Path(name) if Path(name).suffix == _SUFFIX else _packaged(str(name))
    try:
        HeldFile(path).refuse_larger(_MAX_BYTES)
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            config = parse_json(header.get("config", "").encode(), f"the config of {path}")
            shapes = {key: file.get_slice(key).get_shape() for key in (_EDGES, _WIDTHS) if key in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged ({error}): fit it again with python -m benchmarks.pretrain") from error
    bins = shapes.get(_WIDTHS, [0])[0] if shapes.get(_WIDTHS) else 0
    if not 1 <= bins <= MOST_BINS or shapes.get(_EDGES) != [bins - 1]:
        raise ValueError(f"{path} has no interval: it is not a file of python -m benchmarks.pretrain")
    tensors = _read_tensors(path, _expected_shapes(config) | {_EDGES: [bins - 1], _WIDTHS: [bins]})
    single = {key: tensor.float() for key, tensor in tensors.items()}
    interval = ConformalInterval(single.pop(_EDGES), single.pop(_WIDTHS))
    predictor = _build_predictor(config)
    predictor.load_state_dict(single)
    label = header.get(_LABEL, "test_accuracy")
    if label not in (*labels_of(predictor.spec), GAP):
        raise ValueError(f"{path} predicts {label[:80]!r}, which {predictor.spec.task} transformers do not have")
    card = path.with_suffix(CARD_SUFFIX)
    described = parse_toml(read_bounded(card, _MAX_CARD_BYTES), str(card)) if card.is_file() else {}
    return Pretrained(predictor.eval(), interval, described, label).eval()


def _packaged(name: str) -> Path:
    path = _PRETRAINED / f"{name}{_SUFFIX}"
    if not _NAME.fullmatch(name) or not path.is_file():
        raise ValueError(
            f"no fitted predictor called {name!r}: there are {', '.join(pretrained_names())}; "
            f"one of your own is named by its file, which ends in {_SUFFIX}"
        )
    return path


def pretrained_names() -> list[str]:
    """The fitted predictors that come with this package."""
    return sorted(path.stem for path in _PRETRAINED.glob(f"*{_SUFFIX}"))
