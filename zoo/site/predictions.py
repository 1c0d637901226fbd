"""Predicted beside measured accuracies, from whoever has made predictions, in a file of JSON.

[{"config": "mnist", "predictor": "Transformer-NFN", "data": "test split of 2,000 runs",
  "predicted": [0.91, …], "measured": [0.93, …], "tau": 0.845, "interval": [0.816, 0.870], "reads_weights": true}, …]

``tau``, ``interval`` and ``reads_weights`` may be left out. Text is shown as it is, never read as HTML.
"""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from zoo.site.packing import plain
from zoo.storage.untrusted import is_finite, parse_json, read_bounded

MAX_BYTES = 64 << 20
REQUIRED = 5  # fields without a default, which come first
LISTS = ("predicted", "measured", "interval")
KINDS = {
    **dict.fromkeys(("config", "predictor", "data"), "text"),
    **dict.fromkeys(("predicted", "measured"), "a list of finite numbers"),
    "tau": "a number",
    "interval": "two numbers",
    "reads_weights": "true or false",
}
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
        if len(self.predicted) != len(self.measured) or not self.predicted:
            counts = f"{len(self.predicted):,} predictions for {len(self.measured):,} measurements"
            raise ValueError(f"{self.predictor!r} has {counts}: one for each is needed")

    @classmethod
    def from_dict(cls, raw: Any) -> "Predictions":
        """One object of the file; whatever is wrong with it is a ValueError."""
        names = [field.name for field in fields(cls)]
        if not isinstance(raw, dict) or not set(names[:REQUIRED]) <= raw.keys():
            raise ValueError(f"each entry must be an object with {', '.join(names[:REQUIRED])}")
        for name, value in raw.items():
            if name not in names:
                raise ValueError(f"unknown field {name[:80]!r}: there are {', '.join(names)}")
            if not fits(name, value):
                raise ValueError(f"{name} must be {KINDS[name]}")
        values: dict[str, Any] = dict(raw)
        for name in LISTS:
            if values.get(name) is not None:
                values[name] = [float(number) for number in values[name]]
        if values.get("tau") is not None:
            values["tau"] = float(values["tau"])
        return cls(**values)

    def shown(self) -> dict[str, Any]:
        """As a page holds it: at most ``MOST_POINTS`` points."""
        step = -(-len(self.predicted) // MOST_POINTS)
        points = {"predicted": plain(self.predicted[::step]), "measured": plain(self.measured[::step])}
        return asdict(self) | points | {"count": len(self.predicted)}


def fits(name: str, value: Any) -> bool:
    """Whether a value of the file is of the kind that its field holds."""
    if name in LISTS:
        pair = name != "interval" or (isinstance(value, list) and len(value) == 2)
        return (value is None and name == "interval") or (
            pair and isinstance(value, list) and all(map(is_finite, value))
        )
    if name == "tau":
        return value is None or is_finite(value)
    return isinstance(value, bool if name == "reads_weights" else str)


def read_predictions(path: Path) -> list[Predictions]:
    """The predictions in a file of JSON; whatever is wrong with it is a ValueError that names the file."""
    raw = parse_json(read_bounded(path, MAX_BYTES), str(path))
    try:
        if not isinstance(raw, list):
            raise ValueError("it must be a list of objects, one per predictor")
        return [Predictions.from_dict(entry) for entry in raw]
    except ValueError as error:
        raise ValueError(f"{path} does not hold predictions: {error}") from error
