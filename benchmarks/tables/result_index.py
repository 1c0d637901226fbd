"""Looks up numbers among result rows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from benchmarks.results import Result
from zoo.reading.selection import Selection

Value = str | float | int | bool | None | Sequence[str] | Sequence[int]


@dataclass(frozen=True)
class ResultIndex:
    """The rows of one table: of one benchmark, config and selection, and of the last zoo, checkpoint and epochs."""

    rows: tuple[Result, ...]
    where: Selection | None = None

    @classmethod
    def latest(cls, rows: Iterable[Result], config: str, where: Selection | str | None = None) -> "ResultIndex":
        """The rows of a config and a selection (None: of all checkpoints), only those of the last zoo, checkpoint and
        number of epochs."""
        selection = Selection.parse(where) if isinstance(where, str) else where
        expression = None if selection is None else selection.expression
        kept = [row for row in rows if row.config == config and row.setting.get("where") == expression]
        for name in ("zoo", "checkpoint", "epochs"):
            last = next((row.setting[name] for row in reversed(kept) if name in row.setting), None)
            kept = [row for row in kept if row.setting.get(name, last) == last]
        return cls(tuple({row.identity(): row for row in kept}.values()), selection)

    def __bool__(self) -> bool:
        return any(row.metric == "tau" for row in self.rows)

    @property
    def whole(self) -> bool:
        """Whether the numbers are of all checkpoints, as the paper's are."""
        return self.where is None

    def title(self, name: str) -> str:
        """The name of the data, with the selection if there is one."""
        return name if self.where is None else f"{name} where {self.where.expression}"

    def find(self, metric: str, who: str, **setting: Value) -> Result | None:
        """The last row of a metric of a model (or variant) with this setting; None means that it is not set."""
        wanted = {name: list(value) if isinstance(value, tuple) else value for name, value in setting.items()}
        for row in reversed(self._by_name.get((metric, who), ())):
            if all(row.setting.get(name) == value for name, value in wanted.items()):
                return row
        return None

    @cached_property
    def _by_name(self) -> dict[tuple[str, str], list[Result]]:
        """The rows by metric and by model or variant, of which a row has one."""
        found: dict[tuple[str, str], list[Result]] = {}
        for row in self.rows:
            found.setdefault((row.metric, row.model or row.variant or ""), []).append(row)
        return found

    def value(self, metric: str, who: str, **setting: Value) -> float | None:
        row = self.find(metric, who, **setting)
        return None if row is None else row.value

    def interval(self, metric: str, who: str, **setting: Value) -> tuple[float, float] | None:
        low, high = (self.value(f"{metric}_{end}", who, **setting) for end in ("low", "high"))
        return None if low is None or high is None else (low, high)


def thresholds_of(index: ResultIndex) -> list[float]:
    """The accuracy thresholds of the rows, ascending; 0 if there are no rows."""
    values = [row.setting.get("threshold") for row in index.rows]
    return sorted({float(value) for value in values if isinstance(value, int | float)}) or [0.0]
