"""The leaderboard as Markdown, one table for each set of test rows, and a score as lines of text."""

from collections.abc import Sequence
from typing import Any

from benchmarks.submissions.card import URL
from benchmarks.submissions.scoring import Score, Tau
from benchmarks.tables.markdown import MISSING, number, table, threshold_title
from zoo.terminal import plain_markdown

SHOWN_THRESHOLDS = (0.6, 0.8)


def leaderboard_tables(rankings: Sequence[dict[str, Any]]) -> str:
    """All rankings; τ is of all test rows, with the 95 % interval of a bootstrap over test runs."""
    return "\n\n".join(ranking_table(ranking) for ranking in rankings)


def ranking_table(ranking: dict[str, Any]) -> str:
    checkpoint = "all checkpoints" if ranking["checkpoint"] == "all" else plain_markdown(ranking["checkpoint"])
    title = (
        f"**{plain_markdown(ranking['config'])}** of {plain_markdown(ranking['zoo'])}, {checkpoint}: "
        f"{ranking['rows']:,} test rows `{ranking['test_rows'][:12]}`"
    )
    inside = any(entry["within"] for entry in ranking["entries"])
    headings = ["predictor", "reads", "parameters", "τ", *map(threshold_title, SHOWN_THRESHOLDS)]
    headings += [*(["τ within"] if inside else []), "moves under the group"]
    rows = [entry_row(entry, inside) for entry in ranking["entries"]]
    return f"{title}\n\n{table(headings, rows)}"


def entry_row(entry: dict[str, Any], inside: bool) -> list[str]:
    """One line: the name leads to the submission, then its paper and code where there are any."""
    links = [link(word, entry[word]) for word in ("paper", "code") if entry[word]]
    name = f"[{plain_markdown(entry['name'])}](leaderboard/{entry['submission']}/card.toml)"
    taus = {each["threshold"]: stored_tau(each) for each in entry["thresholds"]}
    return [
        " · ".join([name, *links]),
        ", ".join(word.replace("_", " ") for word in entry["reads"]),
        number(entry["parameters"]),
        taus[0.0].text(),
        *(MISSING if taus[at].value is None else f"{taus[at].value:.3f}" for at in SHOWN_THRESHOLDS),
        *([stored_tau(entry["within"]).text() if entry["within"] else MISSING] if inside else []),
        number(entry["change_under_group"], ".2g"),
    ]


def link(word: str, target: str) -> str:
    """To the web, or from benchmarks/README.md to a file of this repository."""
    return f"[{word}]({target if URL.fullmatch(target) else f'../{target}'})"


def stored_tau(plain: dict[str, Any]) -> Tau:
    return Tau(plain["count"], plain["value"], plain["low"], plain["high"])


def score_lines(score: Score) -> list[str]:
    """A score for a terminal."""
    lines = [
        f"τ, {threshold_title(threshold)}: {tau.text()} ({tau.count:,} rows)"
        for threshold, tau in score.thresholds.items()
    ]
    if score.within is not None:
        lines.append(f"τ within a configuration: {score.within.text()} ({score.within.count:,} configurations)")
    return [*lines, f"R²: {MISSING if score.r2 is None else f'{score.r2:.3f}'}"]
