"""Text from elsewhere on a terminal: escape sequences, invisible characters and rich's markup are shown, not obeyed."""

from typing import Any

from rich.console import Console
from rich.text import Text

LONGEST = 2000


def printable(text: object) -> str:
    r"""The text in one line, every character that is not printable in Python's notation, such as ``\x1b``.

    That takes away escape sequences (colors, titles, links, the cursor), line breaks, and the characters that turn
    the direction of what follows.
    """
    text = str(text)
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}… ({len(text):,} characters)"
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


class PlainConsole(Console):
    """A console that takes every string as text: what styles it, says so with a ``Text`` of its own."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:  # pyright: ignore[reportIncompatibleMethodOverride]
        options |= {"markup": False, "emoji": False}
        return super().render_str("\n".join(printable(line) for line in text.split("\n")), **options)
