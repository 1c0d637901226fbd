"""τ of every predictor against the number of training rows, and the curve through them."""

from benchmarks.models.registry import known_models
from benchmarks.tables import paper
from benchmarks.tables.markdown import MISSING, number, table, tau_cell, with_error
from benchmarks.tables.result_index import ResultIndex

ROWS_NOTE = (
    "A smaller number of training rows is part of every larger one; validation and test stay whole. Mean ± standard "
    "error over seeds, below it the middle 95 % of a bootstrap over test runs. The curve is the least squares of "
    "τ(n) = τ∞ − a·n^(−b) with τ∞ ≤ 1; the interval of its continuation resamples test runs and seeds. It does not "
    "cover which rows the smaller parts happen to have, nor whether τ goes on along such a curve."
)


def rows_table(index: ResultIndex, config: str) -> str:
    """One row per model, one column per number of training rows, then where the curve leads."""
    sizes, beyond = sizes_of(index), towards_of(index)
    lines = []
    for name, benchmark_model in known_models().items():
        recipe = benchmark_model.recipe
        if index.find("tau", name, recipe=recipe) is None:
            continue
        cells = [tau_cell(index, name, None, recipe=recipe, rows=size) for size in sizes]
        if beyond is not None:
            cells += [extrapolated_text(index, config, name, beyond), curve_text(index, name, beyond)]
        lines.append([benchmark_model.title, *cells])
    titles = [size_title(index, size) for size in sizes]
    if beyond is not None:
        titles += [f"{beyond:,} (the curve)", "curve"]
    return table([f"Kendall's τ, {index.title(config)}, by training rows", *titles], lines)


def sizes_of(index: ResultIndex) -> list[int | None]:
    """The numbers of training rows, ascending; None stands for all and comes last."""
    sizes = [row.setting.get("rows") for row in index.rows if row.metric == "tau"]
    some = sorted({size for size in sizes if isinstance(size, int)})
    return [*some, *([None] if None in sizes else [])]


def count_of(index: ResultIndex, size: int | None) -> int | None:
    """The number itself, or how many rows all are."""
    every = index.value("train_rows", "data", rows=None)
    return size if size is not None or every is None else round(every)


def size_title(index: ResultIndex, size: int | None) -> str:
    count = count_of(index, size)
    return number(count) if size is not None else f"all {number(count)}"


def towards_of(index: ResultIndex) -> int | None:
    """How far the curves go; None if none was fitted."""
    sizes = [row.setting.get("rows") for row in index.rows if row.metric == "tau_extrapolated"]
    return next((size for size in reversed(sizes) if isinstance(size, int)), None)


def paper_tau(index: ResultIndex, config: str, name: str, beyond: int) -> tuple[float, float] | None:
    """The paper's τ, where it stands beside a curve that goes on to as many rows."""
    if not index.whole or beyond != paper.TRAIN_ROWS:
        return None
    return paper.KENDALL.get(config, {}).get(name, {}).get(0.0)


def extrapolated_text(index: ResultIndex, config: str, name: str, beyond: int) -> str:
    tau, interval = (
        index.value("tau_extrapolated", name, rows=beyond),
        index.interval("tau_extrapolated", name, rows=beyond),
    )
    printed = paper_tau(index, config, name, beyond)
    lines = [
        number(tau, ".3f"),
        *([f"[{interval[0]:.3f}, {interval[1]:.3f}]"] if interval else []),
        *([f"paper {with_error(*printed)}"] if printed else []),
    ]
    return "<br>".join(lines)


def curve_of(index: ResultIndex, name: str, beyond: int) -> tuple[float, float, float] | None:
    """τ∞, a and b."""
    values = [index.value(f"curve_{part}", name, rows=beyond) for part in ("limit", "scale", "exponent")]
    limit, scale, exponent = values
    return None if limit is None or scale is None or exponent is None else (limit, scale, exponent)


def curve_text(index: ResultIndex, name: str, beyond: int) -> str:
    curve = curve_of(index, name, beyond)
    return MISSING if curve is None else "{:.3f} − {:.3g}·n^(−{:.2f})".format(*curve)
