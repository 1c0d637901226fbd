"""How much of τ comes from the initialization that all runs of the paper share: the same table on both zoos."""

from benchmarks.models.registry import SIX_MODELS, known_models
from benchmarks.tables.kendall import CONVERGED_TITLE, ROW_COUNTS, converged_text, row_counts
from benchmarks.tables.markdown import table, tau_text, threshold_title
from benchmarks.tables.result_index import ResultIndex, thresholds_of


def seeds_table(shared: ResultIndex, distinct: ResultIndex, config: str) -> str:
    """One line per model, one column per threshold: τ of the zoo whose runs share a seed, then of the zoo with a seed
    for each run.

    In the last column there is no threshold and neural predictors are trained until validation stops improving.
    """
    indexes = (shared, distinct)
    thresholds = [threshold for threshold in thresholds_of(shared) if threshold in thresholds_of(distinct)]
    first = thresholds[:1]
    lines = []
    for name, benchmark_model in known_models().items():
        pairs = [
            [index.find("tau", name, threshold=threshold, recipe=benchmark_model.recipe) for index in indexes]
            for threshold in thresholds
        ]
        if name not in SIX_MODELS and not any(row for pair in pairs for row in pair):
            continue
        cells = ["<br>".join(tau_text(row) for row in pair) for pair in pairs]
        converged = ["<br>".join(converged_text(index, name, threshold) for index in indexes) for threshold in first]
        lines.append([benchmark_model.title, *cells, *converged])
    counts = ["<br>".join(row_counts(index, threshold) for index in indexes) for threshold in thresholds]
    lines.append([ROW_COUNTS, *counts, *counts[:1]])
    last = [f"{threshold_title(threshold)}, {CONVERGED_TITLE}" for threshold in first]
    title = f"τ, {config}: one seed for all runs, below it a seed for each run"
    headings = [title, *map(threshold_title, thresholds), *last]
    return table(headings, lines)
