"""The average of several predictors, from their finished outcomes: nothing is fitted.

    p(x) = F⁻¹((1/k)·Σ_i F(p_i(x)))     F(a): the place of accuracy a among the training accuracies, from 0 to 1

Accuracies themselves would be averaged badly: a predictor whose predictions are spread more widely would decide the
order alone, and half a point means much near the best runs and nothing among the failed ones. Places are what Gauge-NFN
and the trees on hyperparameters are fitted to predict: where one of them is unsure, it predicts a place near the middle
and so weighs less. And the place of a row does not depend on the other test rows, as its rank among the predictions of
the test split would.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from benchmarks.experiments.trial import Outcome
from nfn.predictors.ranks import Ranks


def average(outcomes: Sequence[Outcome], training_accuracies: Float[np.ndarray, " m"]) -> Outcome:
    """The outcome of the average. It costs what its parts cost, and nothing was chosen for it on validation."""
    first = outcomes[0]
    assert all(np.array_equal(outcome.truth, first.truth) for outcome in outcomes), "they are of the same test rows"
    ranks = Ranks.among(training_accuracies)
    places = np.mean([ranks.of(outcome.predicted) for outcome in outcomes], axis=0)
    notes = first.notes | {
        "validation_tau": None,
        "epoch": None,
        "epochs": None,
        "mean_change": None,
        "fitted_together": None,
        "parameters": total(outcomes, "parameters"),
        "wall_seconds": total(outcomes, "wall_seconds"),
    }
    return Outcome(ranks.accuracy_at(places).astype(np.float32), first.truth, first.runs, notes, first.configurations)


def total(outcomes: Sequence[Outcome], note: str) -> float | None:
    """Of a note of all outcomes; None if one of them does not have it."""
    values = [outcome.notes[note] for outcome in outcomes]
    numbers = [value for value in values if isinstance(value, int | float)]
    return float(sum(numbers)) if len(numbers) == len(values) else None
