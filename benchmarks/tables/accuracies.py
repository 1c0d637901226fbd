"""The distribution of the accuracies of the generated runs, from their curves: fig:dataset_acc_hist in numbers."""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from jaxtyping import Float

from benchmarks.tables.markdown import number, table

EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0)


def accuracies_table(accuracies: Mapping[str, Float[np.ndarray, " runs"]]) -> str:
    """From name → final test accuracies: the share of runs in each interval, the median and the best."""
    lines = []
    for name, values in accuracies.items():
        shares = np.histogram(values, EDGES)[0] / len(values)
        parts = [f"{share:.1%}" for share in shares]
        lines.append([name, number(len(values)), *parts, f"{np.median(values):.3f}", f"{values.max():.3f}"])
    intervals = [f"{low:.0%} to {high:.0%}" for low, high in pairwise(EDGES)]
    return table(["test accuracy after the last epoch", "runs", *intervals, "median", "best"], lines)
