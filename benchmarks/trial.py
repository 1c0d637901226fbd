"""A trial is a model fitted once, at one seed: what identifies it, where finished ones are stored, how it is computed.

It is fitted on train, chosen on validation, judged on test, and stored in one safetensors file per config and model,
for all tables: no trial is computed twice. The header has one line of JSON per trial; arrays that trials share are
stored once. The whole file is replaced when trials are added.
"""

import ctypes
import functools
import gc
import hashlib
import importlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from benchmarks.data import MIN_ROWS, TEST_FILES, BenchmarkData, Elsewhere, Fitted, NotFinite, Outcome
from benchmarks.models.registry import builder, known_models
from benchmarks.models.training import RECIPES, train_one_by_one, train_together
from benchmarks.options import EPOCHS
from benchmarks.results import Result, Setting, describe_device, named_label
from nfn.predictors.ranks import Ranks
from zoo.reading.selection import Selection
from zoo.storage.atomic import exclusive, write_atomically

# raised when fitting or choosing changes for all models; when it changes for one, its edition is raised instead
_PROTOCOL = 2
_STANDARD_CHANNELS = (10,)  # the default of Transformer-NFN
_FOLDER = "cells"
_LEAST_VARIANCE = 1e-6  # of a part that ranks validation perfectly
_LATER = ("rows", "folds", "fold", "split", "label", "label_checkpoint")
_ARRAYS = ("predicted", "truth", "runs", "configurations")
_Advance = Callable[[str, int], None]
"""Called with the work under way and how many more trials are done."""


@dataclass(frozen=True)
class Trial:
    """Everything that the outcome depends on, and the benchmark it is for."""

    benchmark: str
    config: str
    model: str
    seed: int
    zoo: str
    threshold: float = 0.0
    checkpoint: str = "epoch_75"
    recipe: str = "paper"
    epochs: int | None = None
    components: tuple[str, ...] | None = None
    channels: tuple[int, ...] | None = None
    entry_range: float | None = None
    where: str | None = None
    elsewhere: Elsewhere | None = None
    """Where it is tested, if not on the test split of the same data."""
    rows: int | None = None
    """How many of the training rows it is fitted on; None for all."""
    folds: int | None = None
    """The number of folds of a cross-validation; None where the zoo's own splits are used."""
    fold: int | None = None
    """The fold that it is tested on; None stands for all of them."""
    split: str | None = None
    """The splits whose rows the folds have; None for all."""
    label: str | None = None
    """What the runs are ranked by; None is test accuracy."""
    label_checkpoint: str | None = None
    """The checkpoint that labels were measured at; None is that of the weights."""

    @classmethod
    def on(cls, data: BenchmarkData, model: str, seed: int, benchmark: str = "kendall", **what: Any) -> "Trial":
        """A model at one seed on some data; ``what`` are other values that distinguish it."""
        what |= {"checkpoint": data.checkpoint, "label_checkpoint": data.label_checkpoint}
        what |= {"label": named_label(data.train.label)}
        return cls(benchmark, data.config, model, seed, data.fingerprint, **what).normalized()

    @property
    def key(self) -> str:
        """The same for trials of different benchmarks that are the same fit."""
        model = known_models()[self.model]
        what = self.to_dict() | {"protocol": _PROTOCOL}
        del what["benchmark"], what["where"]  # the fingerprint is of the very rows
        if self.channels == _STANDARD_CHANNELS:
            what["channels"] = None
        edition = model.edition if model.edition > 1 else None
        others = {"edition": edition, "source": model.source, "parts": [part.key for part in self.parts] or None}
        text = json.dumps(what | {name: value for name, value in others.items() if value is not None}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def normalized(self) -> "Trial":
        """The same without values that its model does not use: the seed of boosting, the epochs of trees or of
        training until convergence."""
        model = known_models()[self.model]
        return replace(
            self,
            epochs=self.epochs if model.neural and not RECIPES[self.recipe].converged else None,
            seed=self.seed if model.seeded else 0,
            recipe=self.recipe if model.neural else "paper",
        )

    @property
    def parts(self) -> "tuple[Trial, ...]":
        """The trials that this one is the average of; none where it is a fit."""
        names = known_models()[self.model].parts
        return tuple(replace(self, model=name).normalized() for name in names)

    @property
    def fit(self) -> "Trial":
        """The same for trials that are one fit tested on several test splits."""
        return replace(self, elsewhere=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values by name. Names that older trials lack are there only where set."""
        values = asdict(self)
        elsewhere = values.pop("elsewhere") or {}
        later = {name: value for name in _LATER if (value := values.pop(name)) is not None}
        return values | elsewhere | later

    def setting(self) -> Setting:
        """The values that a result row stores besides benchmark, config and model. Seeds are averaged over."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self.to_dict().items()
            if value is not None and name not in ("benchmark", "config", "model", "seed")
        }

    @classmethod
    def of_row(cls, row: Result, seed: int) -> "Trial":
        """The trial that a result row was made from, at one of its seeds."""
        assert row.model is not None, "only rows of a model come from trials"
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in row.setting.items()}
        if "where" in values:
            values["where"] = Selection.parse(str(values["where"])).expression
        tested: Any = {field.name: values.pop(field.name) for field in fields(Elsewhere) if field.name in values}
        setting: Any = values | {"elsewhere": Elsewhere(**tested) if tested else None}
        return cls(row.benchmark, row.config, row.model, seed, **setting)


