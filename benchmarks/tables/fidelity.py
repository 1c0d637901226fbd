"""Whether the fused engine trains the same zoo: the table of the README, from the rows of ``benchmarks.fidelity``."""

from collections.abc import Iterable

from benchmarks.results import Result
from benchmarks.tables.markdown import MISSING, table

METRICS = ("mean_difference", "mean_distance", "distribution_distance")
COMPARISONS = {
    "fused and float32": "fused kernels and torch in float32",
    "float32, two seeds": "torch in float32 with two seeds",
    "fused and float32, stable": "fused and float32, where the two seeds agree within {stable_within}",
}


def fidelity_table(rows: Iterable[Result]) -> str:
    """Final test accuracies of two trainings of the same configurations, one line a pair; the last rows count."""
    latest = {(row.variant, row.metric): row for row in rows}
    lines = []
    for variant, words in COMPARISONS.items():
        found = [latest.get((variant, metric)) for metric in METRICS]
        if (first := found[0]) is not None:
            numbers = [MISSING if row is None else f"{row.value:.4f}" for row in found]
            lines.append((words.format_map(first.setting), str(first.n), *numbers))
    headings = ["final test accuracies", "configurations", "mean difference", "mean distance", "between distributions"]
    return table(headings, lines)
