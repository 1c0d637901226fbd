"""The static page of a zoo (zoo.page) with the predictors of the tables and of the leaderboard.

python -m benchmarks.page small-transformer-zoo site/            then open site/index.html in a browser
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from benchmarks.options import Rows
from zoo.command import Command, Option
from zoo.page.options import PageOptions


@dataclass(frozen=True, kw_only=True)
class _Options(PageOptions):
    results: Rows = None
    leaderboard: Annotated[Path, Option("folder of the submissions", "DIR")] = Path(__file__).parent / "submissions"


_command = Command(__name__, "benchmarks.page", __doc__, _Options, lambda _: ("scipy", "vl_convert"))

from collections.abc import Iterator

from benchmarks import results
from benchmarks.leaderboard.submission import NotScored, refuse_copies, submissions_in
from benchmarks.models.registry import known_models
from benchmarks.plots import first_predictions
from benchmarks.results import ResultIndex
from benchmarks.tables import count_runs, main_setting
from zoo.format.schema import direction_of
from zoo.page.tables import Predictions
from zoo.page.writing import run


def _predictions(folder: Path) -> Iterator[Predictions]:
    """The predictions of every predictor's first fit, for every config and selection that has rows in ``folder``."""
    rows = results.read("kendall", folder)
    tables = dict.fromkeys((row.config, row.setting.get("where")) for row in rows)
    for config, where in tables:
        assert where is None or isinstance(where, str)
        index = ResultIndex.latest(rows, config, where)
        direction = direction_of(index.label)
        for name, outcome in first_predictions(index, folder).items():
            setting = main_setting(name, index.thresholds[0])  # which these predictions are of
            interval = index.interval("tau", name, **setting)
            yield Predictions(
                config,
                known_models()[name].title,
                index.heading(f"test split of a zoo of {count_runs(index)} runs"),
                (direction * outcome.predicted.astype(float)).tolist(),
                (direction * outcome.truth.astype(float)).tolist(),
                tau=index.value("tau", name, **setting),
                interval=None if interval is None else list(interval),
                reads_weights="weights" in known_models()[name].reads,
            )


def _submitted(submissions: Path, zoo: str) -> Iterator[Predictions]:
    """The submissions for test rows of this zoo, each scored again."""
    refuse_copies(found := submissions_in(submissions))
    for submission in found:
        for part in submission.card.predictions:
            try:
                _, rows = submission.find_rows([zoo], part)
                tau = submission.score(part, rows)["thresholds"][0]
            except NotScored:
                continue
            yield Predictions(
                rows.config,
                submission.card.name,
                f"leaderboard (labels are public): test split of this zoo, {rows.title.partition(', ')[2]}",
                submission.predicted(part, rows).astype(float).tolist(),
                rows.truth.astype(float).tolist(),
                tau=tau["value"],
                interval=None if tau["low"] is None else [tau["low"], tau["high"]],
                reads_weights="weights" in submission.card.reads,
            )


@_command
def main(options: _Options) -> None:
    rows = options.results or results.FOLDER
    run(options, [*_predictions(rows), *_submitted(options.leaderboard, options.zoo)])
