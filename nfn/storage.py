"""Predictors on disk: ``config.json`` is the architecture, ``model.safetensors`` its parameters and buffers."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save

from nfn.predictors import MLPPredictor, Predictor, StatNN, TransformerNFN
from zoo import TransformerSpec
from zoo.atomic import write_atomically

KINDS: dict[str, type[Predictor]] = {cls.kind: cls for cls in (TransformerNFN, MLPPredictor, StatNN)}
CONFIG = "config.json"
TENSORS = "model.safetensors"


def save_predictor(predictor: Predictor, folder: Path | str) -> None:
    """Writes a predictor into a folder, which is made if need be."""
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
    predictor = build_predictor(json.loads((folder / CONFIG).read_text()))
    try:
        tensors = load_file(folder / TENSORS)
    except SafetensorError as error:
        raise ValueError(f"{folder / TENSORS} is damaged ({error}): save the predictor again") from error
    own = {name: tuple(tensor.shape) for name, tensor in predictor.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if own != found:
        wrong = sorted(name for name in own.keys() | found.keys() if own.get(name) != found.get(name))
        raise ValueError(f"{TENSORS} in {folder} does not fit its {CONFIG}: {wrong[0]} differs")
    predictor.to(next(iter(tensors.values())).dtype).load_state_dict(tensors)
    return predictor


def build_predictor(config: dict[str, Any]) -> Predictor:
    """A new predictor of the architecture that a config describes."""
    options = dict(config)
    kind = options.pop("kind", None)
    if kind not in KINDS:
        raise ValueError(f"unknown kind of predictor {kind!r}: one of {', '.join(KINDS)}")
    try:
        return KINDS[kind](TransformerSpec(**options.pop("spec")), **options)
    except (TypeError, KeyError) as error:
        raise ValueError(f"the config of a {kind} predictor does not fit: {error}") from error
