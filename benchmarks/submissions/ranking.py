"""All submissions in order, one ranking for each set of test rows: ``leaderboard.json``, from which tables and pages
are made.

A zoo may be too large to lie here. A score is then kept for as long as the file of predictions and the hash of the test
rows are the ones it was made from; everything a card says is read anew.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.submissions.card import CARD_FILE, PredictionSet
from benchmarks.submissions.held_out import HeldOutRows
from benchmarks.submissions.scoring import Score
from benchmarks.submissions.submission import ForeignRows, Submission
from zoo.storage.atomic import write_atomically
from zoo.storage.untrusted import read_json

RANKING_FILE = "leaderboard.json"
SCORE_KEYS = ("thresholds", "within", "r2")
DIGITS = 6


def read_ranking(folder: Path) -> list[dict[str, Any]]:
    """The rankings in a folder of results; none where there is no file."""
    path = folder / RANKING_FILE
    return read_json(path)["zoos"] if path.is_file() else []


def write_ranking(folder: Path, zoos: Sequence[dict[str, Any]]) -> Path:
    path = folder / RANKING_FILE
    write_atomically(path, (json.dumps({"zoos": list(zoos)}, indent=1, ensure_ascii=False) + "\n").encode())
    return path


def submissions_in(folder: Path) -> list[Submission]:
    """Every submission in the leaderboard's folder, by name; a hidden folder is one that is being written."""
    return [Submission.read(path.parent) for path in sorted(folder.glob(f"[!.]*/{CARD_FILE}"))]


def rank(submissions: Sequence[Submission], zoos: Sequence[str], known: Sequence[dict[str, Any]]) -> list[dict]:
    """One ranking per set of test rows, the best τ first; scores of ``known`` stand in where no zoo has the rows."""
    stored = {
        (entry["submission"], entry["predictions_sha256"], ranking["test_rows"]): (ranking, entry)
        for ranking in known
        for entry in ranking["entries"]
    }
    rankings: dict[tuple, dict[str, Any]] = {}
    read: dict[tuple, HeldOutRows] = {}
    for submission in submissions:
        for predictions in submission.card.predictions:
            key = (submission.name, submission.sha256(predictions), predictions.test_rows)
            try:
                if predictions.identity not in read:
                    read[predictions.identity] = submission.zoo_among(zoos, predictions)[1]
                rows = read[predictions.identity]
                count, scored = len(rows.keys), plain_score(submission.score(predictions, rows))
            except ForeignRows:
                if key not in stored:
                    raise
                ranking, entry = stored[key]
                count, scored = ranking["rows"], {name: entry[name] for name in SCORE_KEYS}
            heading = {name: getattr(predictions, name) for name in ("zoo", "config", "checkpoint", "test_rows")}
            ranking = rankings.setdefault(predictions.identity, heading | {"rows": count, "entries": []})
            ranking["entries"].append(plain_entry(submission, predictions, key[1]) | scored)
    for ranking in rankings.values():
        ranking["entries"].sort(key=lambda entry: (-(tau_of(entry) or 0.0), entry["submission"]))
    return [rankings[key] for key in sorted(rankings)]


def tau_of(entry: dict[str, Any]) -> float | None:
    return entry["thresholds"][0]["value"]


def plain_entry(submission: Submission, predictions: PredictionSet, sha256: str) -> dict[str, Any]:
    """What the card says, as JSON-ready data."""
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
        "predictions_sha256": sha256,
    }


def plain_score(score: Score) -> dict[str, Any]:
    """A score as JSON-ready data, rounded to six digits."""

    def rounded(values: dict[str, Any]) -> dict[str, Any]:
        return {name: round(value, DIGITS) if isinstance(value, float) else value for name, value in values.items()}

    return rounded({"r2": score.r2}) | {
        "thresholds": [{"threshold": at} | rounded(asdict(tau)) for at, tau in score.thresholds.items()],
        "within": None if score.within is None else rounded(asdict(score.within)),
    }
