"""tab:mnist-transformer and tab:agnews-transformer, with what the paper leaves out below."""

from benchmarks.models.registry import MODELS, NEURAL, SIX_MODELS
from benchmarks.tables import paper
from benchmarks.tables.markdown import MISSING, number, table, tau_text, threshold_title, with_error
from benchmarks.tables.result_index import ResultIndex
from zoo.format.splits import SPLITS

FIRST = 0.0
ROW_COUNTS = f"rows: {' / '.join(SPLITS)}"
UNTIL_IDLE = "trained until validation stops improving"


def kendall_tables(index: ResultIndex, config: str) -> str:
    """The paper's table with our numbers, then the details of its first column, then what to know of both."""
    parts = [threshold_table(index, config), detail_table(index), converged_table(index), *notes(index)]
    return "\n\n".join(part for part in parts if part)


def thresholds_of(index: ResultIndex) -> list[float]:
    found = [row.setting.get("threshold") for row in index.rows]
    return sorted({float(value) for value in found if isinstance(value, int | float)}) or [FIRST]


def threshold_table(index: ResultIndex, config: str) -> str:
    thresholds = thresholds_of(index)
    best = {threshold: leader(index, threshold) for threshold in thresholds}
    rows = []
    for name, benchmark_model in MODELS.items():
        cells = []
        for threshold in thresholds:
            setting = {"threshold": threshold, "recipe": "paper"}
            row, interval = index.find("tau", name, **setting), index.interval("tau", name, **setting)
            reference = paper.KENDALL.get(config, {}).get(name, {}).get(threshold) if index.whole else None
            cells.append(tau_text(row, interval, reference, best=name == best[threshold]))
        rows.append([benchmark_model.title, *cells])
    ceilings = [index.value("noise_ceiling", "data", threshold=threshold) for threshold in thresholds]
    rows.append(["noise ceiling", *(number(value, ".3f") for value in ceilings)])
    rows.append([ROW_COUNTS, *(row_counts(index, threshold) for threshold in thresholds)])
    return table([f"Kendall's τ, {index.title(config)}", *map(threshold_title, thresholds)], rows)


def row_counts(index: ResultIndex, threshold: float) -> str:
    """How many rows the splits have left."""
    return " / ".join(number(index.value(f"{split}_rows", "data", threshold=threshold)) for split in SPLITS)


def leader(index: ResultIndex, threshold: float) -> str | None:
    """The best of those that read weights."""
    taus = {name: index.value("tau", name, threshold=threshold, recipe="paper") for name in SIX_MODELS}
    known = {name: tau for name, tau in taus.items() if tau is not None}
    return max(known, key=lambda name: known[name]) if known else None


def detail_table(index: ResultIndex) -> str:
    """One row a model, of the first threshold: what a single number of τ hides."""
    rows = []
    first = thresholds_of(index)[0]
    for name, benchmark_model in MODELS.items():
        setting = {"threshold": first, "recipe": "paper"}
        if index.find("tau", name, **setting) is None:
            continue
        behind = index.value("tau_behind_leader", name, **setting)
        interval = index.interval("tau_behind_leader", name, **setting)
        scaled = index.find("tau", name, threshold=first, recipe="scaled")
        change = index.value("mean_change", name, **setting)
        rows.append(
            [
                benchmark_model.title,
                number(behind, ".3f") + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval and behind else ""),
                converged_text(index, name, first),
                MISSING if scaled is None else with_error(scaled.value, scaled.stderr),
                number(index.value("r2", name, **setting), ".3f"),
                number(change, ".1e") if change else number(change),
                number(index.value("parameters", name, **setting)),
                number(index.value("wall_seconds", name, **setting), ".1f"),
                number(index.value("peak_memory_megabytes", name, **setting)),
            ]
        )
    if not rows:
        return ""
    recipes = (f"τ, {UNTIL_IDLE}", "τ, weights brought to unit size")
    headings = (
        "behind the bold one",
        *recipes,
        "R²",
        "change under the group",
        "parameters",
        "seconds a fit",
        "peak MB",
    )
    return table([threshold_title(first), *headings], rows)


def converged_table(index: ResultIndex) -> str:
    """The neural predictors trained as long as it takes, where that was done at more thresholds than the first."""
    tried = [row for row in index.rows if row.setting.get("recipe") == "converged"]
    thresholds = [one for one in thresholds_of(index) if any(row.setting.get("threshold") == one for row in tried)]
    if len(thresholds) < 2:
        return ""
    rows = [
        [MODELS[name].title, *(converged_text(index, name, threshold) for threshold in thresholds)]
        for name in NEURAL
        if any(row.model == name for row in tried)
    ]
    return table([f"τ, {UNTIL_IDLE}", *map(threshold_title, thresholds)], rows)


def converged_text(index: ResultIndex, name: str, threshold: float) -> str:
    row = index.find("tau", name, threshold=threshold, recipe="converged")
    epochs = index.value("epochs", name, threshold=threshold, recipe="converged")
    return MISSING if row is None else f"{with_error(row.value, row.stderr)} ({number(epochs)} epochs)"


def notes(index: ResultIndex) -> list[str]:
    """What a reader of these very numbers must know."""
    found = [
        "Mean ± standard error over seeds, below it the middle 95 % of a bootstrap over test runs; bold leads those "
        "that read weights. XGBoost, LightGBM and the hyperparameters' boosting draw nothing, so they have no error "
        "over seeds. Fits that share a GPU share its seconds, and their memory is that of all. The noise ceiling takes "
        "each run to be tested on examples of its own; they share them, so that a predictor may rank better than that."
    ]
    return [*found, *constant_note(index), *too_few_note(index)]


def constant_note(index: ResultIndex) -> list[str]:
    """Who predicts a constant where; trees do when no two leaves of 50 rows can be made."""
    where = {
        one: [
            threshold_title(threshold)
            for threshold in thresholds_of(index)
            if index.value("constant_seeds", name, threshold=threshold, recipe="paper")
        ]
        for name, one in MODELS.items()
    }
    found = {one: titles for one, titles in where.items() if titles}
    if not found:
        return []
    listed = "; ".join(f"{one.title} ({', '.join(titles)})" for one, titles in found.items())
    trees = " Trees have at least 50 training rows in every leaf." if any(not one.kind for one in found) else ""
    return [f"A constant, which ranks nothing and counts as 0, is predicted by {listed}.{trees}"]


def too_few_note(index: ResultIndex) -> list[str]:
    found = []
    for threshold in thresholds_of(index):
        if all(index.value("tau", name, threshold=threshold) is None for name in MODELS):
            counts = [index.value(f"{split}_rows", "data", threshold=threshold) for split in SPLITS]
            found.append(f"{threshold_title(threshold)} ({' / '.join(map(number, counts))})")
    return [f"Too few rows to rank: {'; '.join(found)}."] if found else []