class TrialStore:
    """The finished trials below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / _FOLDER

    def path(self, trial: Trial) -> Path:
        model = trial.model.replace(":", "-")  # my_module:MyPredictor; not every file system has colons
        return self.folder / f"{trial.config}.{model}.safetensors"

    def find(self, trials: Sequence[Trial]) -> dict[Trial, Outcome]:
        """The finished ones among the trials."""
        files = {path: _read(path) for path in {self.path(trial) for trial in trials}}
        return {trial: found for trial in trials if (found := files[self.path(trial)].get(trial.key))}

    def add(self, outcomes: dict[Trial, Outcome]) -> None:
        """Adds finished trials; a trial that is already stored is replaced."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with exclusive(self.folder, busy=None):
            for path in sorted({self.path(trial) for trial in outcomes}):
                new = {trial.key: outcome for trial, outcome in outcomes.items() if self.path(trial) == path}
                write_atomically(path, _pack(_read(path) | new))


def _pack(outcomes: dict[str, Outcome]) -> bytes:
    arrays: dict[str, np.ndarray] = {}
    header = {}
    for key, outcome in outcomes.items():
        names = {}
        for name in _ARRAYS:
            if (array := getattr(outcome, name)) is not None:
                # the same name for the same numbers, so that they are stored once
                names[name] = hashlib.sha256(array.dtype.str.encode() + array.tobytes()).hexdigest()[:16]
                arrays[names[name]] = array
        header[key] = json.dumps({"arrays": names, "notes": outcome.notes})
    return save(arrays, metadata=header)


def _read(path: Path) -> dict[str, Outcome]:
    """The outcomes in a file by key; none if there is no file."""
    if not path.exists():
        return {}
    if not path.is_file():
        raise ValueError(f"{path} is not a file: move it away, trials are stored under this name")

    try:
        with safe_open(path, framework="np") as file:
            read = functools.cache(lambda name: np.array(file.get_tensor(name)))
            trials = {key: json.loads(text) for key, text in (file.metadata() or {}).items()}
            return {
                key: Outcome(**{name: read(of) for name, of in trial["arrays"].items()}, notes=trial["notes"])
                for key, trial in trials.items()
            }
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it, its trials are then computed again") from error


Outcomes = dict[Trial, Outcome]


