"""Writes a page, and reads it without a browser: the data that it holds."""

import base64
import gzip
import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zoo.page.options import PageOptions
from zoo.page.tables import Predictions
from zoo.page.writing import _write_page


def write_page(
    zoo: Path | str, out: Path, predictions: Sequence[Predictions] = (), pictured: int = 100, *, fetch: bool = False
) -> None:
    _write_page(PageOptions(zoo=str(zoo), out=out, pictures=pictured, fetch=fetch), predictions, lambda _: None)


def unpacked(text: str) -> Any:
    """The inverse of ``zoo.page.tables.packed``."""
    return json.loads(gzip.decompress(base64.b64decode(text)))


def block(site: Path, name: str) -> str:
    """The text of one of the page's data blocks."""
    found = re.search(rf'<script type="[\w/]+" id="{name}">(.*?)</script>', page_text(site), re.DOTALL)
    assert found, f"the page has no block {name}"
    return found[1]


def page_text(site: Path) -> str:
    return (site / "index.html").read_text(encoding="utf-8")


def head_of(site: Path) -> dict[str, Any]:
    return json.loads(block(site, "head"))


def config_of(site: Path, index: int) -> dict[str, Any]:
    return unpacked(block(site, f"config-{index}"))


def file_beside(site: Path, name: str) -> Any:
    """The data that a script beside the page hands to it."""
    found = re.fullmatch(r'zooFile\("([\w/-]+)", "([\w+/=]*)"\);\n', (site / f"{name}.js").read_text())
    assert found
    assert found[1] == name
    return unpacked(found[2])


def policy_of(site: Path) -> str:
    found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page_text(site))
    assert found
    return html.unescape(found[1])
