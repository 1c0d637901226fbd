"""The rows that models are fitted and tested on: train and validation are open, the test split only gives a verdict."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from nfn import GroupElement
from zoo import TransformerSpec, TransformerWeights, ZooReader
from zoo.format.hyperparameters import CONFIGURATION
from zoo.format.manifest import edition_of
from zoo.format.published import ConfigDetails, PublishedZoo
from zoo.format.schema import GAP, direction_of, labels_of, usual_label
from zoo.format.splits import SPLITS, folds_of
from zoo.reading.locate import choose_configs, find_folder
from zoo.reading.reader import open_zoo
from zoo.reading.selection import Selection, Where
from zoo.tasks.identity import KNOWN

MIN_ROWS = 2  # with fewer, a split has no pair to rank
TEST_FILES = "test_files"
"""The note of an outcome with a digest of the test rows it was measured on."""
_MOVED_AT_ONCE = 256  # group elements act in float64: this many checkpoints stay within 100 MB
_FINGERPRINT_DIGITS = 16
_INVARIANCE_SEED, _AUGMENTATION_SEED = 1, 2


@dataclass(frozen=True)
class Checkpoints:
    """Checkpoints, one per row of ``metadata``: run_id, checkpoint, epoch, hyperparameters and goodness.

    Splits are by run, so no run is in two of them. The goodness is the label that they are ranked by, with a minus
    where less is better: test accuracy, or −test loss. Where it was measured at a later checkpoint of the same run,
    there is also the ``current`` one, of these very weights.
    """

    spec: TransformerSpec
    weights: Float[Tensor, "n d"]
    metadata: pd.DataFrame
    label: str = "test_accuracy"

    @classmethod
    def read(
        cls,
        reader: ZooReader,
        checkpoint: str,
        device: torch.device,
        where: Where = None,
        label: str = "test_accuracy",
        label_checkpoint: str | None = None,
    ) -> "Checkpoints":
        """The rows of a reader at one checkpoint (or ``all``) that ``where`` chooses, copied to the device.

        With a ``label_checkpoint`` they have the labels of their runs there; those of runs without it are left out.
        """
        require_rows(reader.config, {reader.split: len(reader)})
        at_checkpoint = reader.rows(None if checkpoint == "all" else f"checkpoint == '{checkpoint}'")
        table = reader.metadata
        values = table["test_loss"] - table["train_loss"] if label == GAP else table[label]
        goodness = direction_of(label) * values.to_numpy(dtype=np.float32)
        everything = table[["run_id", "checkpoint", "epoch", *CONFIGURATION]].assign(goodness=goodness)
        rows = everything.iloc[np.intersect1d(at_checkpoint, reader.rows(where))]
        if label_checkpoint is not None:
            there = everything.iloc[reader.rows(f"checkpoint == '{label_checkpoint}'")].set_index("run_id")["goodness"]
            rows = rows[rows["run_id"].isin(there.index)]
            rows = rows.assign(current=rows["goodness"], goodness=there[rows["run_id"]].to_numpy())
        # a copy: the reader's tensors are views of a file that may be replaced
        weights = reader.weights(rows.index.to_numpy()).to(device, copy=True)
        return cls(reader.spec, weights, rows.reset_index(drop=True), label)

    def __len__(self) -> int:
        return len(self.metadata)

    @property
    def readable(self) -> "TransformerWeights | Tensor":
        """What predictors are fitted to: all weights, by the names of their tensors."""
        return TransformerWeights.from_flat(self.spec, self.weights, check_finite=False)

    @property
    def runs(self) -> np.ndarray:
        return self.metadata["run_id"].to_numpy(dtype=str)

    @property
    def hyperparameters(self) -> pd.DataFrame:
        return self.metadata[list(CONFIGURATION)]

    @cached_property
    def goodness(self) -> Float[Tensor, " n"]:
        """On the device of the weights."""
        return torch.tensor(self.metadata["goodness"].to_numpy(dtype=np.float32), device=self.weights.device)

    @property
    def current(self) -> Float[np.ndarray, " n"] | None:
        return self.metadata["current"].to_numpy() if "current" in self.metadata else None

    @property
    def accuracy(self) -> Float[Tensor, " n"]:
        """The goodness, by the name that predictors of the user's own know."""
        return self.goodness

    def at_least(self, threshold: float) -> Integer[np.ndarray, " m"]:
        """The indices of the rows whose accuracy reaches the threshold; 0 is none, and all that a loss can have."""
        return np.flatnonzero(self.truth() >= np.float32(threshold)) if threshold else np.arange(len(self))

    def truth(self) -> Float[np.ndarray, " n"]:
        return self.goodness.cpu().numpy()

    def configurations(self) -> Integer[np.ndarray, " n"]:
        """A number for each row, the same for rows with the same hyperparameters."""
        return self.metadata.groupby(list(CONFIGURATION)).ngroup().to_numpy(dtype=np.int32)

    def units(self, *, repeats: bool) -> np.ndarray:
        """What a bootstrap draws: runs, or configurations where each has several runs, since these are alike."""
        return self.configurations() if repeats else self.runs

    def apart_from(self, runs: Sequence[str] | np.ndarray, configurations: pd.DataFrame | None = None) -> "Checkpoints":
        """The rows whose run is not among these, nor their configuration among those that are given."""
        apart = ~np.isin(self.runs, runs)
        if configurations is not None:
            apart &= ~pd.MultiIndex.from_frame(self.hyperparameters).isin(pd.MultiIndex.from_frame(configurations))
        return self.take(np.flatnonzero(apart))

    def take(self, rows: Integer[np.ndarray, " m"]) -> "Checkpoints":
        """Some of the rows; not copied if they are all, in order."""
        if np.array_equal(rows, np.arange(len(self))):
            return self
        weights = self.weights[torch.from_numpy(rows).to(self.weights.device)]
        return replace(self, weights=weights, metadata=self.metadata.iloc[rows].reset_index(drop=True))

    def with_rows_of(self, other: "Checkpoints") -> "Checkpoints":
        """These rows, followed by the other's of runs that are not among these."""
        parts = (self, other.apart_from(self.runs))
        metadata = pd.concat([part.metadata for part in parts], ignore_index=True)
        return replace(self, weights=torch.cat([part.weights for part in parts]), metadata=metadata)

    def in_folds(self, tested: int, count: int) -> "list[Checkpoints]":
        """The rows as train, validation and test split: one fold is tested, the next one chooses, the others train."""
        columns = self.metadata.assign(task=self.spec.task)
        after = (np.array(folds_of(lambda name: columns[name].tolist(), count)) - tested) % count
        return [self.take(np.flatnonzero(part)) for part in (after > 1, after == 1, after == 0)]

    def digest(self) -> str:
        """A hash of the rows alone, however they are divided into files."""
        digest = hashlib.sha256("\n".join(self.runs).encode())
        for tensor in (self.goodness, self.weights):
            digest.update(np.ascontiguousarray(tensor.cpu().numpy()).data)
        return digest.hexdigest()

    def pieces(self, size: int) -> Iterator[TransformerWeights]:
        """The weights, ``size`` rows at a time."""
        for part in self.weights.split(size):
            yield TransformerWeights.from_flat(self.spec, part, check_finite=False)

    def moved(self, seed: int, entry_range: float | None = None) -> "Checkpoints":
        """Every checkpoint acted on by its own random group element: other weights, the same function.

        Drawn on the CPU, so that a seed gives the same elements on every device.
        """
        generator = torch.Generator().manual_seed(seed)
        moved = []
        for weights in self.pieces(_MOVED_AT_ONCE):
            g = GroupElement.sample(self.spec, tuple(weights.batch_shape), generator=generator, entry_range=entry_range)
            moved.append(g.map(lambda tensor: tensor.to(self.weights.device)).act(weights).flat())
        return replace(self, weights=torch.cat(moved)) if moved else self


