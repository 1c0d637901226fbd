"""Which split a run belongs to: a function of the run alone, so that adding runs never moves one.

It is decided by the hash of the run's id. Where each configuration was trained several times, the hash of the
configuration decides instead: a model that remembers a configuration from train should not meet it again in test.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from zoo.format.hyperparameters import CONFIGURATION, LATER

SPLITS = ("train", "validation", "test")
DEFAULT_SHARES = "70/15/15"


def run_digest(run_id: str) -> bytes:
    """The hash that decides the split of a run; in the order of these digests any stretch of runs is a random one."""
    return hashlib.sha256(run_id.encode()).digest()


def parse_shares(text: str) -> tuple[int, ...]:
    """``60/20/20``: the percentages of train, validation and test."""
    shares = tuple(map(int, text.split("/"))) if re.fullmatch(r"[1-9][0-9]?(/[1-9][0-9]?){2}", text) else ()
    if sum(shares) != 100:
        raise ValueError(f"splits are three positive percentages that add up to 100, such as 60/20/20, got {text!r}")
    return shares


def _split_of(run_id: str, shares: Sequence[int] = (70, 15, 15)) -> str:
    """The first 64 bits of the digest, as a number in [0, 1): below 0.70 train, below 0.85 validation, else test."""
    position = int.from_bytes(run_digest(run_id)[:8], "big") / 2**64
    if position < shares[0] / 100:
        return "train"
    return "validation" if position < (shares[0] + shares[1]) / 100 else "test"


def splits_of(column: Callable[[str], Iterable[Any]], *, repeats: bool, shares: str = DEFAULT_SHARES) -> list[str]:
    """The split of every row of a table; ``column`` gives the values of a column by its name.

    With ``repeats`` the hash of its configuration decides, else that of its id.
    """
    hashed = _configurations(column) if repeats else column("run_id")
    percentages = parse_shares(shares)
    return [_split_of(text, percentages) for text in hashed]


def folds_of(column: Callable[[str], Iterable[Any]], count: int) -> list[int]:
    """The fold of every row, from 0 on: configurations are dealt out in the order of their hashes.

    So all runs of a configuration are in one fold, and folds have the same number of configurations, or one more.
    """
    texts = _configurations(column)
    places = {text: place for place, text in enumerate(sorted(set(texts), key=run_digest))}
    if len(places) < count:
        raise ValueError(f"{count} folds need as many configurations, these runs have {len(places)}")
    return [places[text] % count for text in texts]


def _configurations(column: Callable[[str], Iterable[Any]]) -> list[str]:
    """The configuration of every row as a JSON list: task, hyperparameters, and the name and value of each later one
    that differs from its default."""
    first = ["task", *(name for name in CONFIGURATION if name not in LATER)]
    rows = [list(row) for row in zip(*(column(name) for name in first), strict=True)]
    for name, default in LATER.items():
        for row, value in zip(rows, column(name), strict=True):
            row += [] if value == default else [name, value]
    return [json.dumps(row, separators=(",", ":")) for row in rows]
