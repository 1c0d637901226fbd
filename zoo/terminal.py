"""Text from elsewhere on a terminal and in Markdown: escape sequences and markup are shown, not obeyed."""

import re
from typing import Any

from rich.console import Console
from rich.text import Text

from zoo.checked import printable

_MARKUP = re.compile(r"[\\`*\[\]<>&|~$]|(?<=:)//|(?<=\bwww)\.|@", re.IGNORECASE)
"""The beginning of markup, an entity, a cell, or an address that becomes a link by itself."""


def plain_markdown(text: object) -> str:
    """The text with every special character as an HTML entity, so that Markdown and HTML show it as it is."""
    return _MARKUP.sub(lambda found: "".join(f"&#{ord(char)};" for char in found[0]), printable(text))


class PlainConsole(Console):
    """A console that takes every string as plain text; styles come from ``Text`` objects only."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:  # pyright: ignore[reportIncompatibleMethodOverride]
        options |= {"markup": False, "emoji": False}
        return super().render_str("\n".join(printable(line) for line in text.split("\n")), **options)


def say(line: str) -> None:
    """Prints a line about the progress of a command, on stderr."""
    PlainConsole(stderr=True).print(line, soft_wrap=True)
