"""How much data a task may have. A few kilobytes may unpack to gigabytes, so it is checked before that."""

MOST_CLASSES = 256
"""A label is hashed as one byte."""
MAX_BYTES = 1 << 30
"""The most that the images of a data set may take, in memory or on disk."""
MAX_TEXT_BYTES, LONGEST_TEXT = 256 << 20, 1 << 20
"""Bytes of all texts of a split, and of one of them."""
MOST_TOKENS = MAX_BYTES // 4
"""In a data set; each is a number of four bytes."""
_MOST_EXAMPLES = 10_000_000
"""In a split; each of them takes far more than its bytes."""


def check_count(examples: int, where: str) -> None:
    """Refuses a split of more examples than are read, before anything is allocated for them."""
    if examples > _MOST_EXAMPLES:
        raise ValueError(f"{where} holds {examples:,} examples, at most {_MOST_EXAMPLES:,} are read")
