"""Predictors on disk: ``config.json`` is the architecture, ``model.safetensors`` its parameters and buffers."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from nfn.predictors.gauge_nfn import GaugeNFN
from nfn.predictors.mlp import MLPPredictor
from nfn.predictors.predictor import Predictor
from nfn.predictors.probes import ProbeNFN
from nfn.predictors.raw_moments import RawMomentsPredictor
from nfn.predictors.statnn import StatNN
from nfn.predictors.transformer_nfn import TransformerNFN
from zoo import TransformerSpec
from zoo.storage.atomic import write_atomically
from zoo.storage.json_text import read_json

KINDS: dict[str, type[Predictor]] = {
    cls.kind: cls for cls in (TransformerNFN, MLPPredictor, StatNN, GaugeNFN, RawMomentsPredictor, ProbeNFN)
}
CONFIG = "config.json"
TENSORS = "model.safetensors"
FLOATS = {"F16", "BF16", "F32", "F64"}


def save_predictor(predictor: Predictor, folder: Path | str) -> None:
    """Writes a predictor into a folder, which is created if it does not exist."""
    folder = Path(folder)
    tensors = {name: tensor.detach().contiguous() for name, tensor in predictor.state_dict().items()}
    write_atomically(folder / TENSORS, save(tensors))
    write_atomically(folder / CONFIG, json.dumps(predictor.config(), indent=2).encode() + b"\n")


def load_predictor(folder: Path | str) -> Predictor:
    """The predictor that ``save_predictor`` wrote, on the CPU, in the dtype it had."""
    folder = Path(folder)
    for name in (CONFIG, TENSORS):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} holds no predictor: {name} is missing")
    config = read_json(folder / CONFIG)
    # Without memory at first: a forged config may ask for any amount of it, but the file must hold as much.
    with torch.device("meta"):
        plan = build_predictor(config)
    expected = {name: list(tensor.shape) for name, tensor in plan.state_dict().items()}
    try:
        with safe_open(folder / TENSORS, framework="pt") as file:
            headers = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            stored = {name: header.get_shape() for name, header in headers.items()}
            if expected != stored:
                names = expected.keys() | stored.keys()
                wrong = sorted(name for name in names if expected.get(name) != stored.get(name))
                raise ValueError(f"{TENSORS} in {folder} does not fit its {CONFIG}: {wrong[0]} differs")
            if len(dtypes := {header.get_dtype() for header in headers.values()}) != 1 or not dtypes <= FLOATS:
                raise ValueError(f"{TENSORS} in {folder} holds {', '.join(sorted(dtypes))}, not one kind of float")
            tensors = {name: file.get_tensor(name) for name in headers}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{folder / TENSORS} is damaged ({error}): save the predictor again") from error
    predictor = build_predictor(config)
    predictor.to(next(iter(tensors.values())).dtype).load_state_dict(tensors)
    return predictor


def build_predictor(config: dict[str, Any]) -> Predictor:
    """A new predictor of the architecture that a config describes."""
    if not isinstance(config, dict):
        raise ValueError(f"the config of a predictor is an object, got a {type(config).__name__}")
    options = dict(config)
    kind = options.pop("kind", None)
    if kind not in tuple(KINDS):
        raise ValueError(f"unknown kind of predictor {kind!r}: one of {', '.join(KINDS)}")
    try:
        return KINDS[kind](TransformerSpec(**options.pop("spec")), **options)
    # What torch raises for impossible widths: a RuntimeError for a negative one, an OverflowError past 64 bits.
    except (TypeError, KeyError, AttributeError, RuntimeError, OverflowError, ZeroDivisionError) as error:
        raise ValueError(f"the config of a {kind} predictor does not fit: {error}") from error
