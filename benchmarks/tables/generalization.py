"""How far a fit reaches: τ against the number of training rows, and τ on other configs and checkpoints."""

from benchmarks.results import ResultIndex
from benchmarks.tables import paper
from benchmarks.tables.markdown import (
    MISSING,
    interval_text,
    models_in,
    number,
    table,
    tau_cell,
    tau_text,
    with_error,
)

ROWS_NOTE = (
    "A smaller number of training rows is part of every larger one; validation and test stay whole. Mean ± standard "
    "error over seeds, below it the middle 95 % of a bootstrap over test runs. The curve is the least squares of "
    "τ(n) = τ∞ − a·n^(−b) with τ∞ ≤ 1; the interval of its continuation resamples test runs and seeds. It does not "
    "cover which rows the smaller parts happen to have, nor whether τ goes on along such a curve."
)
TRANSFER_NOTE = (
    "Each predictor is fitted on the train split and chosen on the validation split named at the top left, and tested "
    "on the test splits named in the columns; the first column is its own. No run that it was fitted on is among them. "
    "Where a configuration was trained again with another seed, its first run may have been fitted on, and a predictor "
    "that knows the configuration knows much of the answer: the upper number counts only test rows whose configuration "
    "is not in the train split, the lower one, where there is one, all rows. Columns have different test rows and are "
    "not paired with each other. Brackets hold the middle 95 % of a bootstrap over test runs."
)


def sizes_of(index: ResultIndex) -> dict[int | None, int]:
    """How many rows were trained on, ascending, by the setting that the result rows have; None stands for all."""
    sizes = [row.setting.get("rows") for row in index.rows if row.metric == "tau"]
    counts: dict[int | None, int] = {size: size for size in sorted({size for size in sizes if isinstance(size, int)})}
    every = index.value("train_rows", "data", rows=None)
    return counts | ({None: round(every)} if None in sizes and every is not None else {})


def end_of_curves(index: ResultIndex) -> int | None:
    """The number of rows that the curves go on to; None if none was fitted."""
    ends = [row.setting.get("rows") for row in index.rows if row.metric == "tau_extrapolated"]
    return next((end for end in reversed(ends) if isinstance(end, int)), None)


def curve_of(index: ResultIndex, name: str, end: int) -> tuple[float, ...] | None:
    """τ∞, a and b of τ(n) = τ∞ − a·n^(−b)."""
    values = [index.value(f"curve_{part}", name, rows=end) for part in ("limit", "scale", "exponent")]
    known = tuple(value for value in values if value is not None)
    return known if len(known) == len(values) else None


def tau_of_paper(index: ResultIndex, config: str, name: str, end: int) -> tuple[float, float] | None:
    """The paper's τ, to show beside a curve that goes on to as many rows."""
    return paper.KENDALL.get(config, {}).get(name, {}).get(0.0) if index.whole and end == paper.TRAIN_ROWS else None


def rows_table(index: ResultIndex, config: str) -> str:
    """One row per model, one column per number of training rows, then the end of the curve."""
    sizes, end = sizes_of(index), end_of_curves(index)
    lines = []
    for name, model in models_in(index).items():
        cells = [tau_cell(index, name, recipe=model.recipe, rows=size) for size in sizes]
        if end is not None:
            printed, curve = tau_of_paper(index, config, name, end), curve_of(index, name, end)
            at_end = [
                number(index.value("tau_extrapolated", name, rows=end), ".3f"),
                interval_text(index, "tau_extrapolated", name, rows=end),
                f"paper {with_error(*printed)}" if printed else "",
            ]
            cells.append("<br>".join(filter(None, at_end)))
            cells.append(MISSING if curve is None else "{:.3f} − {:.3g}·n^(−{:.2f})".format(*curve))
        lines.append([model.title, *cells])
    titles = [f"{count:,}" if size is not None else f"all {count:,}" for size, count in sizes.items()]
    titles += [] if end is None else [f"{end:,} (the curve)", "curve"]
    return table([f"Kendall's τ, {index.title(config)}, by training rows", *titles], lines)


def transfer_table(index: ResultIndex, config: str) -> str:
    """One row per model, one column for each config and checkpoint that it is tested on, its own first."""
    settings = [row.setting for row in index.rows if "tested_config" in row.setting]
    tested = dict.fromkeys((str(one["tested_config"]), str(one["tested_checkpoint"])) for one in settings)
    columns = []
    for tested_config, tested_checkpoint in tested:
        there = {"tested_config": tested_config, "tested_checkpoint": tested_checkpoint}
        unseen, every = ({**there, "tested_unseen": flag} for flag in (True, False))
        counts = [index.value("test_rows", "data", **setting) for setting in (unseen, every)]
        columns.append((unseen, every, counts))

    def below(text: str, of_every: str, counts: list[float | None]) -> str:
        """The number on unseen configurations, and below it the one on all rows where these are more."""
        return text if counts[0] == counts[1] else f"{text}<br>all {of_every}"

    rows = []
    for name, model in models_in(index).items():
        cells = [tau_cell(index, name, recipe=model.recipe, tested_config=None)]
        for unseen, every, counts in columns:
            of_every = tau_text(index.find("tau", name, recipe=model.recipe, **every))
            cells.append(below(tau_cell(index, name, recipe=model.recipe, **unseen), of_every, counts))
        rows.append([model.title, *cells])
    numbers = [below(number(counts[0]), number(counts[1]), counts) for _, _, counts in columns]
    rows.append(["test rows", number(index.value("test_rows", "data", tested_config=None)), *numbers])
    checkpoint = next((row.setting["checkpoint"] for row in index.rows if "checkpoint" in row.setting), None)
    titles = [label if one == config else f"{one}, {label}" for one, label in tested]
    heading = f"Kendall's τ, fitted on {index.title(config)}, {checkpoint}"
    return table([heading, "its own test split", *titles], rows)
