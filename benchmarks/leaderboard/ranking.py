"""All submissions in order, one ranking for each set of test rows: ``leaderboard.json``, and the tables made from it.

A zoo may be too large to be at hand. A score is then kept for as long as the file of predictions and the hash of the
test rows are the ones it was made from; everything else is read from the card again.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.leaderboard.scoring import HeldOutRows, tau_text
from benchmarks.leaderboard.submission import URL, ForeignRows, PredictionSet, Submission
from benchmarks.tables.markdown import number, table, threshold_title
from zoo.storage.atomic import write_atomically
from zoo.storage.untrusted import read_json
from zoo.terminal import plain_markdown

_RANKING_FILE = "leaderboard.json"
_SHOWN_THRESHOLDS = (0.6, 0.8)


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


def leaderboard_tables(rankings: Sequence[dict[str, Any]]) -> str:
    """Every ranking as Markdown; τ is of all test rows, with the 95 % interval of a bootstrap over test runs."""
    return "\n\n".join(map(_ranking_table, rankings))


def _ranking_table(ranking: dict[str, Any]) -> str:
    checkpoint = "all checkpoints" if ranking["checkpoint"] == "all" else plain_markdown(ranking["checkpoint"])
    title = (
        f"**{plain_markdown(ranking['config'])}** of {plain_markdown(ranking['zoo'])}, {checkpoint}: "
        f"{ranking['rows']:,} test rows `{ranking['test_rows'][:12]}`"
    )
    within = any(entry["within"] for entry in ranking["entries"])
    headings = ["predictor", "reads", "parameters", "τ", *map(threshold_title, _SHOWN_THRESHOLDS)]
    headings += [*(["τ within"] if within else []), "moves under the group"]
    return f"{title}\n\n{table(headings, [_entry_row(entry, within) for entry in ranking['entries']])}"


def _entry_row(entry: dict[str, Any], within: bool) -> list[str]:
    """One line: the name links to the submission, followed by its paper and code where there are any."""
    name = f"[{plain_markdown(entry['name'])}](submissions/{entry['submission']}/card.toml)"
    links = [_link(word, entry[word]) for word in ("paper", "code") if entry[word]]
    taus = {tau["threshold"]: tau for tau in entry["thresholds"]}
    return [
        " · ".join([name, *links]),
        ", ".join(word.replace("_", " ") for word in entry["reads"]),
        number(entry["parameters"]),
        tau_text(taus[0.0]),
        *(number(taus[at]["value"], ".3f") for at in _SHOWN_THRESHOLDS),
        *([tau_text(entry["within"])] if within else []),
        number(entry["change_under_group"], ".2g"),
    ]


def _link(word: str, target: str) -> str:
    """To the web, or from a document in benchmarks/ to a file of this repository."""
    return f"[{word}]({target if URL.fullmatch(target) else f'../{target}'})"
