"""tab:mnist-transformer and tab:agnews-transformer, with what the paper leaves out below."""

from benchmarks.models.registry import CONTENDERS, NEURAL, SIX_MODELS
from benchmarks.tables import paper
from benchmarks.tables.markdown import MISSING, number, table, tau_text, threshold_title, with_error
from benchmarks.tables.result_index import Book
from zoo.format.splits import SPLITS

FIRST = 0.0
ROW_COUNTS = f"rows: {' / '.join(SPLITS)}"
UNTIL_IDLE = "trained until validation stops improving"


def kendall_tables(book: Book, config: str) -> str:
    """The paper's table with our numbers, then the details of its first column, then what to know of both."""
    parts = [threshold_table(book, config), detail_table(book), converged_table(book), *notes(book)]
    return "\n\n".join(part for part in parts if part)


def thresholds_of(book: Book) -> list[float]:
    found = [row.setting.get("threshold") for row in book.rows]
    return sorted({float(value) for value in found if isinstance(value, int | float)}) or [FIRST]


def threshold_table(book: Book, config: str) -> str:
    thresholds = thresholds_of(book)
    best = {threshold: leader(book, threshold) for threshold in thresholds}
    rows = []
    for name, contender in CONTENDERS.items():
        cells = []
        for threshold in thresholds:
            setting = {"threshold": threshold, "recipe": "paper"}
            row, interval = book.find("tau", name, **setting), book.interval("tau", name, **setting)
            reference = paper.KENDALL.get(config, {}).get(name, {}).get(threshold) if book.whole else None
            cells.append(tau_text(row, interval, reference, best=name == best[threshold]))
        rows.append([contender.title, *cells])
    ceilings = [book.value("noise_ceiling", "data", threshold=threshold) for threshold in thresholds]
    rows.append(["noise ceiling", *(number(value, ".3f") for value in ceilings)])
    rows.append([ROW_COUNTS, *(row_counts(book, threshold) for threshold in thresholds)])
    return table([f"Kendall's τ, {book.title(config)}", *map(threshold_title, thresholds)], rows)


def row_counts(book: Book, threshold: float) -> str:
    """How many rows the splits have left."""
    return " / ".join(number(book.value(f"{split}_rows", "data", threshold=threshold)) for split in SPLITS)


def leader(book: Book, threshold: float) -> str | None:
    """The best of those that read weights."""
    taus = {name: book.value("tau", name, threshold=threshold, recipe="paper") for name in SIX_MODELS}
    known = {name: tau for name, tau in taus.items() if tau is not None}
    return max(known, key=lambda name: known[name]) if known else None


def detail_table(book: Book) -> str:
    """One row a model, of the first threshold: what a single number of τ hides."""
    rows = []
    first = thresholds_of(book)[0]
    for name, contender in CONTENDERS.items():
        setting = {"threshold": first, "recipe": "paper"}
        if book.find("tau", name, **setting) is None:
            continue
        behind = book.value("tau_behind_leader", name, **setting)
        interval = book.interval("tau_behind_leader", name, **setting)
        scaled = book.find("tau", name, threshold=first, recipe="scaled")
        change = book.value("mean_change", name, **setting)
        rows.append(
            [
                contender.title,
                number(behind, ".3f") + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval and behind else ""),
                converged_text(book, name, first),
                MISSING if scaled is None else with_error(scaled.value, scaled.stderr),
                number(book.value("r2", name, **setting), ".3f"),
                number(change, ".1e") if change else number(change),
                number(book.value("parameters", name, **setting)),
                number(book.value("wall_seconds", name, **setting), ".1f"),
                number(book.value("peak_memory_megabytes", name, **setting)),
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


def converged_table(book: Book) -> str:
    """The neural predictors trained as long as it takes, where that was done at more thresholds than the first."""
    tried = [row for row in book.rows if row.setting.get("recipe") == "converged"]
    thresholds = [one for one in thresholds_of(book) if any(row.setting.get("threshold") == one for row in tried)]
    if len(thresholds) < 2:
        return ""
    rows = [
        [CONTENDERS[name].title, *(converged_text(book, name, threshold) for threshold in thresholds)]
        for name in NEURAL
        if any(row.model == name for row in tried)
    ]
    return table([f"τ, {UNTIL_IDLE}", *map(threshold_title, thresholds)], rows)


def converged_text(book: Book, name: str, threshold: float) -> str:
    row = book.find("tau", name, threshold=threshold, recipe="converged")
    epochs = book.value("epochs", name, threshold=threshold, recipe="converged")
    return MISSING if row is None else f"{with_error(row.value, row.stderr)} ({number(epochs)} epochs)"


def notes(book: Book) -> list[str]:
    """What a reader of these very numbers must know."""
    found = [
        "Mean ± standard error over seeds, below it the middle 95 % of a bootstrap over test runs; bold leads those "
        "that read weights. XGBoost, LightGBM and the hyperparameters' boosting draw nothing, so they have no error "
        "over seeds. Fits that share a GPU share its seconds, and their memory is that of all. The noise ceiling takes "
        "each run to be tested on examples of its own; they share them, so that a predictor may rank better than that."
    ]
    return [*found, *constant_note(book), *too_few_note(book)]


def constant_note(book: Book) -> list[str]:
    """Who predicts a constant where; trees do when no two leaves of 50 rows can be made."""
    where = {
        one: [
            threshold_title(threshold)
            for threshold in thresholds_of(book)
            if book.value("constant_seeds", name, threshold=threshold, recipe="paper")
        ]
        for name, one in CONTENDERS.items()
    }
    found = {one: titles for one, titles in where.items() if titles}
    if not found:
        return []
    listed = "; ".join(f"{one.title} ({', '.join(titles)})" for one, titles in found.items())
    trees = " Trees have at least 50 training rows in every leaf." if any(not one.kind for one in found) else ""
    return [f"A constant, which ranks nothing and counts as 0, is predicted by {listed}.{trees}"]


def too_few_note(book: Book) -> list[str]:
    found = []
    for threshold in thresholds_of(book):
        if all(book.value("tau", name, threshold=threshold) is None for name in CONTENDERS):
            counts = [book.value(f"{split}_rows", "data", threshold=threshold) for split in SPLITS]
            found.append(f"{threshold_title(threshold)} ({' / '.join(map(number, counts))})")
    return [f"Too few rows to rank: {'; '.join(found)}."] if found else []
