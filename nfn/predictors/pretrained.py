"""Fitted predictors in one small file each, and those that come with this package.

``NAME.safetensors`` has the architecture in its header, the parameters, and the interval around predictions; the large
matrices are stored in half precision, everything else in float32. ``NAME.toml`` is its card: the data it was fitted on,
the recipe, what it reached on the test split, and what it must not be used for.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from nfn.predictors.conformal import MOST_BINS, ConformalInterval
from nfn.predictors.predictor import Predictor
from nfn.predictors.storage import build_predictor, expected_shapes, read_tensors, storable
from zoo import TransformerSpec, TransformerWeights
from zoo.storage.atomic import write_atomically
from zoo.storage.untrusted import parse_json, read_bounded, refuse_larger
from zoo.tasks.toml_text import parse_toml

FOLDER = Path(__file__).parent.parent / "pretrained"
SUFFIX, CARD_SUFFIX = ".safetensors", ".toml"
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}")
MAX_BYTES, MAX_CARD_BYTES = 64 << 20, 1 << 16
HALVED = 1 << 16
"""Matrices with at least this many numbers are stored in half precision."""
EDGES, WIDTHS = "interval.edges", "interval.half_widths"


class Prediction(NamedTuple):
    """Predicted accuracies and the ends of their intervals."""

    accuracy: Float[Tensor, "*batch"]
    low: Float[Tensor, "*batch"]
    high: Float[Tensor, "*batch"]


class Pretrained(nn.Module):
    """A fitted predictor: called, it predicts accuracies like any other; ``predict`` gives intervals too."""

    def __init__(self, predictor: Predictor, interval: ConformalInterval, card: dict[str, Any]) -> None:
        super().__init__()
        self.predictor, self.interval, self.card = predictor, interval, card

    @property
    def spec(self) -> TransformerSpec:
        """The dimensions of the transformers it reads."""
        return self.predictor.spec

    def logits(self, weights: TransformerWeights | Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
        """The prediction before the sigmoid."""
        return self.predictor.logits(weights)

    def forward(self, weights: TransformerWeights | Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
        """The predicted accuracy of each checkpoint."""
        return self.predictor(weights)

    @torch.no_grad()
    def predict(self, weights: TransformerWeights | Float[Tensor, "*batch d"]) -> Prediction:
        """The predicted accuracy of each checkpoint, and the ends of its interval; without gradients."""
        accuracy = self(weights)
        return Prediction(accuracy, *self.interval(accuracy))


def save_pretrained(predictor: Predictor, interval: ConformalInterval, path: Path) -> int:
    """Writes the file of a predictor and returns its size; the card beside it is written by whoever measured it."""
    predictor = storable(predictor)
    tensors = {name: stored(tensor.detach()) for name, tensor in predictor.state_dict().items()}
    tensors |= {EDGES: interval.edges.float(), WIDTHS: interval.half_widths.float()}
    data = save(tensors, metadata={"config": json.dumps(predictor.config(), sort_keys=True)})
    write_atomically(path, data)
    return len(data)


def stored(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float16 if tensor.numel() >= HALVED else torch.float32).contiguous()


def load_pretrained(name: str | Path) -> Pretrained:
    """A fitted predictor of this package by name (``pretrained_names``), or any by the path of its file; float32."""
    path = Path(name) if Path(name).suffix == SUFFIX else packaged(str(name))
    try:
        refuse_larger(path, MAX_BYTES)
        with safe_open(path, framework="pt") as file:
            config = parse_json((file.metadata() or {}).get("config", "").encode(), f"the config of {path}")
            shapes = {key: file.get_slice(key).get_shape() for key in (EDGES, WIDTHS) if key in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged ({error}): fit it again with python -m benchmarks.pretrain") from error
    bins = shapes.get(WIDTHS, [0])[0] if shapes.get(WIDTHS) else 0
    if not 1 <= bins <= MOST_BINS or shapes.get(EDGES) != [bins - 1]:
        raise ValueError(f"{path} has no interval: it is no file of python -m benchmarks.pretrain")
    tensors = read_tensors(path, expected_shapes(config) | {EDGES: [bins - 1], WIDTHS: [bins]})
    single = {key: tensor.float() for key, tensor in tensors.items()}
    interval = ConformalInterval(single.pop(EDGES), single.pop(WIDTHS))
    predictor = build_predictor(config)
    predictor.load_state_dict(single)
    return Pretrained(predictor.eval(), interval, read_card(path.with_suffix(CARD_SUFFIX))).eval()


def packaged(name: str) -> Path:
    path = FOLDER / f"{name}{SUFFIX}"
    if not NAME.fullmatch(name) or not path.is_file():
        raise ValueError(
            f"no fitted predictor called {name!r}: there are {', '.join(pretrained_names())}; "
            f"one of your own is named by its file, which ends in {SUFFIX}"
        )
    return path


def pretrained_names() -> list[str]:
    """The fitted predictors that come with this package."""
    return sorted(path.stem for path in FOLDER.glob(f"*{SUFFIX}"))


def read_card(path: Path) -> dict[str, Any]:
    """What is known of a predictor; nothing where it has no card."""
    if not path.is_file():
        return {}
    return parse_toml(read_bounded(path, MAX_CARD_BYTES), str(path))