def compute(
    trials: Sequence[Trial], data: BenchmarkData, store: TrialStore, *, jobs: int, advance: _Advance = lambda *_: None
) -> tuple[Outcomes, dict[str, str]]:
    """The outcomes of the trials, and model → why it cannot be computed here, or has no finite predictions.

    Trials that are in the store are not computed again.
    """
    wanted, known, skipped = dict.fromkeys(trials), _known(trials, data, store), {}
    advance("reading finished trials", len(known.keys() & wanted.keys()))
    for group in _groups(to_fit(trials, data, store), data):
        model = known_models()[group[0].model]
        advance(_label(group), 0)
        if missing := model.missing():
            skipped[model.name] = missing
        elif min(data.rows_at_least(group[0].threshold)) >= MIN_ROWS:
            try:
                outcomes = _fit_and_judge(group, data, jobs)
            except NotFinite as error:
                skipped[model.name] = str(error)
            else:
                store.add(outcomes)
                known |= outcomes
        advance(_label(group), len(wanted.keys() & set(group)))
    averages = {}  # of parts that are all finished; they are stored like any other outcome
    for trial in (trial for trial in wanted if trial not in known and trial.parts and known.keys() >= set(trial.parts)):
        rows, labels = data.train.at_least(trial.threshold), [data.train.truth()]
        if "label" in known_models()[trial.model].reads and data.train.current is not None:
            labels.append(data.train.current)
        averages[trial] = _average([known[part] for part in trial.parts], *(each[rows] for each in labels))
    if averages:
        store.add(averages)
    advance("averaging", len(averages))
    known |= averages
    return {trial: known[trial] for trial in wanted if trial in known}, skipped


def _known(trials: Sequence[Trial], data: BenchmarkData, store: TrialStore) -> Outcomes:
    """The finished ones among the trials and their parts: in the store, and not judged on test rows that the zoo had
    before. A trial from before this was noted is taken as it is."""
    return {
        trial: outcome
        for trial, outcome in store.find([each for trial in trials for each in (trial, *trial.parts)]).items()
        if outcome.notes.get(TEST_FILES) in (None, data.tested_on(trial.elsewhere).test_files)
    }


def to_fit(trials: Sequence[Trial], data: BenchmarkData, store: TrialStore) -> list[Trial]:
    """The trials that are not finished; in place of an average, its unfinished parts."""
    known = _known(trials, data, store)
    fits = (fit for trial in trials if trial not in known for fit in trial.parts or (trial,))
    return list(dict.fromkeys(fit for fit in fits if fit not in known))


def _groups(trials: Sequence[Trial], data: BenchmarkData) -> list[list[Trial]]:
    """Trials that are fitted in one go.

    On a GPU all seeds of a neural predictor train together. On a CPU that gains nothing, and the last digits of a trial
    that is fitted alone do not depend on the others: a table that is interrupted and started again comes out the same.
    Trees of the same rows share the work of preparing them.
    """
    together: dict[Trial, list[Trial]] = {}
    for trial in trials:
        model = known_models()[trial.model]
        alone = model.neural and (data.train.weights.device.type == "cpu" or not model.stacked)
        together.setdefault(trial.fit if alone else replace(trial.fit, seed=0), []).append(trial)
    return list(together.values())


def _label(group: Sequence[Trial]) -> str:
    first = group[0]
    suffix = f", ≥ {first.threshold:.0%}" if first.threshold else ""
    return f"{first.config}: {known_models()[first.model].title}{suffix}"


def _fit_and_judge(trials: Sequence[Trial], data: BenchmarkData, jobs: int) -> Outcomes:
    """Fits the trials of one group. Only when every choice is made is each judged on test, once."""
    model = known_models()[trials[0].model]
    device = data.train.weights.device if model.neural else torch.device("cpu")
    if model.library is not None:
        importlib.import_module(model.library)  # before the clock starts
    fits = list(dict.fromkeys(trial.fit for trial in trials))
    peak = _count_peak_memory(device)
    start = time.perf_counter()
    fitted = _fit(fits, data, jobs)
    cost = {
        "wall_seconds": (time.perf_counter() - start) / len(fits),
        "peak_memory_megabytes": peak(),
        "fitted_together": len(fits),
        "device": describe_device(device),
    }
    outcomes = {}
    for trial in trials:
        model_of = fitted[trial.fit]
        outcome = data.tested_on(trial.elsewhere).judge(model_of, trial.threshold, trial.model)
        notes = {name: getattr(model_of, name) for name in ("validation_tau", "epoch", "epochs", "parameters")}
        notes |= {} if np.isfinite(model_of.validation_tau) else {"validation_tau": None}
        outcomes[trial] = replace(outcome, notes=outcome.notes | notes | cost)
    return outcomes


