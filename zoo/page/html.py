"""The page itself: one HTML file that holds its style, its scripts, the charting library and the tables of the zoo.

The charts are Vega-Lite's. Its JavaScript comes with vl-convert-python and is copied into the page, so the page needs
no network; a content security policy in its head makes the browser enforce that. The policy names every script of the
page by its hash: text of a zoo that got into the HTML by mistake would not run.
"""

import base64
import functools
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment

_FOLDER = Path(__file__).parent
_SCRIPTS = (
    *("data", "elements", "charts", "axes", "filters"),
    *("histogram", "marginal", "checkpoint_table", "accuracies"),
    *("curves", "predictors"),
    *("loading_code", "run_curves", "patch_filters", "attention", "checkpoint"),
    "page",
)
"""The files of js/, in the order they are read in."""
_EXPORTED = "window.vegaEmbed = vegaEmbed;"


@functools.cache
def _charting_library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, after their licenses."""
    import vl_convert

    return f"/*\n{_read('library_notice.txt')}*/\n(() => {{\n{vl_convert.javascript_bundle(_EXPORTED)}\n}})();"


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _page_script() -> str:
    """The page's own scripts as one."""
    return '"use strict";\n(() => {\n' + "\n".join(_read(f"js/{name}.js") for name in _SCRIPTS) + "})();"


def render(title: str, head: Mapping[str, Any], configs: Sequence[str], summary: Sequence[Sequence[str]]) -> str:
    """The HTML: ``head`` is available to the page at once, ``configs`` are packed tables that it unpacks to show them.

    ``summary`` is the table that readers without JavaScript see: a line of headings, then a line per config.
    """
    scripts = [_in_script(_charting_library()), _in_script(_page_script())]
    environment = Environment(autoescape=True, keep_trailing_newline=True)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment.from_string(_read("page.html")).render(
        title=title,
        policy=_policy(scripts),
        style=_read("page.css"),
        summary=summary,
        head=head,
        configs=configs,
        scripts=scripts,
    )


def _policy(scripts: Sequence[str]) -> str:
    """Allows nothing from elsewhere, and no scripts but the page's own, by their hashes, and the files beside it.

    Files beside it are ``'self'`` on a web server and ``file:`` on a disk.
    """
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return (
        f"default-src 'none'; script-src 'self' file: {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _in_script(code: str) -> str:
    """Code that cannot end the script element it stands in; its meaning is the same."""
    return code.replace("</script", "<\\/script").replace("<!--", "<\\!--")
