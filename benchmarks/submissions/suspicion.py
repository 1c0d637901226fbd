"""Predictions that know the test labels: too near to them, or in an order too near to theirs.

A test accuracy is measured on some thousand examples, so a predictor that knew how good a transformer truly is would
still miss the measured number by its sampling error, and would reach only the τ of the noise ceiling
(``benchmarks.statistics.uncertainty``). Two signs that the labels themselves were read:

- most predictions agree with the accuracies to within half a test example;
- τ is nearer to 1 than to the noise ceiling, or is 1: labels behind some monotone map.
"""

import numpy as np
from jaxtyping import Float

from benchmarks.statistics import kendall_tau, noise_ceiling
from benchmarks.submissions.held_out import HeldOutRows

MOST_EQUAL = 0.5
FEWEST_ROWS = 8
"""With fewer rows chance may put all of them in the right order."""


def suspicion(predicted: Float[np.ndarray, " n"], rows: HeldOutRows) -> str | None:
    """Why these predictions look like the test labels, in one line; None where they do not."""
    near = np.abs(predicted - rows.truth) <= 0.5 / rows.test_examples
    if near.mean() > MOST_EQUAL:
        return f"{near.mean():.0%} of the predictions are the measured test accuracies, to within half a test example"
    if len(predicted) < FEWEST_ROWS:
        return None
    tau, ceiling = kendall_tau(predicted, rows.truth), noise_ceiling(rows.truth, rows.test_examples)
    if ceiling is not None and tau > (1 + ceiling) / 2:
        return (
            f"τ is {tau:.4f}, where one that knew each true accuracy would have about {ceiling:.4f}: "
            "the order is that of the test labels"
        )
    return None
