"""The static page of a zoo (zoo.page) with the predictors of the tables and of the leaderboard.

python -m benchmarks.page small-transformer-zoo site/            then open site/index.html in a browser
python -m benchmarks.page small-transformer-zoo site/ --results demo/results
python -m benchmarks.page small-transformer-zoo site/ --picture docs/page.png        needs a browser: make browser

The predictions are those behind the tables, made of the test split of the zoo that was measured, and the submissions
to the leaderboard that are about this zoo's own test rows; the page says which.
"""

from collections.abc import Iterator
from pathlib import Path

from benchmarks import results
from benchmarks.browser import require_browser, take_picture
from benchmarks.models.registry import known_models
from benchmarks.report import first_predictions
from benchmarks.submissions.ranking import submissions_in
from benchmarks.submissions.submission import ForeignRows
from benchmarks.tables.headline import main_setting, runs
from benchmarks.tables.result_index import ResultIndex
from zoo.command import command, command_parser
from zoo.page.predictions import Predictions
from zoo.page.writing import add_options, run
from zoo.terminal import printable

LEADERBOARD = Path(__file__).parent / "leaderboard"


def predictions(folder: Path) -> Iterator[Predictions]:
    """Of every config and selection that has rows in ``folder``: what each predictor said in its first fit."""
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
                describe(index),
                predicted.astype(float).tolist(),
                measured.astype(float).tolist(),
                tau=index.value("tau", name, **setting),
                interval=None if interval is None else list(interval),
                reads_weights=known_models()[name].reads_weights,
            )


def submitted(leaderboard: Path, zoo: str) -> Iterator[Predictions]:
    """The submissions that are about test rows of this zoo, each scored again."""
    for submission in submissions_in(leaderboard):
        for part in submission.card.predictions:
            try:
                _, rows = submission.zoo_among([zoo], part)
            except ForeignRows:
                continue
            tau = submission.score(part, rows).tau
            yield Predictions(
                rows.config,
                submission.card.name,
                f"leaderboard: test split of this zoo, {rows.title.partition(', ')[2]}",
                submission.predicted(part, rows).astype(float).tolist(),
                rows.truth.astype(float).tolist(),
                tau=tau.value,
                interval=None if tau.low is None or tau.high is None else [tau.low, tau.high],
                reads_weights="weights" in submission.card.reads,
            )


def describe(index: ResultIndex) -> str:
    """Which checkpoints these are."""
    checkpoint = next((row.setting["checkpoint"] for row in index.rows if "checkpoint" in row.setting), "all")
    kind = "" if checkpoint == "all" else f", {checkpoint}"
    return index.title(f"test split of a zoo of {runs(index)} runs{kind}")


@command
def main(arguments: list[str] | None = None) -> None:
    parser = command_parser("benchmarks.page", __doc__)
    add_options(parser)
    parser.add_argument(
        "--results", type=Path, default=results.FOLDER, metavar="DIR", help="folder of the rows and their cells"
    )
    parser.add_argument(
        "--leaderboard", type=Path, default=LEADERBOARD, metavar="DIR", help="folder of the submissions"
    )
    parser.add_argument("--picture", type=Path, metavar="FILE", help="also take a picture of the page, as PNG")
    parser.add_argument(
        "--show", metavar="ADDRESS", help="what is in the picture, e.g. #mnist/checkpoint (default: the first view)"
    )
    options = parser.parse_args(arguments)
    if options.picture:
        require_browser()
    run(options, [*predictions(options.results), *submitted(options.leaderboard, options.zoo)])
    if options.picture:
        take_picture(options.out, options.show or "", options.picture)
        print(f"drawn: {printable(options.picture)}")


if __name__ == "__main__":
    main()