class NotFinite(ValueError):
    """A model predicts NaN or infinity."""


@dataclass(frozen=True)
class Fitted:
    """A model for which every choice has been made.

    ``epoch`` of ``epochs`` did best on validation (a round of boosting for trees); None is not known. ``predictor`` is
    the network of a neural one.
    """

    predict: Callable[[Checkpoints], Float[np.ndarray, " n"]]
    validation_tau: float = math.nan
    epoch: int | None = None
    epochs: int | None = None
    parameters: int | None = None
    predictor: nn.Module | None = None


@dataclass(frozen=True)
class Outcome:
    """Predictions of a fitted model for the test rows beside the truth, and notes on the fit.

    The note ``mean_change`` is how much predictions change, on average, when a random group element acts on each
    checkpoint: zero for a model that recognizes different weights of the same function. ``configurations`` numbers the
    configuration of each row; None unless the zoo has several runs of each. ``folds`` has the fold of each row where
    they are those of a cross-validation, else it is None.
    """

    predicted: Float[np.ndarray, " n"]
    truth: Float[np.ndarray, " n"]
    runs: Integer[np.ndarray, " n"]
    notes: dict[str, float | str | None]
    configurations: Integer[np.ndarray, " n"] | None = None
    folds: Integer[np.ndarray, " n"] | None = None

    @classmethod
    def pooled(cls, parts: "Sequence[Outcome]") -> "Outcome":
        """The outcomes of all folds as one. Numbers in its notes are means over the folds."""
        folds = np.repeat(np.arange(len(parts)), [len(part.truth) for part in parts])

        apart = len(folds) * folds  # no two folds share a run or a configuration

        def joined(name: str, apart: Any = 0) -> Any:
            return np.concatenate([getattr(part, name) for part in parts]) + apart

        return cls(
            predicted=joined("predicted"),
            truth=joined("truth"),
            runs=joined("runs", apart),
            notes={note: cls.joint_note(parts, note, np.mean) for note in parts[0].notes},
            configurations=None if parts[0].configurations is None else joined("configurations", apart),
            folds=folds,
        )

    @staticmethod
    def joint_note(parts: "Sequence[Outcome]", note: str, join: Callable[[Sequence[float]], Any]) -> float | str | None:
        """The numbers of all parts joined; None if only some are numbers, the value of the first part if none is."""
        values = [part.notes[note] for part in parts]
        numbers = [value for value in values if isinstance(value, int | float)]
        return values[0] if not numbers else float(join(numbers)) if len(numbers) == len(values) else None

    @property
    def units(self) -> Integer[np.ndarray, " n"]:
        """What a bootstrap draws: runs, or configurations where each has several runs, since these are alike."""
        return self.runs if self.configurations is None else self.configurations


