"""What a document can cite: the result rows, the runs of the full zoo, and the paper's numbers, by expressions.

The grammar of expressions is in benchmarks/documents/claims.py.
"""

import itertools
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import results
from benchmarks.documents.generated_runs import final_runs
from benchmarks.results import Scalar
from benchmarks.tables import paper
from benchmarks.tables.result_index import ResultIndex
from zoo.reading.selection import select

BRACES = re.compile(r"\{[^}]*\}")
OPERATORS = ({"+": operator.add, "-": operator.sub}, {"*": operator.mul, "/": operator.truediv})
STATISTICS: dict[str, Callable] = {"min": min, "max": max, "mean": np.mean, "sum": sum, "spread": np.ptp}
RUN_STATISTICS: dict[str, Callable] = {"count": len, "min": np.min, "median": np.median, "max": np.max}
UNSET = ("where", "components", "channels", "entry_range", "tested_config", "tested_checkpoint", "rows")
PLAIN = {"threshold": "0", "recipe": "paper", **dict.fromkeys(UNSET, "")}


class Fact(NamedTuple):
    """A number, its names (benchmark, config, model or variant, metric) and its setting, all as a claim writes them."""

    names: tuple[str | None, ...]
    setting: dict[str, str]
    value: float

    def fits(self, names: tuple[str, ...], setting: dict[str, str]) -> bool:
        wanted = PLAIN | setting
        return self.names == names and all(self.setting.get(key, PLAIN.get(key)) == wanted[key] for key in wanted)


class Facts:
    """The rows in a folder, the runs beside them, and the paper's numbers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = cache(lambda: final_runs(folder))
        self.of_table = cache(self._of_table)

    def value(self, expression: str) -> float:
        """The number that an expression stands for; a ValueError where there is none."""
        statistic, _, rest = expression.partition(" ")
        if statistic in STATISTICS:
            return float(STATISTICS[statistic]([self.calculate(shlex.split(choice)) for choice in choices(rest)]))
        return self.calculate(shlex.split(expression))

    def calculate(self, words: list[str]) -> float:
        for level in OPERATORS:
            for place in range(len(words) - 1, 0, -1):
                if words[place] in level:
                    return level[words[place]](self.calculate(words[:place]), self.calculate(words[place + 1 :]))
        if len(words) == 1 and words[0][:1].isdigit():
            return float(words[0])
        names = tuple(word for word in words if "=" not in word)
        setting = dict(word.split("=", 1) for word in words if "=" in word)
        return self.of_runs(names, setting) if names[:1] == ("generated",) else self.of_row(names, setting)

    def of_row(self, names: tuple[str, ...], setting: dict[str, str]) -> float:
        values = [fact.value for fact in self.of_table(*names[:2], setting.get("where")) if fact.fits(names, setting)]
        if len(values) != 1:
            raise ValueError(f"{len(values)} rows fit: name more settings" if values else "there is no such row")
        return values[0]

    def of_runs(self, names: tuple[str, ...], setting: dict[str, str]) -> float:
        if len(names) != 3 or names[1] not in self.runs() or names[2] not in RUN_STATISTICS:
            raise ValueError(f"after generated: one of {', '.join(self.runs())}, one of {', '.join(RUN_STATISTICS)}")
        runs = self.runs()[names[1]]
        return float(RUN_STATISTICS[names[2]](runs["test_accuracy"][select(runs, setting.get("where"))]))

    def _of_table(self, benchmark: str = "", config: str = "", where: str | None = None) -> list[Fact]:
        if benchmark.startswith("paper."):
            return paper_facts()
        rows = ResultIndex.latest(results.read(benchmark, self.folder), config, where).rows
        names = [(benchmark, config, row.model or row.variant, row.metric) for row in rows]
        settings = [{key: text(value) for key, value in row.setting.items()} for row in rows]
        return [Fact(*fact) for fact in zip(names, settings, (row.value for row in rows), strict=True)]


def paper_facts() -> list[Fact]:
    """The paper's τ under the names and settings of our rows."""
    nfn = "transformer_nfn"
    tables = [
        *((("paper.kendall", c, m), "threshold", t) for c, models in paper.KENDALL.items() for m, t in models.items()),
        *((("paper.ablation_components", c, nfn), "components", t) for c, t in paper.COMPONENTS.items()),
        (("paper.ablation_width", "agnews", nfn), "channels", paper.WIDTHS),
        *((("paper.augmentation", "agnews", m), "entry_range", t) for m, t in paper.AUGMENTATION.items()),
    ]
    return [
        Fact((*names, "tau"), {key: text(of)}, tau) for names, key, table in tables for of, (tau, _) in table.items()
    ]


def text(value: Scalar | Sequence[Scalar]) -> str:
    """A setting as a claim writes it: ``0.8``, ``encoder,classifier``, or nothing for None."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return f"{value:g}" if isinstance(value, float | int) else ",".join(map(text, value))


def choices(expression: str) -> Iterator[str]:
    """The expression with every combination of choices in place of its braces."""
    groups = list(dict.fromkeys(BRACES.findall(expression)))
    for chosen in itertools.product(*(map(str.strip, group[1:-1].split("|")) for group in groups)):
        replacement = dict(zip(groups, chosen, strict=True))
        yield BRACES.sub(lambda match, by=replacement: by[match[0]], expression)
