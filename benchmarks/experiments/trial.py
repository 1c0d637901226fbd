"""One trial of a table at one seed: what identifies it, and what came out."""

import hashlib
import json
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Integer

from benchmarks.models.registry import MODELS
from benchmarks.models.schedule import RECIPES
from benchmarks.results import Result
from zoo.reading.selection import Selection

PROTOCOL = 2  # raised when the way of training or choosing changes for all, as a benchmark_model's edition for itself
STANDARD_CHANNELS = (10,)  # Transformer-NFN's own default


@dataclass(frozen=True)
class Trial:
    """Everything that the outcome depends on, and the table it is for."""

    benchmark: str
    config: str
    model: str
    seed: int
    zoo: str
    threshold: float = 0.0
    checkpoint: str = "epoch_75"
    recipe: str = "paper"
    epochs: int | None = None
    components: tuple[str, ...] | None = None
    channels: tuple[int, ...] | None = None
    entry_range: float | None = None
    where: Selection | None = None

    def __post_init__(self) -> None:
        if self.recipe not in RECIPES:
            raise ValueError(f"unknown recipe of training {self.recipe!r}: one of {', '.join(RECIPES)}")

    @property
    def key(self) -> str:
        """The same for trials of different tables that are the same fit: on one machine, the same numbers."""
        what = self.to_dict() | {"protocol": PROTOCOL}
        del what["benchmark"], what["where"]  # which rows these are is in the zoo's fingerprint
        if self.channels == STANDARD_CHANNELS:
            what["channels"] = None
        if (edition := MODELS[self.model].edition) > 1:
            what["edition"] = edition
        text = json.dumps(what, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def normalised(self) -> "Trial":
        """Without what does not matter to this model: epochs to a tree, the seed to boosting, epochs to convergence."""
        benchmark_model = MODELS[self.model]
        fixed = benchmark_model.kind is not None and not RECIPES[self.recipe].converged
        return replace(
            self,
            epochs=self.epochs if fixed else None,
            seed=self.seed if benchmark_model.seeded else 0,
            recipe=self.recipe if benchmark_model.kind is not None else "paper",
        )

    @classmethod
    def of_row(cls, row: Result, seed: int) -> "Trial":
        """The trial that a result row was made from, at one of its seeds."""
        assert row.model is not None, "only rows of a model come from trials"
        setting: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in row.setting.items()
        }
        if "where" in setting:
            setting["where"] = Selection.parse(setting["where"])
        return cls(row.benchmark, row.config, row.model, seed, **setting)

    def to_dict(self) -> dict[str, Any]:
        """Plain values by name; the selection as its text."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {"where": None if self.where is None else self.where.expression}

    def across_seeds(self) -> dict[str, Any]:
        """The key without the seed: trials with the same one are averaged."""
        return {name: value for name, value in self.to_dict().items() if name != "seed"}


@dataclass(frozen=True)
class Outcome:
    """Test predictions of one trial beside the truth, and what was noted on the way."""

    predicted: Float[np.ndarray, " n"]
    truth: Float[np.ndarray, " n"]
    runs: Integer[np.ndarray, " n"]
    notes: dict[str, float | str | None]
