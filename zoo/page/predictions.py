"""Predicted beside measured accuracies, from any predictor, in a JSON file.

[{"config": "mnist", "predictor": "Transformer-NFN", "data": "test split of 2,000 runs",
  "predicted": [0.91, …], "measured": [0.93, …], "tau": 0.845, "interval": [0.816, 0.870], "reads_weights": true}, …]

``tau``, ``interval`` and ``reads_weights`` may be left out. Text is shown as it is, never read as HTML.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zoo.checked import checked
from zoo.page.tables import plain
from zoo.storage.untrusted import parse_json, read_bounded

_MAX_BYTES = 64 << 20
_MOST_POINTS = 2000
"""A page shows at most this many points of a predictor; of more, it shows every second, third, …"""


@dataclass(frozen=True)
class Predictions:
    """The accuracies that one predictor predicts for checkpoints of a config, in the order of the measured ones.

    ``tau`` is Kendall's rank correlation of the two and ``interval`` its 95% interval, over several fits where there
    are more than the one shown; ``data`` describes these checkpoints, which may be of another zoo than the page's.
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
        if self.interval is not None and len(self.interval) != 2:
            raise ValueError(f"{self.predictor!r} has an interval of {len(self.interval)} numbers: it has two")
        if len(self.predicted) != len(self.measured) or not self.predicted:
            counts = f"{len(self.predicted):,} predictions for {len(self.measured):,} measurements"
            raise ValueError(f"{self.predictor!r} has {counts}: one for each is needed")

    def shown(self) -> dict[str, Any]:
        """As a page holds it: at most ``_MOST_POINTS`` points."""
        step = -(-len(self.predicted) // _MOST_POINTS)
        points = {"predicted": plain(self.predicted[::step]), "measured": plain(self.measured[::step])}
        return asdict(self) | points | {"count": len(self.predicted)}


def read_predictions(path: Path) -> list[Predictions]:
    """The predictions in a file of JSON; whatever is wrong with it is a ValueError that names the file."""
    raw = parse_json(read_bounded(path, _MAX_BYTES), str(path))
    return checked(raw, list[Predictions], f"{path} does not hold predictions: ")
