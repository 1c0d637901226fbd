"""How much of τ comes from the one initialisation that the paper's runs share: the same table on both zoos."""

from benchmarks.models.registry import MODELS
from benchmarks.tables.kendall import ROW_COUNTS, UNTIL_IDLE, converged_text, row_counts, thresholds_of
from benchmarks.tables.markdown import table, tau_text, threshold_title
from benchmarks.tables.result_index import ResultIndex


def seeds_table(shared: ResultIndex, distinct: ResultIndex) -> str:
    """One line a model, a column a threshold: τ where all runs share a seed, and where each has its own.

    The last column is of no threshold, with neural predictors trained as long as it takes.
    """
    indexes = (shared, distinct)
    thresholds = [threshold for threshold in thresholds_of(shared) if threshold in thresholds_of(distinct)]
    first = thresholds[:1]
    lines = []
    for name, benchmark_model in MODELS.items():
        found = [[index.find("tau", name, threshold=one, recipe="paper") for index in indexes] for one in thresholds]
        pairs = ["<br>".join(tau_text(row, None, None) for row in pair) for pair in found]
        longer = ["<br>".join(converged_text(index, name, one) for index in indexes) for one in first]
        lines.append([benchmark_model.title, *pairs, *longer])
    counts = ["<br>".join(row_counts(index, one) for index in indexes) for one in thresholds]
    lines.append([ROW_COUNTS, *counts, *counts[:1]])
    headings = [*map(threshold_title, thresholds), *(f"{threshold_title(one)}, {UNTIL_IDLE}" for one in first)]
    return table(["τ: one seed for all runs, below it a seed a run", *headings], lines)
