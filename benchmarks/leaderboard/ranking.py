"""All submissions in order, one ranking for each set of test rows: ``leaderboard.json``.

A zoo may be too large to be at hand. A score is then kept for as long as the file of predictions and the hash of the
test rows are the ones it was made from; everything else is read from the card again.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.leaderboard.scoring import HeldOutRows
from benchmarks.leaderboard.submission import ForeignRows, PredictionSet, Submission
from zoo.storage.atomic import write_atomically
from zoo.storage.untrusted import read_json

_RANKING_FILE = "leaderboard.json"


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
