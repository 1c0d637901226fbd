"""The static page of a zoo (zoo.page) with the predictors of the tables and of the leaderboard.

python -m benchmarks.page small-transformer-zoo site/            then open site/index.html in a browser
python -m benchmarks.page small-transformer-zoo site/ --picture docs/page.png        needs a browser: make browser
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from zoo.command import Command, Option, missing
from zoo.page.options import PageOptions


@dataclass(frozen=True, kw_only=True)
class _Options(PageOptions):
    results: Annotated[
        Path | None, Option("folder of the rows and their cells (default: the committed ones, or results)", "DIR")
    ] = None
    leaderboard: Annotated[Path, Option("folder of the submissions", "DIR")] = Path(__file__).parent / "submissions"
    picture: Annotated[Path | None, Option("also take a picture of the page, as PNG", "FILE")] = None
    show: Annotated[
        str | None, Option("what is in the picture, e.g. #mnist/checkpoint (default: the first view)", "ADDRESS")
    ] = None


_command = Command(__name__, "benchmarks.page", __doc__, _Options, lambda _: ("scipy", "vl_convert"))

import importlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks import results
from benchmarks.leaderboard.submission import NotScored, refuse_copies, submissions_in
from benchmarks.models.registry import known_models
from benchmarks.plots import first_predictions
from benchmarks.results import ResultIndex
from benchmarks.tables import count_runs, main_setting
from zoo.format.schema import direction_of
from zoo.page.tables import Predictions
from zoo.page.writing import run
from zoo.storage.atomic import write_atomically
from zoo.terminal import printable

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_DRAWN = '#view[aria-busy="false"]'


def _predictions(folder: Path) -> Iterator[Predictions]:
    """The predictions of every predictor's first fit, for every config and selection that has rows in ``folder``."""
    rows = results.read("kendall", folder)
    tables = dict.fromkeys((row.config, row.setting.get("where")) for row in rows)
    for config, where in tables:
        assert where is None or isinstance(where, str)
        index = ResultIndex.latest(rows, config, where)
        direction = direction_of(index.label)
        for name, outcome in first_predictions(index, folder).items():
            setting = main_setting(name)
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


def _find_chromium() -> str | None:
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


def _missing() -> str | None:
    """Which of chromium and Playwright, which drives it, is not installed, and how to install it; None if both are."""
    no_browser = None if _find_chromium() else "chromium is not installed: run make browser"
    return missing("a picture of the page", ["playwright"]) or no_browser


@contextmanager
def _launched() -> Iterator[Any]:
    """Chromium, without its sandbox: containers lack what that needs, and the pages opened here are our own."""
    with importlib.import_module("playwright.sync_api").sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=_find_chromium(), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def _show(tab: Any, site: Path, address: str = "") -> None:
    """Opens a written page and waits until it is drawn; ``address`` is what it should show, as in #mnist/curves."""
    tab.goto(f"{(site / 'index.html').resolve().as_uri()}{address}")
    tab.wait_for_selector(_DRAWN)


def _take_picture(site: Path, address: str, picture: Path, *, width: int = 1280, height: int = 860) -> None:
    """A screenshot as PNG."""
    with _launched() as browser:
        tab = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
        _show(tab, site, address)
        write_atomically(picture, tab.screenshot())


@_command
def main(options: _Options) -> None:
    if options.picture and (reason := _missing()):
        raise ValueError(reason)
    rows = options.results or results.FOLDER
    run(options, [*_predictions(rows), *_submitted(options.leaderboard, options.zoo)])
    if options.picture:
        _take_picture(options.out, options.show or "", options.picture)
        print(f"drawn: {printable(options.picture)}")
