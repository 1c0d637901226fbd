"""Rows: τ of every predictor against the number of training rows, and the curve towards the paper's.

python -m benchmarks.rows                                      MNIST, on the zoo in this repository
python -m benchmarks.rows --sizes 50 100 200 --models mlp hyperparameters --quick

Every predictor is fitted on the first rows of the train split in the order of their runs' hashes, so a smaller part
lies in every larger one; validation and test stay whole. To the means of three sizes or more a curve is fitted and
continued to --towards rows:

    τ(n) = τ∞ − a·n^(−b)     τ∞ ≤ 1,  a ≥ 0,  0.05 ≤ b ≤ 3

Writes OUT/rows.jsonl, OUT/rows.CONFIG.md and OUT/rows.CONFIG.png; finished trials are not computed again.
"""

from dataclasses import dataclass, replace
from typing import Annotated

from benchmarks import paper
from benchmarks.options import USUAL_MODELS, Models, Size, Sizes, TableOptions
from zoo.command import Command, Option


@dataclass(frozen=True, kw_only=True)
class _Options(TableOptions):
    models: Models = USUAL_MODELS
    sizes: Sizes = (250, 500, 1000, 2000)
    towards: Annotated[Size, Option("number of rows that the curve goes on to", "N")] = paper.TRAIN_ROWS


_command = Command(__name__, "benchmarks.rows", __doc__, _Options, lambda _: ("matplotlib", "scipy"))

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float

from benchmarks.experiment import Entry, Experiment, entries_of
from benchmarks.models.registry import check_models, own_models
from benchmarks.plots import tau_by_rows
from benchmarks.results import Result
from benchmarks.statistics import bootstrap_taus, resample_runs
from benchmarks.trial import Outcomes, Trial

_LEAST_SIZES = 3  # as many as the curve has parameters
_EXPONENTS = np.geomspace(0.05, 3.0, 800)


@dataclass(frozen=True)
class _LearningCurves:
    """One curve per line of τ that it was fitted to.

    For a given b the curve is linear in τ∞ and a, so the least squares over them have a closed form, and b is the best
    of a fine grid: no starting point, no step that fails, and the thousand curves of a bootstrap at once. A small b is
    close to a logarithm; the bounds keep it from leading beyond the τ that a ranking can have.
    """

    limit: Float[np.ndarray, " m"]
    scale: Float[np.ndarray, " m"]
    exponent: Float[np.ndarray, " m"]

    @classmethod
    def fit(cls, sizes: Sequence[int], taus: Float[np.ndarray, "m s"]) -> "_LearningCurves":
        """The least squares of each line; every size counts alike."""
        if len(set(sizes)) < _LEAST_SIZES:
            raise ValueError(f"a learning curve needs {_LEAST_SIZES} different numbers of rows, got {sorted(sizes)}")
        n = np.asarray(sizes, dtype=np.float64)
        unit = n.min()  # so that the powers of any b are near one
        x = (n[None, :] / unit) ** -_EXPONENTS[:, None]
        mean_x, mean_tau = x.mean(1)[:, None], taus.mean(1)[None, :]
        slope = (x - mean_x) @ (taus - taus.mean(1, keepdims=True)).T / np.square(x - mean_x).sum(1)[:, None]
        scale = np.maximum(0.0, -slope)
        limit = mean_tau + scale * mean_x
        below_one = (x @ (1 - taus).T) / np.square(x).sum(1)[:, None]  # the best a where τ∞ is held at 1
        held = limit > 1
        scale, limit = np.where(held, np.maximum(0.0, below_one), scale), np.minimum(limit, 1.0)
        residual = limit[:, :, None] - scale[:, :, None] * x[:, None, :] - taus[None, :, :]
        best = np.square(residual).sum(2).argmin(0)
        lines = np.arange(len(taus))
        exponent = _EXPONENTS[best]
        return cls(limit[best, lines], scale[best, lines] * unit**exponent, exponent)

    def at(self, size: int) -> Float[np.ndarray, " m"]:
        return self.limit - self.scale * size**-self.exponent


def _curve_rows(outcomes: Outcomes, all_rows: int, towards: int) -> Iterator[Result]:
    """The curve of every model that was fitted on enough different numbers of rows, and its τ at ``towards`` rows.

    ``all_rows`` is the number of rows of trials that were fitted on all. The result rows have the setting of a fit on
    ``towards`` rows. Their interval is the middle 95 % of a bootstrap: each resample draws test runs, the same for
    every number of rows, and seeds, anew for each; the curve is fitted to its means. It does not cover which training
    rows the smaller subsets happen to have, nor whether τ goes on along such a curve.
    """
    by_model: dict[Trial, dict[int, Entry]] = {}
    for entry in entries_of(outcomes):
        if entry.rankable:
            size = all_rows if entry.trial.rows is None else entry.trial.rows
            by_model.setdefault(replace(entry.trial, rows=towards, seed=0), {})[size] = entry
    for trial, entries in by_model.items():
        if len(entries) < _LEAST_SIZES:
            continue
        sizes = list(entries)
        beyond = Entry(trial, entries[max(sizes)].outcomes)
        curve = _LearningCurves.fit(sizes, np.array([[float(np.mean(entry.taus())) for entry in entries.values()]]))
        resampled = np.stack([_resampled_means(entry) for entry in entries.values()], axis=1)
        whole = np.isfinite(resampled).all(axis=1)
        continued = np.full(len(resampled), np.nan)
        continued[whole] = _LearningCurves.fit(sizes, resampled[whole]).at(towards)
        yield from beyond.rows("tau_extrapolated", curve.at(towards).tolist(), continued)
        for name in ("limit", "scale", "exponent"):
            yield from beyond.rows(f"curve_{name}", getattr(curve, name).tolist())


def _resampled_means(entry: Entry) -> Float[np.ndarray, " b"]:
    """The mean τ of as many seeds, drawn with replacement, in every resample of the test runs."""
    truth, units = entry.first.truth, entry.first.units
    counts = resample_runs(units)
    per_seed = np.stack([bootstrap_taus([each], truth, counts, units=units) for each in entry.predictions])
    draw = np.random.default_rng(entry.trial.rows or 0)  # other seeds for each number of rows
    return np.take_along_axis(per_seed, draw.integers(len(per_seed), size=per_seed.shape), axis=0).mean(axis=0)


@_command
@own_models()
def main(options: _Options) -> None:
    experiment, models = Experiment("rows", options), check_models(options.models)
    for config in experiment.configs:
        data = experiment.data(config)
        outcomes: Outcomes = {}
        for size in (*sorted({size for size in options.sizes if size < len(data.train)}), None):
            part = data if size is None else data.with_train_rows(size)
            outcomes |= experiment.run([experiment.trials(part, model, rows=size) for model in models], part)
        experiment.add(list(_curve_rows(outcomes, len(data.train), options.towards)))
        experiment.write(f"rows.{config}.md", config)
        if index := experiment.index(config):
            experiment.announce(tau_by_rows(index, config, experiment.file(f"rows.{config}.png")))
    experiment.end()
