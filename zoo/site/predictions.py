"""Predicted beside measured accuracies, from whoever has made predictions, in a file of JSON.

[{"config": "mnist", "predictor": "Transformer-NFN", "data": "test split of 2,000 runs",
  "predicted": [0.91, …], "measured": [0.93, …], "tau": 0.845, "interval": [0.816, 0.870], "reads_weights": true}, …]

``tau``, ``interval`` and ``reads_weights`` may be left out. Text is shown as it is, never read as HTML.
"""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zoo.site.packing import plain
from zoo.storage.bounded import read_bounded
from zoo.storage.json_text import parse_json

MAX_BYTES = 64 << 20
MOST_POINTS = 2000
"""Of one predictor in a page; of more, every so many are shown."""


@dataclass(frozen=True)
class Predictions:
    """What one predictor says about the checkpoints of a config, in the order of what was measured.

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
        for name in ("config", "predictor", "data"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} must be text, got {getattr(self, name)!r}")
        for name in ("predicted", "measured"):
            if not are_numbers(getattr(self, name)):
                raise ValueError(f"{name} of {self.predictor!r} must be a list of finite numbers")
        if len(self.predicted) != len(self.measured) or not self.predicted:
            counts = f"{len(self.predicted):,} predictions for {len(self.measured):,} measurements"
            raise ValueError(f"{self.predictor!r} has {counts}: one for each is needed")
        if self.tau is not None and not are_numbers([self.tau]):
            raise ValueError(f"tau of {self.predictor!r} must be a number, got {self.tau!r}")
        if self.interval is not None and (not are_numbers(self.interval) or len(self.interval) != 2):
            raise ValueError(f"interval of {self.predictor!r} must be two numbers, got {self.interval!r}")

    def shown(self) -> dict[str, Any]:
        """As a page holds it: at most ``MOST_POINTS`` points."""
        step = -(-len(self.predicted) // MOST_POINTS)
        points = {"predicted": plain(self.predicted[::step]), "measured": plain(self.measured[::step])}
        return asdict(self) | points | {"count": len(self.predicted)}


def are_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) for value in values
    )


def read_predictions(path: Path) -> list[Predictions]:
    """The predictions in a file of JSON; whatever is wrong with it is a ValueError that names the file."""
    raw = parse_json(read_bounded(path, MAX_BYTES), str(path))
    try:
        if not isinstance(raw, list):
            raise ValueError("it must be a list of objects, one per predictor")
        return [Predictions(**entry) for entry in raw]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} does not hold predictions: {error}") from error
