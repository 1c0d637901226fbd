"""The table of the front page: τ of every predictor on all checkpoints, one column per zoo."""

from collections.abc import Mapping

from benchmarks.models.registry import known_models, weight_models
from benchmarks.tables.kendall import leader
from benchmarks.tables.markdown import MISSING, number, table
from benchmarks.tables.result_index import ResultIndex
from zoo.format.splits import SPLITS

ALL_RUNS = 0.0  # the threshold that every accuracy reaches


def headline_table(zoos: Mapping[str, ResultIndex]) -> str:
    """Title of a zoo → its rows. Bold leads the predictors that read weights."""
    leaders = {title: leader(index, ALL_RUNS) for title, index in zoos.items()}
    lines = [
        [known_models()[name].title, *(tau_and_interval(index, name, leaders[title]) for title, index in zoos.items())]
        for name in headline_models(zoos)
    ]
    return table(["Kendall's τ", *(f"{title}, {runs(index)} runs" for title, index in zoos.items())], lines)


def headline_models(zoos: Mapping[str, ResultIndex]) -> tuple[str, ...]:
    """The models that have a row in some zoo; the one that reads no weights is the one to beat, and comes first."""
    names = ("hyperparameters", *weight_models())
    return tuple(
        name for name in names if any(index.find("tau", name, **main_setting(name)) for index in zoos.values())
    )


def main_setting(name: str) -> dict[str, float | str]:
    """All runs, and the recipe of the main columns."""
    return {"threshold": ALL_RUNS, "recipe": known_models()[name].recipe}


def tau_and_interval(index: ResultIndex, name: str, best: str | None) -> str:
    tau, interval = index.value("tau", name, **main_setting(name)), index.interval("tau", name, **main_setting(name))
    if tau is None:
        return MISSING
    text = f"**{tau:.3f}**" if name == best else f"{tau:.3f}"
    return text if interval is None else f"{text} [{interval[0]:.3f}, {interval[1]:.3f}]"


def runs(index: ResultIndex) -> str:
    """How many runs the three splits have together."""
    counts = [index.value(f"{split}_rows", "data", threshold=ALL_RUNS) for split in SPLITS]
    return number(None if None in counts else sum(count or 0.0 for count in counts))
