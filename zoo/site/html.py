"""The page itself: one HTML file that holds its style, its scripts, the charting library and the tables of the zoo.

The charts are Vega-Lite's. Its JavaScript comes with vl-convert-python and is copied into the page, so the page asks
nobody for anything; a content security policy in its head makes the browser hold it to that. The policy names every
script of the page by its hash: text of a zoo that got into the HTML by mistake would not run.
"""

import base64
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

FOLDER = Path(__file__).parent
SCRIPTS = (
    *("data", "elements", "charts", "axes", "filters"),
    *("histogram", "marginal", "checkpoint_table", "accuracies"),
    *("curves", "predictors"),
    *("loading_code", "run_curves", "patch_filters", "attention", "checkpoint"),
    "page",
)
"""The files of js/, in the order they are read in."""
EXPORTED = "window.vegaEmbed = vegaEmbed;"


@functools.cache
def charting_library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, after their licenses; one clear line where vl-convert is absent."""
    try:
        import vl_convert
    except ImportError as error:
        raise ValueError("the page needs vl-convert: pip install 'small-transformer-zoo[page]'") from error
    notice = (FOLDER / "library_notice.txt").read_text(encoding="utf-8")
    return f"/*\n{notice}*/\n(() => {{\n{vl_convert.javascript_bundle(EXPORTED)}\n}})();"


def page_script() -> str:
    """The page's own scripts as one."""
    parts = ((FOLDER / "js" / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS)
    return '"use strict";\n(() => {\n' + "\n".join(parts) + "})();"


def render(title: str, head: Mapping[str, Any], configs: Sequence[str], summary: Sequence[Sequence[str]]) -> str:
    """The HTML: ``head`` is what the page knows at once, ``configs`` the packed tables it unpacks when it shows them.

    ``summary`` is the table that readers without JavaScript see: a line of headings, then a line per config.
    """
    scripts = [in_script(charting_library()), in_script(page_script())]
    blocks = [data_block("head", as_json(head), "application/json")]
    blocks += [data_block(f"config-{place}", text, "text/plain") for place, text in enumerate(configs)]
    return Template((FOLDER / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(title),
        policy=escape(policy(scripts)),
        style=(FOLDER / "page.css").read_text(encoding="utf-8"),
        summary=html_table(summary),
        data="\n".join(blocks),
        library=scripts[0],
        script=scripts[1],
    )


def policy(scripts: Sequence[str]) -> str:
    """Nothing from elsewhere; of scripts those of the page by their hashes, and the files that lie beside it.

    Files beside it are ``'self'`` on a web server and ``file:`` on a disk.
    """
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return (
        f"default-src 'none'; script-src 'self' file: {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def in_script(code: str) -> str:
    """Code that cannot end the script element it stands in; what it means is the same."""
    return code.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def as_json(value: Any) -> str:
    """JSON without a character that HTML would take for markup."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def data_block(name: str, text: str, kind: str) -> str:
    return f'<script type="{kind}" id="{name}">{text}</script>'


def html_table(lines: Sequence[Sequence[str]]) -> str:
    """A table of text: headings first, then a row per line whose first cell names it."""
    headings, *rows = lines
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
