"""Text from elsewhere inside a card, which Markdown, HTML and the hub's renderer take for nothing but text."""

import re

from zoo.terminal import printable

SPECIAL = re.compile(r"[\\`*\[\]<>&|~]|(?<=:)//|(?<=\bwww)\.|@", re.IGNORECASE)
"""What begins markup, an entity, a cell, or an address that becomes a link by itself."""


def plain_markdown(text: object) -> str:
    """The text with every special character as an HTML entity, so that it shows as it is."""
    return SPECIAL.sub(lambda found: "".join(f"&#{ord(char)};" for char in found[0]), printable(text))
