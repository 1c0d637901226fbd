"""One trial: a model fitted once, at one seed. What identifies it, and what came out."""

import hashlib
import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Integer

from benchmarks.data.benchmark_data import Elsewhere
from benchmarks.models.registry import known_models
from benchmarks.models.schedule import RECIPES
from benchmarks.results import Result, Setting
from zoo.reading.selection import Selection

# raised when fitting or choosing changes for all models; when it changes for one, its edition is raised instead
PROTOCOL = 2
STANDARD_CHANNELS = (10,)  # the default of Transformer-NFN


@dataclass(frozen=True)
class Trial:
    """Everything that the outcome depends on, and the benchmark it is for."""

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
    elsewhere: Elsewhere | None = None
    """What it is tested on, if that is not the test split of the same data."""
    rows: int | None = None
    """How many of the training rows it is fitted on; None for all."""

    def __post_init__(self) -> None:
        if self.recipe not in RECIPES:
            raise ValueError(f"unknown training recipe {self.recipe!r}: one of {', '.join(RECIPES)}")

    @property
    def key(self) -> str:
        """The same for trials of different benchmarks that are the same fit."""
        what = self.to_dict() | {"protocol": PROTOCOL}
        del what["benchmark"], what["where"]  # the zoo's fingerprint says which rows these are
        if self.channels == STANDARD_CHANNELS:
            what["channels"] = None
        benchmark_model = known_models()[self.model]
        if benchmark_model.edition > 1:
            what["edition"] = benchmark_model.edition
        if benchmark_model.source is not None:
            what["source"] = benchmark_model.source
        if benchmark_model.parts:
            what["parts"] = [part.key for part in self.parts]
        text = json.dumps(what, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def normalized(self) -> "Trial":
        """Without what does not matter to its model: the seed of boosting, the epochs of trees or of training until
        convergence."""
        benchmark_model = known_models()[self.model]
        fixed_epochs = benchmark_model.neural and not RECIPES[self.recipe].converged
        return replace(
            self,
            epochs=self.epochs if fixed_epochs else None,
            seed=self.seed if benchmark_model.seeded else 0,
            recipe=self.recipe if benchmark_model.neural else "paper",
        )

    @property
    def parts(self) -> "tuple[Trial, ...]":
        """The trials that this one is the average of; none where it is a fit."""
        names = known_models()[self.model].parts
        return tuple(replace(self, model=name).normalized() for name in names)

    @property
    def fit(self) -> "Trial":
        """The same for trials that are one fit tested in several places."""
        return replace(self, elsewhere=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values by name; the selection as its text. Names that older trials lack are there only where set."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["where"] = None if self.where is None else self.where.expression
        elsewhere, rows = values.pop("elsewhere"), values.pop("rows")
        return values | ({} if elsewhere is None else asdict(elsewhere)) | ({} if rows is None else {"rows": rows})

    def setting(self) -> Setting:
        """What a result row stores of it besides benchmark, config and model. Seeds are averaged over."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self.to_dict().items()
            if value is not None and name not in ("benchmark", "config", "model", "seed")
        }

    @classmethod
    def of_row(cls, row: Result, seed: int) -> "Trial":
        """The trial that a result row was made from, at one of its seeds."""
        assert row.model is not None, "only rows of a model come from trials"
        setting: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in row.setting.items()
        }
        if "where" in setting:
            setting["where"] = Selection.parse(setting["where"])
        tested = {field.name: setting.pop(field.name) for field in fields(Elsewhere) if field.name in setting}
        if tested:
            setting["elsewhere"] = Elsewhere(**tested)
        return cls(row.benchmark, row.config, row.model, seed, **setting)


@dataclass(frozen=True)
class Outcome:
    """Test predictions of one trial beside the truth, and notes on the fit.

    ``configurations`` numbers the configuration of each row where the zoo has several runs of each.
    """

    predicted: Float[np.ndarray, " n"]
    truth: Float[np.ndarray, " n"]
    runs: Integer[np.ndarray, " n"]
    notes: dict[str, float | str | None]
    configurations: Integer[np.ndarray, " n"] | None = None
