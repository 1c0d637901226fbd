"""From trials on different numbers of training rows to result rows of a learning curve, and where it leads.

The interval of the extrapolated τ is the middle 95 % of a bootstrap. Each resample draws test runs, the same for every
number of rows, and seeds, anew for each; the curve is fitted to its means. What it does not cover is which training
rows the smaller subsets happen to have, and whether τ goes on along such a curve.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from benchmarks.experiments.summary import Entry, entries_of, interval_rows
from benchmarks.experiments.trial import Outcome, Trial
from benchmarks.results import Result
from benchmarks.statistics.learning_curve import LEAST_SIZES, LearningCurves
from benchmarks.statistics.uncertainty import Interval, bootstrap_taus, resample_runs


def curve_rows(outcomes: Mapping[Trial, Outcome], all_rows: int, towards: int) -> list[Result]:
    """The curve of every model that was fitted on enough different numbers of rows, and its τ at ``towards`` rows.

    ``all_rows`` is the number of rows of trials that were fitted on all. The rows are under the setting that a fit on
    ``towards`` rows would have.
    """
    by_model: dict[Trial, dict[int, Entry]] = {}
    for entry in entries_of(outcomes):
        if entry.rankable:
            size = all_rows if entry.trial.rows is None else entry.trial.rows
            by_model.setdefault(replace(entry.trial, rows=towards, seed=0), {})[size] = entry
    enough = {trial: entries for trial, entries in by_model.items() if len(entries) >= LEAST_SIZES}
    return [row for trial, entries in enough.items() for row in rows_of_one(trial, entries, towards)]


def rows_of_one(trial: Trial, entries: Mapping[int, Entry], towards: int) -> Iterable[Result]:
    sizes = list(entries)
    (largest,) = (entries[size] for size in sizes if size == max(sizes))
    beyond = Entry(trial, largest.outcomes)
    curve = LearningCurves.fit(sizes, np.array([[float(np.mean(entry.taus())) for entry in entries.values()]]))
    resampled = np.stack([resampled_means(entry) for entry in entries.values()], axis=1)
    whole = np.isfinite(resampled).all(axis=1)
    continued = np.full(len(resampled), np.nan)
    continued[whole] = LearningCurves.fit(sizes, resampled[whole]).at(towards)
    yield beyond.row("tau_extrapolated", float(curve.at(towards)[0]))
    yield from interval_rows(beyond, "tau_extrapolated", Interval.of(continued))
    for name in ("limit", "scale", "exponent"):
        yield beyond.row(f"curve_{name}", float(getattr(curve, name)[0]))


def resampled_means(entry: Entry) -> Float[np.ndarray, " b"]:
    """The mean τ of as many seeds, drawn with replacement, in every resample of the test runs."""
    first = entry.outcomes[0]
    counts = resample_runs(first.runs if first.configurations is None else first.configurations)
    per_seed = np.stack([bootstrap_taus([outcome.predicted], entry.truth, counts) for outcome in entry.outcomes])
    draw = np.random.default_rng(entry.trial.rows or 0)  # other seeds for each number of rows
    return np.take_along_axis(per_seed, draw.integers(len(per_seed), size=per_seed.shape), axis=0).mean(axis=0)
