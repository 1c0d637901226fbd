"""The data of a table. Train and validation are open; of the test split a model gets only its verdict."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float, Integer

from benchmarks.data.checkpoints import Checkpoints, require_rows
from zoo.format.manifest import edition_of
from zoo.format.published import ConfigDetails, PublishedZoo
from zoo.format.splits import SPLITS
from zoo.reading.locate import find_folder
from zoo.reading.reader import open_zoo
from zoo.reading.selection import Selection
from zoo.tasks.identity import KNOWN

MIN_ROWS = 2  # with fewer, a split has no pair to rank
FINGERPRINT_DIGITS = 16
INVARIANCE_SEED, AUGMENTATION_SEED = 1, 2


class NotFinite(ValueError):
    """A model predicts NaN or infinity."""


class Fitted(Protocol):
    """A model for which every choice has been made."""

    def predict(self, rows: Checkpoints) -> Float[np.ndarray, " n"]: ...


@dataclass(frozen=True)
class Verdict:
    """What a model predicts for the test rows, beside the truth.

    ``mean_change`` is how much its predictions change, on average, when a random group element acts on each checkpoint:
    zero for a model that recognizes different weights of the same function. ``configurations`` numbers the
    configuration of each row; None unless the zoo has several runs of each.
    """

    predicted: Float[np.ndarray, " n"]
    truth: Float[np.ndarray, " n"]
    runs: Integer[np.ndarray, " n"]
    mean_change: float
    configurations: Integer[np.ndarray, " n"] | None = None


@dataclass(frozen=True)
class Elsewhere:
    """Which other data a fitted model is tested on: the test split of a config at a checkpoint.

    ``tested_unseen`` says whether only rows count whose configuration is not among those it was fitted on.
    """

    tested_config: str
    tested_checkpoint: str
    tested_zoo: str
    tested_unseen: bool


class BenchmarkData:
    """Train and validation as they are, and a test split that only ``judge`` opens.

    ``elsewhere`` has other data to test on. ``test_files`` is a digest of the files of the test split, taken from
    the zoo's manifest without opening them; None where the rows are from no zoo.
    """

    def __init__(
        self,
        train: Checkpoints,
        validation: Checkpoints,
        open_test: Callable[[], Checkpoints],
        *,
        config: str,
        checkpoint: str = "epoch_75",
        fingerprint: str,
        test_files: str | None = None,
        test_examples: int,
        trained_on: str | None = None,
        repeats: bool = False,
    ) -> None:
        self.train = train
        self.validation = validation
        self.config = config
        self.checkpoint = checkpoint
        self.fingerprint = fingerprint
        self.test_files = test_files
        self.test_examples = test_examples
        self.trained_on = trained_on
        self.repeats = repeats
        self.elsewhere: dict[Elsewhere, BenchmarkData] = {}
        self._open_test = open_test

    @classmethod
    def from_zoo(
        cls,
        name: str | Path,
        config: str,
        *,
        checkpoint: str | None = None,
        where: Selection | None = None,
        device: torch.device | str = "cpu",
        entry_range: float | None = None,
    ) -> "BenchmarkData":
        """A config of a published zoo, at one checkpoint or ``all``. With ``entry_range`` every split is doubled.

        Without a ``checkpoint`` it is the one nearest to 75 % of the epochs, as in the paper. ``where`` chooses rows of
        every split by their metadata.
        """
        folder = find_folder(name, config)
        published = PublishedZoo.read(folder)
        details = published.config(config)
        checkpoint = chosen_checkpoint(details, config, checkpoint)
        require_rows(config, details.rows)
        test_files = published.files(config, "test")
        edition = edition_of(folder)

        def read(split: str) -> Checkpoints:
            rows = Checkpoints.read(open_zoo(folder, config, split), checkpoint, torch.device(device), where)
            if edition_of(folder) != edition:
                raise ValueError(f"{folder} was published again while the benchmark ran: run the benchmark again")
            return rows

        def doubled(rows: Checkpoints, split: str) -> Checkpoints:
            if entry_range is None:
                return rows
            # a different seed for each split, so that no two checkpoints are moved by the same element
            return rows.doubled(AUGMENTATION_SEED + 10 * SPLITS.index(split), entry_range)

        train, validation = read("train"), read("validation")
        return cls(
            doubled(train, "train"),
            doubled(validation, "validation"),
            lambda: doubled(read("test"), "test"),
            config=config,
            checkpoint=checkpoint,
            fingerprint=combined(train.digest(), validation.digest()),
            test_files=combined(*(published.manifest.files[file].sha256 for file in test_files)),
            test_examples=count_test_examples(details),
            trained_on=details.data_note(),
            repeats=details.repeats is not None,
        )

    def tested_on(self, elsewhere: Elsewhere | None) -> "BenchmarkData":
        """The data whose test split a trial is judged on."""
        return self if elsewhere is None else self.elsewhere[elsewhere]

    def test_elsewhere(self, other: "BenchmarkData") -> list[Elsewhere]:
        """Makes models that are fitted on these data testable on the test split of others.

        Twice: on the rows of configurations that are not in this train split, and on the rows of all configurations.
        No run of this train split is among either.
        """
        places = []
        for unseen in (True, False):
            place = Elsewhere(other.config, other.checkpoint, other.fingerprint, unseen)
            self.elsewhere[place] = other.apart_from(self.train, unseen)
            places.append(place)
        return places

    def apart_from(self, train: Checkpoints, unseen: bool) -> "BenchmarkData":
        """The same data, without the test rows whose run, or if ``unseen`` whose configuration, is in a train split."""

        def open_apart() -> Checkpoints:
            test = self._open_test()
            apart = test.of_other_runs(train)
            return test.take(np.intersect1d(apart, test.of_other_configurations(train)) if unseen else apart)

        return self._changed(self.train, open_apart)

    def with_train_rows(self, count: int) -> "BenchmarkData":
        """The same data with the first ``count`` rows of the train split, in an order that the runs' hashes give.

        So a smaller number of rows lies in a larger one. Validation and test stay whole, and so does the fingerprint: a
        trial says besides how many rows it has.
        """
        return self._changed(self.train.take(self.train.first_by_hash(count)), self._open_test)

    def _changed(self, train: Checkpoints, open_test: Callable[[], Checkpoints]) -> "BenchmarkData":
        return BenchmarkData(
            train,
            self.validation,
            open_test,
            config=self.config,
            checkpoint=self.checkpoint,
            fingerprint=self.fingerprint,
            test_files=self.test_files,
            test_examples=self.test_examples,
            trained_on=self.trained_on,
            repeats=self.repeats,
        )

    def judge(self, fitted: Fitted, threshold: float, name: str) -> Verdict:
        """Tests a fitted model on the test rows at or above a threshold. Nothing else opens them.

        One that predicts NaN or infinity, or what is infinite in single precision, is a ``NotFinite`` with its name.
        """
        rows = self._test.at_least(threshold)
        test, moved = self._test.take(rows), self._moved_test.take(rows)
        if not len(rows):
            return Verdict(np.empty(0, np.float32), np.empty(0, np.float32), np.empty(0, np.int32), 0.0)
        both = np.stack([fitted.predict(test), fitted.predict(moved)])
        with np.errstate(over="ignore"):
            predicted = both.astype(np.float32)
        if wrong := int((~np.isfinite(predicted)).any(axis=0).sum()):
            raise NotFinite(f"{name} predicts NaN or infinity for {wrong:,} of {len(rows):,} test rows")
        change = np.abs(both[1].astype(np.float64) - both[0])
        return Verdict(
            predicted=predicted[0],
            truth=test.truth(),
            runs=np.unique(test.runs, return_inverse=True)[1].astype(np.int32),
            mean_change=float(change.mean()),
            configurations=test.configurations() if self.repeats else None,
        )

    @cached_property
    def _test(self) -> Checkpoints:
        return self._open_test()

    @cached_property
    def _moved_test(self) -> Checkpoints:
        return self._test.moved(INVARIANCE_SEED)


def combined(*digests: str) -> str:
    """One short digest of several."""
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:FINGERPRINT_DIGITS]


def chosen_checkpoint(details: ConfigDetails, config: str, checkpoint: str | None) -> str:
    """A checkpoint that the config has, or ``all``; without a choice the one nearest to 75 % of the epochs."""
    checkpoint = checkpoint or details.usual_checkpoint
    if checkpoint not in (*details.checkpoints, "all"):
        raise ValueError(f"unknown checkpoint {checkpoint!r}: {config} has {', '.join(details.checkpoints)}, or all")
    return checkpoint


def count_test_examples(details: ConfigDetails) -> int:
    """How many examples each test accuracy was measured on."""
    return details.data.test_rows if details.data else KNOWN[details.task].test_rows
