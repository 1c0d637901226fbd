"""Submissions on disk: folders with a card and the CSV files of predictions that it names, and nothing else.

CONTRIBUTING.md shows a card, ``card.toml``. Nothing in it is imported, followed or fetched. A CSV file has one line for
each test row, sorted, so that a diff shows which predictions changed:

    run_id,checkpoint,predicted
    0b7c3f1d5e9a2468,epoch_50,0.9182

``leaderboard.json`` has one ranking for each set of test rows. It is never read: every score is computed from the
predictions each time, and predictions of rows that no zoo at hand has are not scored.
"""

import re
import unicodedata
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
from zoo.storage.untrusted import read_bounded
from zoo.tasks.toml_text import parse_toml, toml_text

_URL = re.compile(r"https://[\w.-]+(/[\w.~/%#?=&:+-]*)?", re.ASCII)
_CARD_FILE = "card.toml"
_CARD_BYTES = 1 << 16
_LONGEST, _LONGEST_LINE = 200, 80
_LINE_RULE = f"one line of at most {_LONGEST_LINE} printable characters"
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Characters that are printable by their category, and drawn as nothing."""
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
_STATED = ("name", "authors", "paper", "code", "parameters", "reads", "seed", "change_under_group")
"""The keys of a card that are in a ranking."""
_SAME = 1e-4
"""Predictions that differ by less are the same, but for rounding."""


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
    predictions: Annotated[tuple[PredictionSet, ...], Meta(min_length=1)]
    paper: Text | None = None
    code: Text | None = None

    def __post_init__(self) -> None:
        _check_text("name", self.name, _is_line, _LINE_RULE)
        for author in self.authors:
            _check_text("authors", author, _is_line, _LINE_RULE)
        _check_text("paper", self.paper, _URL.fullmatch, _URL_RULE)
        url_or_file = re.compile(f"{_URL.pattern}|{_PATH.pattern}", re.ASCII)
        _check_text("code", self.code, url_or_file.fullmatch, f"{_URL_RULE} or a file here")
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
        return checked(parse_toml(data, where), cls, f"{where}: ")

    def text(self) -> str:
        """The card as TOML, without the keys that are not known."""
        card, *sets = [
            {key: value for key, value in asdict(each).items() if value is not None}
            for each in (self, *self.predictions)
        ]
        top = {key: card[key] for key in ("name", "authors", "paper", "code", "reads") if key in card}
        return toml_text(top | {"authors": list(self.authors), "reads": list(self.reads), "predictions": sets})


def _check_text(key: str, text: str | None, accept: Callable[[str], object], rule: str) -> None:
    if text is not None and not (len(text) <= _LONGEST and accept(text)):
        raise ValueError(f"{key} must be {rule}, got {text[:_LONGEST]!r}")


def _is_line(text: str) -> bool:
    """Text that fits a cell of a table: no blank, bidirectional or zero-width characters, no piles of accents."""
    marks = "".join("^" if unicodedata.category(letter) in ("Mn", "Me") else " " for letter in text)
    seen = text.isprintable() and not _UNSEEN.search(text) and "^^^" not in marks
    return seen and bool(text.strip()) and len(text) <= _LONGEST_LINE


class NotScored(ValueError):
    """Predictions that cannot be read, or for test rows that no zoo at hand has."""


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
        _check_name(folder)
        card = Card.read(folder)
        named = {_CARD_FILE, *(each.file for each in card.predictions)}
        if surplus := sorted(path.name for path in folder.iterdir() if path.name not in named):
            raise ValueError(f"{folder} holds {surplus[0]!r}, which {_CARD_FILE} does not name")
        return cls(folder, card)

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    def read_predictions(self, predictions: PredictionSet) -> dict[tuple[str, str], float]:
        """The predictions of a file by run and checkpoint."""
        try:
            return _read_csv(self.folder / predictions.file)
        except (OSError, ValueError) as error:
            raise NotScored(str(error)) from error

    def predicted(self, predictions: PredictionSet, rows: HeldOutRows) -> Float[np.ndarray, " n"]:
        """The predictions of these test rows, in their order; every row must be there and no other."""
        path, found = self.folder / predictions.file, self.read_predictions(predictions)
        for keys, problem in (
            (found.keys() - set(rows.keys), "is not a test row"),
            (set(rows.keys) - found.keys(), "is missing"),
        ):
            if keys:
                run, checkpoint = min(keys)
                number = f"as are {len(keys):,} in all; there are {len(rows.keys):,} test rows"
                raise NotScored(f"{path}: {checkpoint} of run {run} {problem}, {number}")
        return np.array([found[key] for key in rows.keys], dtype=np.float64)

    def score(self, predictions: PredictionSet, rows: HeldOutRows) -> Score:
        """The score of one set; predictions that look like the test labels are a ValueError."""
        predicted = self.predicted(predictions, rows)
        if why := leaked_labels(predicted, rows):
            raise ValueError(f"{self.folder / predictions.file} is suspicious: {why}")
        return score(predicted, rows)

    def find_rows(self, zoos: Sequence[str], predictions: PredictionSet) -> tuple[str, HeldOutRows]:
        """The first of the zoos that has the test rows of a set, and these rows; a ``NotScored`` if none does."""
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
        raise NotScored(
            f"{self.folder / _CARD_FILE}: no zoo here has the test rows {predictions.test_rows[:12]}… of "
            f"{predictions.config}, {predictions.checkpoint} ({'; '.join(others)}): name theirs with --zoo"
        )


def _check_name(folder: Path) -> None:
    """Refuses a folder whose name would not be the same on every system and in every link."""
    if not _NAME.fullmatch(folder.resolve().name):
        raise ValueError(f"{folder}: its name must be lower-case letters, digits, - and _, 48 at most")


def submissions_in(folder: Path) -> list[Submission]:
    """Every submission in the folder, by name; a hidden folder is one that is being written."""
    return [Submission.read(path.parent) for path in sorted(folder.glob(f"[!.]*/{_CARD_FILE}"))]


def refuse_copies(submissions: Sequence[Submission]) -> None:
    """Refuses two submissions with the same name, or most of whose predictions of the same rows are the same."""
    names: dict[str, Path] = {}
    files: dict[tuple, list[tuple[Path, dict]]] = {}
    for submission in submissions:
        name = "".join(unicodedata.normalize("NFKC", submission.card.name).casefold().split())
        if (other := names.setdefault(name, submission.folder)) != submission.folder:
            raise ValueError(f"{submission.folder} has the name of {other}, {submission.card.name!r}: choose another")
        for part in submission.card.predictions:
            path, earlier = submission.folder / part.file, files.setdefault(part.identity, [])
            try:
                found = submission.read_predictions(part)
            except NotScored:
                continue
            for other, known in earlier:
                same = sum(abs(value - known[key]) < _SAME for key, value in found.items() if key in known)
                if same > len(found) / 2:
                    raise ValueError(f"{path} has {same:,} of its {len(found):,} predictions in common with {other}")
            earlier.append((path, found))


def card_with(folder: Path, card: Card, predictions: PredictionSet) -> Card:
    """The card with this set, checked; a submission that is there already keeps its predictions of other rows.

    A submission of other authors is not replaced.
    """
    _check_name(folder)
    new = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    before = None if new else Submission.read(folder).card
    if before and set(before.authors) != set(card.authors):
        raise ValueError(f"{folder} is a submission of {', '.join(before.authors)}: choose another folder")
    others = (each for each in (before.predictions if before else ()) if each.file != predictions.file)
    sets = tuple(sorted((*others, predictions), key=lambda each: each.file))
    return Card.parse(replace(card, predictions=sets).text().encode(), str(folder))


def write_submission(
    folder: Path, card: Card, predictions: PredictionSet, rows: HeldOutRows, predicted: Float[np.ndarray, " n"]
) -> None:
    """Writes predictions and card, to a new folder or over an earlier submission, all at once."""
    written = card_with(folder, card, predictions)
    values = sorted(zip(rows.keys, predicted.tolist(), strict=True))  # of which nine digits give back every float32
    lines = [_HEADER, *(f"{run},{checkpoint},{value:.9g}" for (run, checkpoint), value in values)]
    with replacing_folder(folder.resolve(), _files_of, wait=True) as new:
        for each in written.predictions:
            text = None if each.file != predictions.file else "\n".join([*lines, ""])
            write_atomically(new / each.file, text.encode() if text else read_bounded(folder / each.file, _CSV_BYTES))
        write_atomically(new / _CARD_FILE, written.text().encode())


def _files_of(folder: Path) -> list[str] | None:
    """The files of a submission, its card last; None for a folder without a card."""
    if not (folder / _CARD_FILE).exists():
        return None
    return [*(each.file for each in Card.read(folder).predictions), _CARD_FILE]


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


def rank(submissions: Sequence[Submission], zoos: Sequence[str]) -> list[dict[str, Any]]:
    """One ranking per set of test rows, the best τ first, and last what cannot be scored, without any ``thresholds``.

    Nothing but predictions makes a score, and the zoo and the number of rows in a heading are those of the rows read.
    """
    refuse_copies(submissions)
    rankings: dict[tuple, dict[str, Any]] = {}
    read: dict[tuple, tuple[str, HeldOutRows]] = {}
    for submission in submissions:
        for part in submission.card.predictions:
            try:
                if part.identity not in read:
                    read[part.identity] = submission.find_rows(zoos, part)
                scored = submission.score(part, read[part.identity][1])
            except NotScored:
                scored = {"error": None, "r2": None, "thresholds": [], "within": None}
            zoo, rows = read.get(part.identity, (None, None))
            heading = {"zoo": zoo and Path(zoo).name, "config": part.config, "checkpoint": part.checkpoint}
            heading |= {"test_rows": part.test_rows, "rows": rows and len(rows.keys), "entries": []}
            known = asdict(part) | asdict(submission.card)
            stated = {"submission": submission.name} | {key: known[key] for key in _STATED}
            stated |= {key: list(known[key]) for key in ("authors", "reads")}
            rankings.setdefault(part.identity, heading)["entries"].append(stated | scored)

    def place(entry: dict[str, Any]) -> tuple[bool, float, str]:
        best = [-(each["value"] or 0.0) for each in entry["thresholds"][:1]]
        return not best, sum(best), entry["submission"]

    for ranking in rankings.values():
        ranking["entries"].sort(key=place)
    return [rankings[key] for key in sorted(rankings, key=lambda key: (not rankings[key]["rows"], key))]
