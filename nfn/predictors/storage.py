"""Predictors on disk: ``config.json`` is the architecture, ``model.safetensors`` its parameters and buffers."""

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from nfn.predictors.gauge_nfn import GaugeNFN
from nfn.predictors.mlp import MLPPredictor
from nfn.predictors.predictor import Predictor
from nfn.predictors.probes import ProbeNFN
from nfn.predictors.raw_moments import RawMomentsPredictor
from nfn.predictors.statnn import StatNN
from nfn.predictors.transformer_nfn import TransformerNFN
from zoo import TransformerSpec
from zoo.storage.atomic import write_atomically
from zoo.storage.bounded import refuse_larger
from zoo.storage.json_text import read_json

KINDS: dict[str, type[Predictor]] = {
    cls.kind: cls for cls in (TransformerNFN, MLPPredictor, StatNN, GaugeNFN, RawMomentsPredictor, ProbeNFN)
}
CONFIG = "config.json"
TENSORS = "model.safetensors"
LONGEST_HEADER = 1 << 20
FLOATS = {"F16", "BF16", "F32", "F64"}


def save_predictor(predictor: nn.Module, folder: Path | str) -> None:
    """Writes a predictor into a folder, which is created if it does not exist.

    A class of one's own can be saved if it derives from ``Predictor`` and has a ``kind`` that no other class has.
    """
    folder, predictor = Path(folder), storable(predictor)
    tensors = {name: tensor.detach().contiguous() for name, tensor in predictor.state_dict().items()}
    write_atomically(folder / TENSORS, save(tensors))
    write_atomically(folder / CONFIG, json.dumps(predictor.config(), indent=2).encode() + b"\n")


def storable(predictor: nn.Module) -> Predictor:
    """The predictor, unless its class lacks what it takes to build it again."""
    name = type(predictor).__name__
    if not isinstance(predictor, Predictor):
        raise ValueError(
            f"{name} cannot be saved: it must derive from nfn.Predictor, have a kind, and tell its options in config()"
        )
    own = type(predictor)
    if not hasattr(own, "kind"):
        raise ValueError(f'{name} cannot be saved: it needs a kind, such as kind = "my_predictor"')
    if (other := KINDS.get(own.kind, own)) is not own:
        raise ValueError(
            f"{name} cannot be saved: its kind {own.kind!r} is that of {other.__name__}, give it one of its own"
        )
    return predictor


def load_predictor(folder: Path | str, own: type[Predictor] | None = None) -> Predictor:
    """The predictor that ``save_predictor`` wrote, on the CPU, in the dtype it had.

    A predictor of a class of one's own needs that class as ``own``: nothing is imported because a file says so.
    """
    folder = Path(folder)
    for name in (CONFIG, TENSORS):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} holds no predictor: {name} is missing")
    config = read_json(folder / CONFIG)
    tensors = read_tensors(folder / TENSORS, expected_shapes(config, own))
    if len(dtypes := {str(tensor.dtype) for tensor in tensors.values()}) != 1:
        raise ValueError(f"{TENSORS} in {folder} holds {', '.join(sorted(dtypes))}, not one kind of float")
    predictor = build_predictor(config, own)
    predictor.to(next(iter(tensors.values())).dtype).load_state_dict(tensors)
    return predictor


def expected_shapes(config: dict[str, Any], own: type[Predictor] | None = None) -> dict[str, list[int]]:
    """The tensors that a predictor of this architecture has.

    Made without memory: a forged config may ask for any amount of it, but the file must hold as much.
    """
    with torch.device("meta"):
        plan = build_predictor(config, own)
    return {name: list(tensor.shape) for name, tensor in plan.state_dict().items()}


def read_tensors(path: Path, expected: dict[str, list[int]]) -> dict[str, torch.Tensor]:
    """The tensors of a file, which must be these, of floats."""
    try:
        refuse_larger(path, sum(8 * math.prod(shape) for shape in expected.values()) + LONGEST_HEADER)
        with safe_open(path, framework="pt") as file:
            headers = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            stored = {name: header.get_shape() for name, header in headers.items()}
            if expected != stored:
                names = expected.keys() | stored.keys()
                wrong = sorted(name for name in names if expected.get(name) != stored.get(name))
                raise ValueError(f"{path.name} in {path.parent} does not fit its {CONFIG}: {wrong[0]} differs")
            if not (dtypes := {header.get_dtype() for header in headers.values()}) <= FLOATS:
                raise ValueError(f"{path.name} in {path.parent} holds {', '.join(sorted(dtypes))}, not floats")
            return {name: file.get_tensor(name) for name in headers}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is damaged ({error}): save the predictor again") from error


def build_predictor(config: dict[str, Any], own: type[Predictor] | None = None) -> Predictor:
    """A new predictor of the architecture that a config describes, one of the ``KINDS`` or of one's own class."""
    if not isinstance(config, dict):
        raise ValueError(f"the config of a predictor is an object, got a {type(config).__name__}")
    options = dict(config)
    kind = options.pop("kind", None)
    kinds = KINDS if own is None else KINDS | {own.kind: own}
    if kind not in tuple(kinds):
        raise ValueError(f"unknown kind of predictor {kind!r}: one of {', '.join(kinds)}")
    try:
        return kinds[kind](TransformerSpec(**options.pop("spec")), **options)
    # What torch raises for impossible widths: a RuntimeError for a negative one, an OverflowError past 64 bits.
    except (TypeError, KeyError, AttributeError, RuntimeError, OverflowError, ZeroDivisionError) as error:
        raise ValueError(f"the config of a {kind} predictor does not fit: {error}") from error
