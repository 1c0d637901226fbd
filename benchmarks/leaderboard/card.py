"""The card of a submission: ``card.toml`` names the authors, what the predictor reads, and the test rows of each file.

CONTRIBUTING.md shows one. Nothing in a card is imported, followed or fetched.
"""

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta

from zoo.checked import CountOrZero, NotNegative, Sha256, Text, checked
from zoo.storage.untrusted import read_bounded
from zoo.tasks.toml_text import parse_toml, toml_text

Reads = Literal["weights", "hyperparameters", "probes", "real_inputs"]
READS: tuple[Reads, ...] = get_args(Reads)
_URL = re.compile(r"https://[\w.-]+(/[\w.~/%#?=&:+-]*)?", re.ASCII)
CARD_FILE = "card.toml"
_CARD_BYTES = 1 << 16
_LONGEST = 200
_LINE_RULE = f"one line of at most {_LONGEST} printable characters"
_URL_RULE = "an address that begins with https://"
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}")
_FILE = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}\.csv")
_PATH = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)*", re.ASCII)


@dataclass(frozen=True)
class PredictionSet:
    """One file of predictions, and the test rows it is about; ``test_rows`` is their hash."""

    zoo: Text
    config: Text
    checkpoint: Text
    test_rows: Sha256
    file: Text
    parameters: Annotated[int, Meta(ge=0, le=10**15)] | None = None
    seed: CountOrZero | None = None
    change_under_group: NotNegative | None = None

    def __post_init__(self) -> None:
        _check_text("zoo", self.zoo, _is_line, _LINE_RULE)
        _check_text("config", self.config, NAME.fullmatch, "the name of a config")
        _check_text("checkpoint", self.checkpoint, NAME.fullmatch, "the name of a checkpoint")
        _check_text("file", self.file, _FILE.fullmatch, "a file beside the card, such as mnist.csv")

    @property
    def identity(self) -> tuple[str, str, str]:
        """The test rows, which must differ between two sets of one card."""
        return self.config, self.checkpoint, self.test_rows


@dataclass(frozen=True)
class Card:
    """A card whose every value was checked."""

    name: Text
    authors: Annotated[tuple[Text, ...], Meta(min_length=1, max_length=50)]
    reads: Annotated[tuple[Reads, ...], Meta(min_length=1)]
    predictions: tuple[PredictionSet, ...]
    paper: Text | None = None
    code: Text | None = None

    def __post_init__(self) -> None:
        _check_text("name", self.name, _is_line, _LINE_RULE)
        for author in self.authors:
            _check_text("authors", author, _is_line, _LINE_RULE)
        _check_text("paper", self.paper, _URL.fullmatch, _URL_RULE)
        _check_text("code", self.code, _is_url_or_file, f"{_URL_RULE} or a file here")
        for key, values in (
            ("author", self.authors),
            ("kind of input", self.reads),
            ("file", [each.file for each in self.predictions]),
            ("test_rows", [each.identity for each in self.predictions]),
        ):
            if len(set(values)) < len(values):
                raise ValueError(f"the card names the same {key} twice")

    @classmethod
    def read(cls, folder: Path) -> "Card":
        path = folder / CARD_FILE
        if path.is_symlink() or not path.is_file():
            raise ValueError(f"{path} is missing: a submission is a folder with {CARD_FILE} and its predictions")
        return cls.parse(read_bounded(path, _CARD_BYTES), str(path))

    @classmethod
    def parse(cls, data: bytes, where: str) -> "Card":
        card = checked(parse_toml(data, where), cls, f"{where}: ")
        if not card.predictions:
            raise ValueError(f"{where}: predictions is empty: name at least one file")
        return card

    def text(self) -> str:
        """The card as TOML, without the keys that are not known."""

        def known(values: dict[str, Any]) -> dict[str, Any]:
            return {key: value for key, value in values.items() if value is not None}

        top = {"name": self.name, "authors": list(self.authors), "paper": self.paper, "code": self.code}
        sets = [known(asdict(each)) for each in self.predictions]
        return toml_text(known(top) | {"reads": list(self.reads), "predictions": sets})


def _check_text(key: str, text: str | None, accept: Callable[[str], object], rule: str) -> None:
    if text is not None and not (len(text) <= _LONGEST and accept(text)):
        raise ValueError(f"{key} must be {rule}, got {text[:_LONGEST]!r}")


def _is_line(text: str) -> bool:
    """Text that fits a cell of a table."""
    return bool(text.strip()) and text.isprintable()


def _is_url_or_file(text: str) -> bool:
    return bool(_URL.fullmatch(text) or _PATH.fullmatch(text))
