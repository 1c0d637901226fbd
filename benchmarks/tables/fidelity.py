"""Whether the fused engine trains the same zoo: a table of the README, from ``benchmarks.fidelity``."""

from collections.abc import Iterable

from benchmarks.results import Result
from benchmarks.tables.markdown import MISSING, table

METRICS = ("mean_difference", "mean_distance", "distribution_distance")
COMPARISONS = {
    "fused and float32": "fused kernels − torch in float32",
    "float32, two seeds": "torch in float32: one seed − another",
    "fused and float32, stable": "fused − float32, where the two seeds agree within {stable_within}",
}


def fidelity_table(rows: Iterable[Result]) -> str:
    """Final test accuracies of two trainings of the same configurations, one line per pair; the last setting of each
    config."""
    rows = list(rows)
    lines = []
    for config in dict.fromkeys(row.config for row in rows):
        of_config = [row for row in rows if row.config == config]
        setting = of_config[-1].setting
        latest = {(row.variant, row.metric): row for row in of_config if row.setting == setting}
        what = f"{config}, {setting['epochs']} epochs on {setting['train_examples']:,} examples: "
        for variant, words in COMPARISONS.items():
            measured = [latest.get((variant, metric)) for metric in METRICS]
            if (first := measured[0]) is not None:
                numbers = [MISSING if row is None else f"{row.value:.4f}" for row in measured]
                lines.append((what + words.format_map(setting), str(first.n), *numbers))
    headings = ["final test accuracies", "configurations", "mean difference", "mean distance", "between distributions"]
    return table(headings, lines)