@dataclass(frozen=True)
class Elsewhere:
    """Other data that a fitted model is tested on: the test split of a config at a checkpoint.

    With ``tested_unseen`` only rows count whose configuration is not among those it was fitted on.
    """

    tested_config: str
    tested_checkpoint: str
    tested_zoo: str
    tested_unseen: bool


@dataclass
class BenchmarkData:
    """Train and validation as they are, and a test split that only ``judge`` opens.

    ``elsewhere`` has other data to test on. ``test_files`` is a digest of the files of the test split, taken from
    the zoo's manifest without opening them; None where the rows do not come from a zoo. With a ``label_checkpoint``
    labels are those of that checkpoint, and ``left_out`` counts the runs that lack it or the checkpoint of the weights.
    """

    train: Checkpoints
    validation: Checkpoints
    open_test: Callable[[], Checkpoints]
    config: str
    fingerprint: str
    test_examples: int
    checkpoint: str = "epoch_75"
    label_checkpoint: str | None = None
    left_out: int = 0
    test_files: str | None = None
    trained_on: str | None = None
    repeats: bool = False
    elsewhere: "dict[Elsewhere, BenchmarkData]" = field(default_factory=dict, init=False)

    @classmethod
    def from_zoo(
        cls,
        name: str | Path,
        config: str | None,
        *,
        checkpoint: str | None = None,
        label: str | None = None,
        label_checkpoint: str | None = None,
        where: Selection | None = None,
        device: torch.device | str = "cpu",
        entry_range: float | None = None,
        fold: tuple[int, int] | None = None,
        split: str = "all",
    ) -> "BenchmarkData":
        """A config of a published zoo, at one checkpoint or ``all``. With ``entry_range`` every split is doubled.

        Without a ``config`` it is the one that ``zoo.open`` would choose, without a ``checkpoint`` the one nearest to
        75 % of the epochs, as in the paper, without a ``label`` the usual one of such transformers. ``where`` chooses
        rows of every split by their metadata. A ``fold`` is its number and how many there are: then the rows of a
        ``split``, or of several, are divided anew, for a cross-validation (``Checkpoints.in_folds``), and all folds
        have the same fingerprint.
        """
        (config,) = choose_configs(name, None if config is None else (config,))
        folder = find_folder(name, config)
        published = PublishedZoo.read(folder)
        details = published.config(config)
        checkpoint = chosen_checkpoint(details, config, checkpoint)
        labels = (*labels_of(details.spec), GAP)
        label = usual_label(details.spec)[0] if label is None else label
        if label not in labels:
            raise ValueError(f"unknown label {label!r}: {config} has {', '.join(labels)}")
        if label_checkpoint not in (None, *details.checkpoints):
            has = ", ".join(details.checkpoints)
            raise ValueError(f"unknown label checkpoint {label_checkpoint!r}: {config} has {has}")
        edition = edition_of(folder)

        def read(split: str) -> Checkpoints:
            reader = open_zoo(folder, config, split)
            rows = Checkpoints.read(reader, checkpoint, torch.device(device), where, label, label_checkpoint)
            if edition_of(folder) != edition:
                raise ValueError(f"{folder} was published again while the benchmark ran: run the benchmark again")
            return rows

        def doubled(rows: Checkpoints, split: str) -> Checkpoints:
            """The rows, followed by a moved copy of each where entries have a range (tab:augmented_agnews)."""
            if entry_range is None:
                return rows
            # a different seed for each split, so that no two checkpoints are moved by the same element
            moved = rows.moved(_AUGMENTATION_SEED + 10 * SPLITS.index(split), entry_range)
            twice = rows.take(np.tile(np.arange(len(rows)), 2))
            return replace(twice, weights=torch.cat([rows.weights, moved.weights]))

        if fold is None:
            require_rows(config, details.rows)
            train, validation, open_test = read("train"), read("validation"), partial(read, "test")
            fingerprint = _combined(train.digest(), validation.digest())
        else:
            rows = read(split)
            (train, validation, test), fingerprint = rows.in_folds(*fold), _combined(rows.digest())
            open_test = partial(test.take, np.arange(len(test)))
        return cls(
            doubled(train, "train"),
            doubled(validation, "validation"),
            lambda: doubled(open_test(), "test"),
            config=config,
            checkpoint=checkpoint,
            label_checkpoint=label_checkpoint,
            left_out=_lacking_one(open_zoo(folder, config, split), where, checkpoint, label_checkpoint)
            if label_checkpoint
            else 0,
            fingerprint=fingerprint,
            test_files=_combined(*(published.manifest.files[file].sha256 for file in published.files(config, "test"))),
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
        added = {
            Elsewhere(other.config, other.checkpoint, other.fingerprint, known is not None): replace(
                other, open_test=lambda known=known: other.open_test().apart_from(self.train.runs, known)
            )
            for known in (self.train.hyperparameters, None)
        }
        self.elsewhere |= added
        return list(added)

    def rows_at_least(self, threshold: float) -> tuple[int, int]:
        """The number of rows of train and of validation whose accuracy reaches the threshold."""
        return len(self.train.at_least(threshold)), len(self.validation.at_least(threshold))

    def with_train_rows(self, count: int) -> "BenchmarkData":
        """The same data with the first ``count`` rows of the train split, in an order that the runs' hashes give.

        So a smaller number of rows lies in a larger one. Validation and test stay whole, and so does the fingerprint: a
        trial has the number of rows besides. The hash is not the one that divides runs into splits, so a few rows are
        like the whole split.
        """
        hashes = [hashlib.sha256(f"subset {run}".encode()).digest() for run in self.train.runs]
        first = sorted(range(len(hashes)), key=hashes.__getitem__)[:count]
        return replace(self, train=self.train.take(np.sort(first)))

    def judge(self, fitted: Fitted, threshold: float, name: str) -> Outcome:
        """Tests a fitted model on the test rows at or above a threshold. Nothing else opens them.

        One that predicts NaN or infinity, or what is infinite in single precision, is a ``NotFinite`` with its name.
        """
        rows = self._test.at_least(threshold)
        test, moved = self._test.take(rows), self._moved_test.take(rows)
        if not len(rows):
            predicted, change = np.empty((2, 0), np.float32), 0.0
        else:
            both = np.stack([fitted.predict(test), fitted.predict(moved)])
            with np.errstate(over="ignore"):
                predicted = both.astype(np.float32)
            if wrong := int((~np.isfinite(predicted)).any(axis=0).sum()):
                raise NotFinite(f"{name} predicts NaN or infinity for {wrong:,} of {len(rows):,} test rows")
            change = float(np.abs(both[1].astype(np.float64) - both[0]).mean())
        return Outcome(
            predicted=predicted[0],
            truth=test.truth(),
            runs=np.unique(test.runs, return_inverse=True)[1].astype(np.int32),
            notes={TEST_FILES: self.test_files, "mean_change": change},
            configurations=test.configurations() if self.repeats else None,
        )

    @cached_property
    def _test(self) -> Checkpoints:
        return self.open_test()

    @cached_property
    def _moved_test(self) -> Checkpoints:
        return self._test.moved(_INVARIANCE_SEED)


def require_rows(config: str, rows: Mapping[str, int], least: int = 1) -> None:
    """A split that has fewer rows is a ValueError: a small zoo may have no run in one. ``rows`` counts each split's."""
    for split, count in rows.items():
        if count < least:
            found = {0: "no rows", 1: "1 row"}.get(count, f"{count:,} rows")
            raise ValueError(
                f"the {split} split of {config} has {found}, at least {least} needed: add runs to the zoo, "
                "or publish it with other --splits"
            )


def chosen_checkpoint(details: ConfigDetails, config: str, checkpoint: str | None) -> str:
    """A checkpoint that the config has, or ``all``; without a choice the one nearest to 75 % of the epochs."""
    checkpoint = checkpoint or details.usual_checkpoint
    if checkpoint not in (*details.checkpoints, "all"):
        raise ValueError(f"unknown checkpoint {checkpoint!r}: {config} has {', '.join(details.checkpoints)}, or all")
    return checkpoint


def _lacking_one(reader: ZooReader, where: Selection | None, *checkpoints: str) -> int:
    """How many runs of the chosen rows have one of two checkpoints and not the other."""
    runs, labels = reader.metadata["run_id"], reader.metadata["checkpoint"]
    chosen = set(runs.iloc[reader.rows(where)])
    first, second = (chosen.intersection(runs[(labels == name) | (name == "all")]) for name in checkpoints)
    return len(first ^ second)


def count_test_examples(details: ConfigDetails) -> int:
    """How many examples each test accuracy was measured on; of language models, characters."""
    rows = details.data.test_rows if details.data else KNOWN[details.task].test_rows
    return rows * details.spec.tokens if details.spec.causal else rows


def _combined(*digests: str) -> str:
    """One short digest of several."""
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:_FINGERPRINT_DIGITS]
