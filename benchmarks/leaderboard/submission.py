"""Submissions on disk: folders with a card and the CSV files of predictions that it names, and nothing else.

The card, ``card.toml``, names the authors, what the predictor reads, and the test rows of each file. CONTRIBUTING.md
shows one. Nothing in a card is imported, followed or fetched. A CSV file has one line for each test row, sorted, so
that a diff shows which predictions changed:

    run_id,checkpoint,predicted
    0b7c3f1d5e9a2468,epoch_50,0.9182

``leaderboard.json`` has all submissions in order, one ranking for each set of test rows. Where no zoo at hand has the
test rows, a score is kept for as long as the file of predictions and the hash of the rows are the ones it was made
from; everything else is read from the card again.
"""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float
from msgspec import Meta

from benchmarks.leaderboard.scoring import HeldOutRows, Score, leaked_labels, score
from benchmarks.options import Reads
from zoo.checked import CountOrZero, NotNegative, Sha256, Text, checked
from zoo.format.published import PublishedZoo
from zoo.reading.locate import find_folder
from zoo.storage.atomic import write_atomically
from zoo.storage.swap import replacing_folder
from zoo.storage.untrusted import read_bounded, read_json
from zoo.tasks.toml_text import parse_toml, toml_text

_URL = re.compile(r"https://[\w.-]+(/[\w.~/%#?=&:+-]*)?", re.ASCII)
_CARD_FILE = "card.toml"
_CARD_BYTES = 1 << 16
_LONGEST = 200
_LINE_RULE = f"one line of at most {_LONGEST} printable characters"
_URL_RULE = "an address that begins with https://"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}")
_FILE = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}\.csv")
_PATH = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)*", re.ASCII)
_CSV_BYTES = 16 << 20  # the test rows of the paper's whole grid take half a megabyte
_HEADER = "run_id,checkpoint,predicted"
_LINE = re.compile(r"([0-9a-f]{16}),([a-z0-9_]{1,48}),([^,\s]{1,40})", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_LEAST, _MOST = -0.5, 1.5
"""A prediction is an accuracy; that of a linear model may lie a little outside 0 and 1."""
_RANKING_FILE = "leaderboard.json"


@dataclass(frozen=True)
class PredictionSet:
    """One file of predictions, and the test rows it is about; ``test_rows`` is their hash."""

    zoo: Text
    config: Text
    checkpoint: Text
    test_rows: Sha256
    file: Text
    parameters: Annotated[int, Meta(ge=0, le=10**15)] | None = None
    seed: CountOrZero | None = None
    change_under_group: NotNegative | None = None

    def __post_init__(self) -> None:
        _check_text("zoo", self.zoo, _is_line, _LINE_RULE)
        _check_text("config", self.config, _NAME.fullmatch, "the name of a config")
        _check_text("checkpoint", self.checkpoint, _NAME.fullmatch, "the name of a checkpoint")
        _check_text("file", self.file, _FILE.fullmatch, "a file beside the card, such as mnist.csv")

    @property
    def identity(self) -> tuple[str, str, str]:
        """The test rows, which must differ between two sets of one card."""
        return self.config, self.checkpoint, self.test_rows


@dataclass(frozen=True)
class Card:
    """A card whose every value was checked."""

    name: Text
    authors: Annotated[tuple[Text, ...], Meta(min_length=1, max_length=50)]
    reads: Annotated[tuple[Reads, ...], Meta(min_length=1)]
    predictions: tuple[PredictionSet, ...]
    paper: Text | None = None
    code: Text | None = None

    def __post_init__(self) -> None:
        _check_text("name", self.name, _is_line, _LINE_RULE)
        for author in self.authors:
            _check_text("authors", author, _is_line, _LINE_RULE)
        _check_text("paper", self.paper, _URL.fullmatch, _URL_RULE)
        _check_text("code", self.code, _is_url_or_file, f"{_URL_RULE} or a file here")
        for key, values in (
            ("author", self.authors),
            ("kind of input", self.reads),
            ("file", [each.file for each in self.predictions]),
            ("test_rows", [each.identity for each in self.predictions]),
        ):
            if len(set(values)) < len(values):
                raise ValueError(f"the card names the same {key} twice")

    @classmethod
    def read(cls, folder: Path) -> "Card":
        path = folder / _CARD_FILE
        if path.is_symlink() or not path.is_file():
            raise ValueError(f"{path} is missing: a submission is a folder with {_CARD_FILE} and its predictions")
        return cls.parse(read_bounded(path, _CARD_BYTES), str(path))

    @classmethod
    def parse(cls, data: bytes, where: str) -> "Card":
        card = checked(parse_toml(data, where), cls, f"{where}: ")
        if not card.predictions:
            raise ValueError(f"{where}: predictions is empty: name at least one file")
        return card

    def text(self) -> str:
        """The card as TOML, without the keys that are not known."""

        def known(values: dict[str, Any]) -> dict[str, Any]:
            return {key: value for key, value in values.items() if value is not None}

        top = {"name": self.name, "authors": list(self.authors), "paper": self.paper, "code": self.code}
        sets = [known(asdict(each)) for each in self.predictions]
        return toml_text(known(top) | {"reads": list(self.reads), "predictions": sets})


def _check_text(key: str, text: str | None, accept: Callable[[str], object], rule: str) -> None:
    if text is not None and not (len(text) <= _LONGEST and accept(text)):
        raise ValueError(f"{key} must be {rule}, got {text[:_LONGEST]!r}")


def _is_line(text: str) -> bool:
    """Text that fits a cell of a table."""
    return bool(text.strip()) and text.isprintable()


def _is_url_or_file(text: str) -> bool:
    return bool(_URL.fullmatch(text) or _PATH.fullmatch(text))


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
            raise ValueError(f"{folder} is not a folder: a submission is one, with {_CARD_FILE} and its predictions")
        check_name(folder)
        card = Card.read(folder)
        named = {_CARD_FILE, *(each.file for each in card.predictions)}
        if surplus := sorted(path.name for path in folder.iterdir() if path.name not in named):
            raise ValueError(f"{folder} holds {surplus[0]!r}, which {_CARD_FILE} does not name")
        return cls(folder, card)

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    def sha256(self, predictions: PredictionSet) -> str:
        """The hash of a file of predictions."""
        return hashlib.sha256(read_bounded(self.folder / predictions.file, _CSV_BYTES)).hexdigest()

    def predicted(self, predictions: PredictionSet, rows: HeldOutRows) -> Float[np.ndarray, " n"]:
        """The predictions of these test rows, in their order; every row must be there and no other."""
        path = self.folder / predictions.file
        found = _read_csv(path)
        for keys, problem in (
            (found.keys() - set(rows.keys), "is not a test row"),
            (set(rows.keys) - found.keys(), "is missing"),
        ):
            if keys:
                run, checkpoint = min(keys)
                number = f"as are {len(keys):,} in all; there are {len(rows.keys):,} test rows"
                raise ValueError(f"{path}: {checkpoint} of run {run} {problem}, {number}")
        return np.array([found[key] for key in rows.keys], dtype=np.float64)

    def score(self, predictions: PredictionSet, rows: HeldOutRows) -> Score:
        """The score of one set; predictions that look like the test labels are a ValueError."""
        predicted = self.predicted(predictions, rows)
        if why := leaked_labels(predicted, rows):
            raise ValueError(f"{self.folder / predictions.file} is suspicious: {why}")
        return score(predicted, rows)

    def find_rows(self, zoos: Sequence[str], predictions: PredictionSet) -> tuple[str, HeldOutRows]:
        """The first of the zoos that has the test rows of a set, and these rows; a ``ForeignRows`` if none does."""
        others = []
        for zoo in zoos:
            folder = find_folder(zoo, predictions.config)
            details = PublishedZoo.read(folder).configs.get(predictions.config)
            if details is None or predictions.checkpoint not in (*details.checkpoints, "all"):
                others.append(f"{zoo} has no {predictions.config} at checkpoint {predictions.checkpoint}")
                continue
            rows = HeldOutRows.read(folder, predictions.config, predictions.checkpoint)
            if rows.sha256 == predictions.test_rows:
                return zoo, rows
            others.append(f"those of {zoo} are {rows.sha256}")
        raise ForeignRows(
            f"{self.folder / _CARD_FILE}: no zoo here has the test rows {predictions.test_rows[:12]}… of "
            f"{predictions.config}, {predictions.checkpoint} ({'; '.join(others)}): name theirs with --zoo"
        )


def check_name(folder: Path) -> None:
    """Refuses a folder whose name would not be the same on every system and in every link."""
    if not _NAME.fullmatch(folder.resolve().name):
        raise ValueError(f"{folder}: its name must be lower-case letters, digits, - and _, 48 at most")


def submissions_in(folder: Path) -> list[Submission]:
    """Every submission in the folder, by name; a hidden folder is one that is being written."""
    return [Submission.read(path.parent) for path in sorted(folder.glob(f"[!.]*/{_CARD_FILE}"))]


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
    """Writes predictions and card, to a new folder or over an earlier submission, all at once."""
    written = card_with(folder, card, predictions)
    with replacing_folder(folder.resolve(), _files_of, wait=True) as new:
        for each in written.predictions:
            if each.file == predictions.file:
                data = _csv_text(rows, predicted).encode()
            else:
                data = read_bounded(folder / each.file, _CSV_BYTES)
            write_atomically(new / each.file, data)
        write_atomically(new / _CARD_FILE, written.text().encode())


def _files_of(folder: Path) -> list[str] | None:
    """The files of a submission, its card last; None for a folder without a card."""
    if not (folder / _CARD_FILE).exists():
        return None
    return [*(each.file for each in Card.read(folder).predictions), _CARD_FILE]


def _csv_text(rows: HeldOutRows, predicted: Float[np.ndarray, " n"]) -> str:
    """A file of predictions: nine digits give back every float32."""
    lines = sorted(zip(rows.keys, predicted.tolist(), strict=True))
    return "\n".join([_HEADER, *(f"{run},{checkpoint},{value:.9g}" for (run, checkpoint), value in lines)]) + "\n"


def _read_csv(path: Path) -> dict[tuple[str, str], float]:
    """The predictions of a file by run and checkpoint; a fault in a line is a ValueError that names the line."""
    if path.is_symlink() or not path.is_file():
        raise ValueError(f"{path} is missing, or is not a file, though the card names it")
    try:
        lines = read_bounded(path, _CSV_BYTES).decode("ascii").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a CSV file of run ids and numbers: {error}") from error
    if not lines or lines[0] != _HEADER:
        raise ValueError(f"{path}, line 1: must be {_HEADER}")
    predictions: dict[tuple[str, str], float] = {}
    for number, line in enumerate(lines[1:], start=2):
        where = f"{path}, line {number}"
        if not (parts := _LINE.fullmatch(line)):
            raise ValueError(f"{where}: must be a run id, a checkpoint and a number with commas between, got {line!r}")
        run, checkpoint, text = parts.groups()
        if (run, checkpoint) in predictions:
            raise ValueError(f"{where}: {checkpoint} of run {run} is there twice")
        if not (_NUMBER.fullmatch(text) and _LEAST <= float(text) <= _MOST):
            allowed = f"a share from 0 to 1; {_LEAST:g} to {_MOST:g} is read"
            raise ValueError(f"{where}: a prediction is an accuracy, {allowed}, got {text}")
        predictions[run, checkpoint] = float(text)
    return predictions


def read_ranking(folder: Path) -> list[dict[str, Any]]:
    """The rankings in a folder of results; none where there is no file."""
    path = folder / _RANKING_FILE
    return read_json(path)["zoos"] if path.is_file() else []


def write_ranking(folder: Path, zoos: Sequence[dict[str, Any]]) -> Path:
    path = folder / _RANKING_FILE
    write_atomically(path, (json.dumps({"zoos": list(zoos)}, indent=1, ensure_ascii=False) + "\n").encode())
    return path


def rank(submissions: Sequence[Submission], zoos: Sequence[str], known: Sequence[dict[str, Any]]) -> list[dict]:
    """One ranking per set of test rows, the best τ first; scores of ``known`` stand in where no zoo has the rows."""
    stored = {
        (entry["submission"], entry["predictions_sha256"], ranking["test_rows"]): (ranking["rows"], entry)
        for ranking in known
        for entry in ranking["entries"]
    }
    rankings: dict[tuple, dict[str, Any]] = {}
    read: dict[tuple, HeldOutRows] = {}
    for submission in submissions:
        for predictions in submission.card.predictions:
            entry = _unscored(submission, predictions)
            try:
                if predictions.identity not in read:
                    read[predictions.identity] = submission.find_rows(zoos, predictions)[1]
                rows = read[predictions.identity]
                count, scored = len(rows.keys), submission.score(predictions, rows)
            except ForeignRows:
                key = (submission.name, entry["predictions_sha256"], predictions.test_rows)
                if key not in stored:
                    raise
                count, scored = stored[key]
            heading = {name: getattr(predictions, name) for name in ("zoo", "config", "checkpoint", "test_rows")}
            ranking = rankings.setdefault(predictions.identity, heading | {"rows": count, "entries": []})
            ranking["entries"].append(entry | {name: scored[name] for name in ("r2", "thresholds", "within")})
    for ranking in rankings.values():
        ranking["entries"].sort(key=lambda entry: (-(entry["thresholds"][0]["value"] or 0.0), entry["submission"]))
    return [rankings[key] for key in sorted(rankings)]


def _unscored(submission: Submission, predictions: PredictionSet) -> dict[str, Any]:
    """An entry of a ranking before its score: the card, and the hash of the predictions."""
    card = submission.card
    return {
        "submission": submission.name,
        "name": card.name,
        "authors": list(card.authors),
        "paper": card.paper,
        "code": card.code,
        "parameters": predictions.parameters,
        "reads": list(card.reads),
        "seed": predictions.seed,
        "change_under_group": predictions.change_under_group,
        "predictions_sha256": submission.sha256(predictions),
    }
