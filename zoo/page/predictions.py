"""Predicted beside measured accuracies, from any predictor, in a JSON file.

[{"config": "mnist", "predictor": "Transformer-NFN", "data": "test split of 2,000 runs",
  "predicted": [0.91, …], "measured": [0.93, …], "tau": 0.845, "interval": [0.816, 0.870], "reads_weights": true}, …]

``tau``, ``interval`` and ``reads_weights`` may be left out. Text is shown as it is, never read as HTML.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from zoo.page.tables import plain
from zoo.storage.untrusted import is_finite, parse_json, read_bounded

_MAX_BYTES = 64 << 20
_REQUIRED = 5  # fields without a default, which come first
_MOST_POINTS = 2000
"""A page shows at most this many points of a predictor; of more, it shows every second, third, …"""


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_finite, value))


_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("config", "predictor", "data"), ("text", _is_text)),
    **dict.fromkeys(("predicted", "measured"), ("a list of finite numbers", _is_numbers)),
    "tau": ("a number", lambda value: value is None or is_finite(value)),
    "interval": ("two numbers", lambda value: value is None or (_is_numbers(value) and len(value) == 2)),
    "reads_weights": ("true or false", lambda value: isinstance(value, bool)),
}


@dataclass(frozen=True)
class Predictions:
    """The accuracies that one predictor predicts for checkpoints of a config, in the order of the measured ones.

    ``tau`` is Kendall's rank correlation of the two and ``interval`` its 95% interval, over several fits where there
    are more than the one shown; ``data`` says which checkpoints these are, since they may be of another zoo than the
    page's.
    """

    config: str
    predictor: str
    data: str
    predicted: list[float]
    measured: list[float]
    tau: float | None = None
    interval: list[float] | None = None
    reads_weights: bool = True

    def __post_init__(self) -> None:
        if len(self.predicted) != len(self.measured) or not self.predicted:
            counts = f"{len(self.predicted):,} predictions for {len(self.measured):,} measurements"
            raise ValueError(f"{self.predictor!r} has {counts}: one for each is needed")

    @classmethod
    def from_dict(cls, raw: Any) -> "Predictions":
        """One object of the file; whatever is wrong with it is a ValueError."""
        names = [field.name for field in fields(cls)]
        if not isinstance(raw, dict) or not set(names[:_REQUIRED]) <= raw.keys():
            raise ValueError(f"each entry must be an object with {', '.join(names[:_REQUIRED])}")
        values: dict[str, Any] = dict(raw)
        for name, value in raw.items():
            if name not in names:
                raise ValueError(f"unknown field {name[:80]!r}: there are {', '.join(names)}")
            kind, fits = _KINDS[name]
            if not fits(value):
                raise ValueError(f"{name} must be {kind}")
            if isinstance(value, list):
                values[name] = [float(number) for number in value]
            elif name == "tau" and value is not None:
                values[name] = float(value)
        return cls(**values)

    def shown(self) -> dict[str, Any]:
        """As a page holds it: at most ``_MOST_POINTS`` points."""
        step = -(-len(self.predicted) // _MOST_POINTS)
        points = {"predicted": plain(self.predicted[::step]), "measured": plain(self.measured[::step])}
        return asdict(self) | points | {"count": len(self.predicted)}


def read_predictions(path: Path) -> list[Predictions]:
    """The predictions in a file of JSON; whatever is wrong with it is a ValueError that names the file."""
    raw = parse_json(read_bounded(path, _MAX_BYTES), str(path))
    try:
        if not isinstance(raw, list):
            raise ValueError("it must be a list of objects, one per predictor")
        return [Predictions.from_dict(entry) for entry in raw]
    except ValueError as error:
        raise ValueError(f"{path} does not hold predictions: {error}") from error