def _fit(trials: Sequence[Trial], data: BenchmarkData, jobs: int = 1) -> dict[Trial, Fitted]:
    """The trials of one group, fitted: one model by one recipe on the same rows, at several seeds."""
    first, model = trials[0], known_models()[trials[0].model]
    train, validation = (rows.take(rows.at_least(first.threshold)) for rows in (data.train, data.validation))
    seeds = tuple(trial.seed for trial in trials)
    if model.fit is not None:
        fitted = model.fit(train, validation, seeds, jobs)
    else:
        fit = train_together if model.stacked else train_one_by_one
        build = builder(model.name, train.spec, first.channels, first.components)
        fitted = fit(build, seeds, train, validation, RECIPES[first.recipe], first.epochs or EPOCHS)
    return dict(zip(trials, fitted, strict=True))


def _average(
    outcomes: Sequence[Outcome],
    training_accuracies: Float[np.ndarray, " m"],
    today: Float[np.ndarray, " m"] | None = None,
) -> Outcome:
    """The average of several predictors, from their finished outcomes: nothing is fitted, nothing chosen.

        p(x) = F⁻¹((1/k)·Σ_i F(p_i(x)))     F(a): the rank of accuracy a among the training accuracies, from 0 to 1

    Accuracies themselves would be averaged badly: a predictor whose predictions are spread more widely would decide the
    order alone, and half a point means much near the best runs and nothing among the failed ones. Ranks are what
    Gauge-NFN and the trees on hyperparameters are fitted to predict: where one of them is unsure, it predicts a rank
    near the middle and so weighs less. And this rank of a row does not depend on the other test rows, as one among the
    predictions of the test split would.

    In a forecast the last part is the label of ``today``, ranked among today's. It is often far more certain than what
    it is averaged with, so there the mean is weighted, by 1/cos²(π·τ/2) with τ of each part on validation: the inverse
    of the variance that two normal variables with this τ leave unexplained.
    """
    first = outcomes[0]
    assert all(np.array_equal(outcome.truth, first.truth) for outcome in outcomes), "they are of the same test rows"
    ranks = Ranks.among(training_accuracies)
    places = [ranks.of(outcome.predicted) for outcome in outcomes]
    if today is None:
        mean_ranks = np.mean(places, axis=0)
    else:
        places[-1] = Ranks.among(today).of(outcomes[-1].predicted)
        taus = np.array([float(outcome.notes["validation_tau"] or 0.0) for outcome in outcomes])
        unexplained = np.maximum(np.cos(np.pi / 2 * taus) ** 2, _LEAST_VARIANCE)
        mean_ranks = np.average(places, axis=0, weights=1 / unexplained)

    notes = first.notes | dict.fromkeys(("validation_tau", "epoch", "epochs", "mean_change", "fitted_together"))
    notes |= {note: Outcome.joint_note(outcomes, note, sum) for note in ("parameters", "wall_seconds")}
    return replace(first, predicted=ranks.accuracy_at(mean_ranks).astype(np.float32), notes=notes)


def _count_peak_memory(device: torch.device) -> Callable[[], float | None]:
    """Counts from here on, and returns a function that gives the peak so far in megabytes above what is in use now.

    On a GPU it is the memory of the device, on a CPU that of the process, after returning what earlier work freed; None
    where the system does not report it.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        on_device = torch.cuda.memory_allocated(device)
        return lambda: (torch.cuda.max_memory_allocated(device) - on_device) / 2**20
    try:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = _peak_of_process()
    except (OSError, AttributeError, ValueError):
        return lambda: None
    return lambda: _peak_of_process() - before


def _peak_of_process() -> float:
    """The most megabytes that this process had since its ``clear_refs`` was written to, as proc(5) reports them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(kilobytes) / 1024
