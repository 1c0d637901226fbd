"""The static page of a zoo (zoo.page) with the predictors of the tables and of the leaderboard.

python -m benchmarks.page small-transformer-zoo site/            then open site/index.html in a browser
python -m benchmarks.page small-transformer-zoo site/ --results demo/results
python -m benchmarks.page small-transformer-zoo site/ --picture docs/page.png        needs a browser: make browser

The predictions are those behind the tables, for the test split of the zoo that was measured, and the submissions to the
leaderboard for this zoo's own test rows; the page tells them apart.
"""

from collections.abc import Iterator
from pathlib import Path

from benchmarks import results
from benchmarks.browser import require_browser, take_picture
from benchmarks.leaderboard.submission import ForeignRows, submissions_in
from benchmarks.models.registry import known_models
from benchmarks.report import first_predictions
from benchmarks.results import ResultIndex
from benchmarks.tables import count_runs, main_setting
from zoo.command import command, command_parser
from zoo.page.predictions import Predictions
from zoo.page.writing import add_options, run
from zoo.terminal import printable

_SUBMISSIONS = Path(__file__).parent / "submissions"


def _predictions(folder: Path) -> Iterator[Predictions]:
    """The predictions of every predictor's first fit, for every config and selection that has rows in ``folder``."""
    rows = results.read("kendall", folder)
    tables = dict.fromkeys((row.config, row.setting.get("where")) for row in rows)
    for config, where in tables:
        assert where is None or isinstance(where, str)
        index = ResultIndex.latest(rows, config, where)
        for name, (predicted, measured) in first_predictions(index, folder).items():
            setting = main_setting(name)
            interval = index.interval("tau", name, **setting)
            yield Predictions(
                config,
                known_models()[name].title,
                _describe(index),
                predicted.astype(float).tolist(),
                measured.astype(float).tolist(),
                tau=index.value("tau", name, **setting),
                interval=None if interval is None else list(interval),
                reads_weights=known_models()[name].reads_weights,
            )


def _submitted(submissions: Path, zoo: str) -> Iterator[Predictions]:
    """The submissions for test rows of this zoo, each scored again."""
    for submission in submissions_in(submissions):
        for part in submission.card.predictions:
            try:
                _, rows = submission.find_rows([zoo], part)
            except ForeignRows:
                continue
            tau = submission.score(part, rows)["thresholds"][0]
            yield Predictions(
                rows.config,
                submission.card.name,
                f"leaderboard: test split of this zoo, {rows.title.partition(', ')[2]}",
                submission.predicted(part, rows).astype(float).tolist(),
                rows.truth.astype(float).tolist(),
                tau=tau["value"],
                interval=None if tau["low"] is None else [tau["low"], tau["high"]],
                reads_weights="weights" in submission.card.reads,
            )


def _describe(index: ResultIndex) -> str:
    """Which checkpoints these are."""
    checkpoint = next((row.setting["checkpoint"] for row in index.rows if "checkpoint" in row.setting), "all")
    kind = "" if checkpoint == "all" else f", {checkpoint}"
    return index.title(f"test split of a zoo of {count_runs(index)} runs{kind}")


@command
def main(arguments: list[str] | None = None) -> None:
    parser = command_parser("benchmarks.page", __doc__)
    add_options(parser)
    parser.add_argument(
        "--results", type=Path, default=results.FOLDER, metavar="DIR", help="folder of the rows and their cells"
    )
    parser.add_argument(
        "--leaderboard", type=Path, default=_SUBMISSIONS, metavar="DIR", help="folder of the submissions"
    )
    parser.add_argument("--picture", type=Path, metavar="FILE", help="also take a picture of the page, as PNG")
    parser.add_argument(
        "--show", metavar="ADDRESS", help="what is in the picture, e.g. #mnist/checkpoint (default: the first view)"
    )
    options = parser.parse_args(arguments)
    if options.picture:
        require_browser()
    run(options, [*_predictions(options.results), *_submitted(options.leaderboard, options.zoo)])
    if options.picture:
        take_picture(options.out, options.show or "", options.picture)
        print(f"drawn: {printable(options.picture)}")


if __name__ == "__main__":
    main()
