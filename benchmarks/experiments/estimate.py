"""How long trials will take on this machine, from short fits of the models they are of."""

import importlib
import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.data.benchmark_data import MIN_ROWS, BenchmarkData
from benchmarks.data.checkpoints import Checkpoints
from benchmarks.experiments.execution import fit_neural, groups
from benchmarks.experiments.trial import Trial
from benchmarks.models.registry import MODELS, SIX_MODELS, known_models
from benchmarks.models.schedule import EPOCHS, RECIPES
from benchmarks.models.training_group import BATCH_SIZE

WORTH_A_PROBE = 50_000  # rows times epochs: less is over in a minute or two
PROBE_ROWS, PROBE_EPOCHS, PROBE_FEATURES = 64, 2, 256
READING = 1 / 3  # the forward pass, as a share of a training step
CONVERGED_EPOCHS = 100  # of the predictors that train until validation stops improving; 97 in the committed rows


def row_epochs(trials: Sequence[Trial], data: BenchmarkData) -> int:
    """The size of the work, whatever the machine: rows read in training. Other models count as one of 50 epochs."""
    return sum(len(data.train.at_least(trial.threshold)) * epochs_of(trial) for trial in trials)


def epochs_of(trial: Trial) -> int:
    return CONVERGED_EPOCHS if RECIPES[trial.recipe].converged else trial.epochs or EPOCHS


@dataclass
class FitTimes:
    """Estimated seconds of fits; each kind of model is measured once, when it is first asked for."""

    data: BenchmarkData
    jobs: int
    measured: dict[Hashable, float] = field(default_factory=dict)

    def total(self, trials: Sequence[Trial]) -> float:
        """Of all trials, in the groups that they are fitted in."""
        return sum(self.of(group) for group in groups(trials, self.data))

    def of(self, group: Sequence[Trial]) -> float:
        """Of trials that are fitted in one go; 0 where they cannot be fitted."""
        model = known_models()[group[0].model]
        rows = [self.rows(trial.threshold) for trial in group]
        if model.missing() is not None or min(min(train, validation) for train, validation in rows) < MIN_ROWS:
            return 0.0
        if not model.neural:
            return self.other(group)
        key = (model.name, group[0].components, group[0].channels, len(group))
        steps = max(steps_per_epoch(train, validation) for train, validation in rows)
        return self.once(key, lambda: self.step_seconds(group)) * steps * epochs_of(group[0])

    def rows(self, threshold: float) -> tuple[int, int]:
        """Of train and validation."""
        return len(self.data.train.at_least(threshold)), len(self.data.validation.at_least(threshold))

    def once(self, key: Hashable, measure: Callable[[], float]) -> float:
        if key not in self.measured:
            self.measured[key] = measure()
        return self.measured[key]

    def step_seconds(self, group: Sequence[Trial]) -> float:
        """A training step of a group of neural predictors: two fits on a few rows differ by some epochs only."""
        highest = max(trial.threshold for trial in group)
        few = BenchmarkData(
            some_rows(self.data.train, highest, PROBE_ROWS),
            some_rows(self.data.validation, highest, BATCH_SIZE),
            never_opened,
            config=self.data.config,
            fingerprint=self.data.fingerprint,
            test_examples=self.data.test_examples,
        )

        def fit(epochs: int) -> float:
            trials = [
                replace(trial, recipe="paper" if trial.recipe == "converged" else trial.recipe, epochs=epochs)
                for trial in group
            ]
            return seconds(lambda: fit_neural(trials, few))

        fit(1)  # warms up
        difference = fit(1 + PROBE_EPOCHS) - fit(1)
        return max(0.0, difference) / (PROBE_EPOCHS * steps_per_epoch(len(few.train), len(few.validation)))

    def other(self, group: Sequence[Trial]) -> float:
        """Trees: their time grows with the features and with the rows, and they are measured on a few features.

        A model of the user's own is measured on a few rows, as if its time grew with the rows alone.
        """
        model, (rows, _) = known_models()[group[0].model], self.rows(group[0].threshold)
        fit, train, validation = model.fit, self.data.train, self.data.validation
        assert fit is not None
        if model.library is not None:
            importlib.import_module(model.library)
        if model.name not in SIX_MODELS:  # one reads six columns and no weights
            few, held_out = (some_rows(split, 0.0, PROBE_ROWS) for split in (train, validation))
            of_few_rows = self.once(model.name, lambda: seconds(lambda: fit(few, held_out, [0], self.jobs)))
            return of_few_rows if model.name in MODELS else of_few_rows * rows / len(few) * len(group)
        narrow, held_out = (replace(split, weights=split.weights[:, :PROBE_FEATURES]) for split in (train, validation))
        wider = max(1.0, train.weights.shape[1] / PROBE_FEATURES)
        of_all_rows = self.once(model.name, lambda: seconds(lambda: fit(narrow, held_out, [0], self.jobs)))
        return of_all_rows * wider * rows / len(train) * len(group)


def steps_per_epoch(train: int, validation: int) -> float:
    """Training steps, validation counted as the part of them that it takes."""
    return math.ceil(train / BATCH_SIZE) + READING * math.ceil(validation / BATCH_SIZE)


def some_rows(split: Checkpoints, threshold: float, count: int) -> Checkpoints:
    return split.take(np.asarray(split.at_least(threshold)[:count]))


def never_opened() -> Checkpoints:
    raise AssertionError("a probe has no test split")


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
