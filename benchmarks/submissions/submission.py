"""A submission on disk: a folder with a card and the files of predictions that it names, and nothing else."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float

from benchmarks.submissions.card import CARD_FILE, NAME, Card, PredictionSet
from benchmarks.submissions.held_out import HeldOutRows
from benchmarks.submissions.predictions import MAX_BYTES, in_order, predictions_text, read_predictions
from benchmarks.submissions.scoring import Score, score
from benchmarks.submissions.suspicion import suspicion
from zoo.format.published import PublishedZoo
from zoo.reading.locate import find_folder
from zoo.storage.atomic import write_atomically
from zoo.storage.swap import replacing_folder
from zoo.storage.untrusted import read_bounded


class ForeignRows(ValueError):
    """Predictions for test rows that no zoo at hand has."""


@dataclass(frozen=True)
class Submission:
    """A folder whose card was read; its predictions were not."""

    folder: Path
    card: Card

    @classmethod
    def read(cls, folder: Path) -> "Submission":
        """Refuses files that the card does not name: what is merged should be what was looked at."""
        if folder.is_symlink() or not folder.is_dir():
            raise ValueError(f"{folder} is not a folder: a submission is one, with {CARD_FILE} and its predictions")
        if not NAME.fullmatch(folder.resolve().name):
            raise ValueError(f"{folder}: its name must be lower-case letters, digits, - and _, 48 at most")
        card = Card.read(folder)
        named = {CARD_FILE, *(each.file for each in card.predictions)}
        if surplus := sorted(path.name for path in folder.iterdir() if path.name not in named):
            raise ValueError(f"{folder} holds {surplus[0]!r}, which {CARD_FILE} does not name")
        return cls(folder, card)

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    def sha256(self, predictions: PredictionSet) -> str:
        """The hash of a file of predictions."""
        return hashlib.sha256(read_bounded(self.folder / predictions.file, MAX_BYTES)).hexdigest()

    def predicted(self, predictions: PredictionSet, rows: HeldOutRows) -> Float[np.ndarray, " n"]:
        """The predictions of these rows, in their order, each checked."""
        path = self.folder / predictions.file
        return in_order(read_predictions(path), rows.keys, str(path))

    def score(self, predictions: PredictionSet, rows: HeldOutRows) -> Score:
        """The score of one set; predictions that look like the test labels are a ValueError."""
        predicted = self.predicted(predictions, rows)
        if why := suspicion(predicted, rows):
            raise ValueError(f"{self.folder / predictions.file} is suspicious: {why}")
        return score(predicted, rows)

    def zoo_among(self, zoos: Sequence[str], predictions: PredictionSet) -> tuple[str, HeldOutRows]:
        """The zoo that has the test rows that a set is about, and these rows; a ``ForeignRows`` if none does."""
        there = []
        for zoo in zoos:
            folder = find_folder(zoo, predictions.config)
            details = PublishedZoo.read(folder).configs.get(predictions.config)
            if details is None or predictions.checkpoint not in (*details.checkpoints, "all"):
                there.append(f"{zoo} has no {predictions.config} at checkpoint {predictions.checkpoint}")
                continue
            rows = HeldOutRows.read(folder, predictions.config, predictions.checkpoint)
            if rows.sha256 == predictions.test_rows:
                return zoo, rows
            there.append(f"those of {zoo} are {rows.sha256}")
        raise ForeignRows(
            f"{self.folder / CARD_FILE}: no zoo here has the test rows {predictions.test_rows[:12]}… of "
            f"{predictions.config}, {predictions.checkpoint} ({'; '.join(there)}): name theirs with --zoo"
        )


def card_with(folder: Path, card: Card, predictions: PredictionSet) -> Card:
    """The card with this set, checked; a submission that is there already keeps its predictions of other rows."""
    new = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    before = () if new else Submission.read(folder).card.predictions
    others = (each for each in before if each.file != predictions.file)
    sets = tuple(sorted((*others, predictions), key=lambda each: each.file))
    return Card.parse(replace(card, predictions=sets).text().encode(), str(folder))


def write_submission(
    folder: Path, card: Card, predictions: PredictionSet, rows: HeldOutRows, predicted: Float[np.ndarray, " n"]
) -> None:
    """Writes predictions and card, to a new folder or in the place of an earlier submission, all at once."""
    written = card_with(folder, card, predictions)
    with replacing_folder(folder.resolve(), files_of, wait=True) as new:
        for each in written.predictions:
            if each.file == predictions.file:
                data = predictions_text(rows.keys, predicted).encode()
            else:
                data = read_bounded(folder / each.file, MAX_BYTES)
            write_atomically(new / each.file, data)
        write_atomically(new / CARD_FILE, written.text().encode())


def files_of(folder: Path) -> list[str] | None:
    """The files of a submission, its card last; None for a folder without a card."""
    if not (folder / CARD_FILE).exists():
        return None
    return [*(each.file for each in Card.read(folder).predictions), CARD_FILE]
