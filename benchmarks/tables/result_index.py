"""Looking numbers up among result rows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.results import Result

Value = str | float | int | bool | None | Sequence[str] | Sequence[int]


@dataclass(frozen=True)
class ResultIndex:
    """The rows of one table: of one benchmark, and of the zoo, checkpoint and epochs that came last."""

    rows: tuple[Result, ...]
    where: str | None = None

    @classmethod
    def latest(cls, rows: Iterable[Result], config: str, where: str | None = None) -> "ResultIndex":
        """The rows of a config (or of those of its checkpoints that ``where`` chose), of none but the last zoo,
        checkpoint and number of epochs."""
        own = [row for row in rows if row.config == config and row.setting.get("where") == where]
        for name in ("zoo", "checkpoint", "epochs"):
            last = next((row.setting[name] for row in reversed(own) if name in row.setting), None)
            own = [row for row in own if row.setting.get(name, last) == last]
        return cls(tuple({row.identity(): row for row in own}.values()), where)

    def __bool__(self) -> bool:
        return any(row.metric == "tau" for row in self.rows)

    @property
    def whole(self) -> bool:
        """Of all rows, as the paper's numbers are."""
        return self.where is None

    def title(self, name: str) -> str:
        """The name of what the rows are of, with their choice where there was one."""
        return name if self.whole else f"{name} where {self.where}"

    def find(self, metric: str, who: str, **setting: Value) -> Result | None:
        """The row of a metric of a model (or variant) with this setting; what is None must not be set."""
        wanted = {name: list(value) if isinstance(value, tuple) else value for name, value in setting.items()}
        for row in reversed(self.rows):
            fits = all(row.setting.get(name) == value for name, value in wanted.items())
            if row.metric == metric and who in (row.model, row.variant) and fits:
                return row
        return None

    def value(self, metric: str, who: str, **setting: Value) -> float | None:
        row = self.find(metric, who, **setting)
        return None if row is None else row.value

    def interval(self, metric: str, who: str, **setting: Value) -> tuple[float, float] | None:
        low, high = (self.value(f"{metric}_{end}", who, **setting) for end in ("low", "high"))
        return None if low is None or high is None else (low, high)
