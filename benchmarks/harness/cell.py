"""One cell of a table at one seed: what identifies it, and what came out."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Integer

from benchmarks.harness.contenders import CONTENDERS

PROTOCOL = 1  # raised when the way of training or choosing changes, so that no cell of the old way is taken for one
LENGTHS = ("paper", "converged")


@dataclass(frozen=True)
class Cell:
    """Everything that the outcome depends on. Two cells with the same key have the same numbers on the same machine."""

    benchmark: str
    config: str
    model: str
    seed: int
    zoo: str
    threshold: float = 0.0
    checkpoint: str = "epoch_75"
    length: str = "paper"
    epochs: int | None = None
    components: tuple[str, ...] | None = None
    channels: tuple[int, ...] | None = None
    entry_range: float | None = None

    def __post_init__(self) -> None:
        if self.length not in LENGTHS:
            raise ValueError(f"unknown length of training {self.length!r}: one of {', '.join(LENGTHS)}")

    @property
    def key(self) -> str:
        text = json.dumps(asdict(self) | {"protocol": PROTOCOL}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def normalised(self) -> "Cell":
        """Without what does not matter to this model: epochs to a tree, the seed to boosting, epochs to convergence."""
        contender = CONTENDERS[self.model]
        fixed = contender.kind is not None and self.length == "paper"
        return replace(
            self,
            epochs=self.epochs if fixed else None,
            seed=self.seed if contender.seeded else 0,
            length=self.length if contender.kind is not None else "paper",
        )

    def across_seeds(self) -> dict[str, Any]:
        """The key without the seed: cells with the same one are averaged."""
        return {name: value for name, value in asdict(self).items() if name != "seed"}


@dataclass(frozen=True)
class Outcome:
    """Test predictions of one cell beside the truth, and what was noted on the way."""

    predicted: Float[np.ndarray, " n"]
    truth: Float[np.ndarray, " n"]
    runs: Integer[np.ndarray, " n"]
    notes: dict[str, float | str | None]
