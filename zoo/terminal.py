"""Text from elsewhere on a terminal: escape sequences, invisible characters and rich's markup are shown, not obeyed."""

from typing import Any

from rich.console import Console
from rich.text import Text

from zoo.command import printable


class PlainConsole(Console):
    """A console that takes every string as plain text; styles come from ``Text`` objects only."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:  # pyright: ignore[reportIncompatibleMethodOverride]
        options |= {"markup": False, "emoji": False}
        return super().render_str("\n".join(printable(line) for line in text.split("\n")), **options)
