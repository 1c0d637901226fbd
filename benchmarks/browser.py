"""Pages in a real browser without a window: chromium, driven by Playwright. ``make browser`` installs both."""

import importlib
import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zoo.storage.atomic import write_atomically

_NAMES = ("chromium", "chromium-browser", "google-chrome")
DRAWN = '#view[aria-busy="false"]'


def find_chromium() -> str | None:
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


def missing() -> str | None:
    """Which of the two is not installed, and how to install it; None if both are."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed: run make browser"
    return None if find_chromium() else "chromium is not installed: run make browser"


def require_browser() -> None:
    """A ValueError if something is missing."""
    if reason := missing():
        raise ValueError(f"this needs a browser, and {reason}")


@contextmanager
def launched() -> Iterator[Any]:
    """Chromium, without its sandbox: containers lack what that needs, and the pages opened here are our own."""
    require_browser()
    with importlib.import_module("playwright.sync_api").sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def show(tab: Any, site: Path, address: str = "") -> None:
    """Opens a written page and waits until it is drawn; ``address`` is what it should show, as in #mnist/curves."""
    tab.goto(f"{(site / 'index.html').resolve().as_uri()}{address}")
    tab.wait_for_selector(DRAWN)


def take_picture(site: Path, address: str, picture: Path, *, width: int = 1280, height: int = 860) -> None:
    """A screenshot as PNG."""
    with launched() as browser:
        tab = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
        show(tab, site, address)
        write_atomically(picture, tab.screenshot())
