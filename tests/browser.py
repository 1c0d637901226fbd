"""A browser for the tests of the page, and for pictures of it.

python -m tests.browser site benchmarks/results/plots/page.png        of a page that zoo.page wrote; needs make browser
python -m tests.browser site page.png --show "#mnist/checkpoint"
"""

import importlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from zoo.command import Argument, Command, Option, missing
from zoo.storage.atomic import write_atomically

DRAWN = '#view[aria-busy="false"]'
_NAMES = ("chromium", "chromium-browser", "google-chrome")


@dataclass(frozen=True)
class _Options:
    site: Annotated[Path, Argument("folder of the page", "SITE")]
    picture: Annotated[Path, Argument("PNG file to write", "FILE")]
    show: Annotated[str, Option("what is in the picture, e.g. #mnist/checkpoint", "ADDRESS")] = "#"


_command = Command(__name__, "tests.browser", __doc__, _Options)


def _find_chromium() -> str | None:
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


def missing_browser() -> str | None:
    """Which of chromium and Playwright, which drives it, is not installed, and how to install it; None if both are."""
    no_browser = None if _find_chromium() else "chromium is not installed: run make browser"
    return missing("a picture of the page", ["playwright"]) or no_browser


@contextmanager
def launched() -> Iterator[Any]:
    """Chromium, without its sandbox: containers lack what that needs, and the pages opened here are our own."""
    with importlib.import_module("playwright.sync_api").sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=_find_chromium(), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def show(tab: Any, site: Path, address: str = "") -> None:
    """Opens a written page and waits until it is drawn; ``address`` is what it should show, as in #mnist/curves."""
    tab.goto(f"{(site / 'index.html').resolve().as_uri()}{address}")
    tab.wait_for_selector(DRAWN)


@_command
def main(options: _Options) -> None:
    if reason := missing_browser():
        raise ValueError(reason)
    with launched() as browser:
        tab = browser.new_page(viewport={"width": 1280, "height": 860}, color_scheme="light")
        show(tab, options.site, options.show)
        write_atomically(options.picture, tab.screenshot())
    print(f"drawn: {options.picture}")
