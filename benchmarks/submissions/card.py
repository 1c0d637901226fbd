"""``card.toml`` of a submission: who made the predictor, what it reads, and which test rows it was asked about.

    name = "My predictor"
    authors = ["Ada Lovelace"]
    paper = "https://arxiv.org/abs/2410.04209"     # may be left out
    code = "https://example.org/my-predictor"      # may be left out; also a file of this repository
    reads = ["weights"]                            # some of weights, hyperparameters, probes, real_inputs

    [[predictions]]                                # one table for each set of test rows
    zoo = "small-transformer-zoo"
    config = "mnist"
    checkpoint = "all"
    test_rows = "…"                                # their SHA-256, which `check` prints
    file = "mnist.csv"
    parameters = 12345                             # may be left out where nothing is counted
    seed = 0                                       # may be left out
    change_under_group = 0.0                       # may be left out

Nothing in a card is imported, followed or fetched.
"""

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zoo.format.manifest import is_inside, is_sha256
from zoo.storage.untrusted import read_bounded
from zoo.tasks.toml_table import TomlTable
from zoo.tasks.toml_text import parse_toml, toml_text

CARD_FILE = "card.toml"
MAX_BYTES = 1 << 16
LONGEST, MOST_AUTHORS, MOST_PARAMETERS, MOST_SEEDS = 200, 50, 10**15, 2**62
READS = ("weights", "hyperparameters", "probes", "real_inputs")
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}")
FILE = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}\.csv")
URL = re.compile(r"https://[\w.-]+(/[\w.~/%#?=&:+-]*)?", re.ASCII)


@dataclass(frozen=True)
class PredictionSet:
    """One file of predictions, and the test rows it is about; ``test_rows`` is their hash."""

    zoo: str
    config: str
    checkpoint: str
    test_rows: str
    file: str
    parameters: int | None = None
    seed: int | None = None
    change_under_group: float | None = None

    @property
    def identity(self) -> tuple[str, str, str]:
        """What must differ between two sets of one card."""
        return self.config, self.checkpoint, self.test_rows


@dataclass(frozen=True)
class Card:
    """A card whose every value was checked."""

    name: str
    authors: tuple[str, ...]
    reads: tuple[str, ...]
    predictions: tuple[PredictionSet, ...]
    paper: str | None = None
    code: str | None = None

    @classmethod
    def read(cls, folder: Path) -> "Card":
        """The card in a submission's folder."""
        path = folder / CARD_FILE
        if path.is_symlink() or not path.is_file():
            raise ValueError(f"{path} is missing: a submission is a folder with {CARD_FILE} and its predictions")
        return cls.parse(read_bounded(path, MAX_BYTES), str(path))

    @classmethod
    def parse(cls, data: bytes, where: str) -> "Card":
        top = TomlTable(where, "", parse_toml(data, where))
        authors = top.list_of("authors", allowed='"Ada Lovelace"', accept=is_line)
        if len(authors) > MOST_AUTHORS:
            raise top.fault("authors", f"names {len(authors)}, at most {MOST_AUTHORS} are shown")
        card = cls(
            name=line(top, "name"),
            authors=authors,
            paper=link(top, "paper", file_too=False),
            code=link(top, "code", file_too=True),
            reads=top.list_of("reads", allowed=" or ".join(READS), accept=READS.__contains__),
            predictions=tuple(prediction_set(table) for table in top.tables("predictions")),
        )
        top.finish()
        for key, values in (
            ("file", [each.file for each in card.predictions]),
            ("test_rows", [each.identity for each in card.predictions]),
        ):
            if len(set(values)) < len(values):
                raise top.fault("predictions", f"name the same {key} twice")
        return card

    def text(self) -> str:
        """The card as TOML, without the keys that are not known."""
        plain: dict[str, Any] = {
            "name": self.name,
            "authors": list(self.authors),
            "paper": self.paper,
            "code": self.code,
            "reads": list(self.reads),
        }
        sets = [{key: value for key, value in asdict(each).items() if value is not None} for each in self.predictions]
        return toml_text({key: value for key, value in plain.items() if value is not None} | {"predictions": sets})


def prediction_set(table: TomlTable) -> PredictionSet:
    change = table.number("change_under_group", -1.0, allowed="a number of at least 0", accept=lambda value: value >= 0)
    chosen = PredictionSet(
        zoo=line(table, "zoo"),
        config=table.text("config"),
        checkpoint=table.text("checkpoint"),
        test_rows=table.text("test_rows"),
        file=table.text("file"),
        parameters=table.integer("parameters", None, least=0, most=MOST_PARAMETERS),
        seed=table.integer("seed", None, least=0, most=MOST_SEEDS),
        change_under_group=None if change < 0 else change,
    )
    table.finish()
    for key, text in (("config", chosen.config), ("checkpoint", chosen.checkpoint)):
        if not NAME.fullmatch(text):
            raise table.fault(key, f"is no name of a {key}: {text[:LONGEST]!r}")
    if not is_sha256(chosen.test_rows):
        raise table.fault("test_rows", "must be the SHA-256 of the test rows, 64 digits from 0 to f")
    if not FILE.fullmatch(chosen.file):
        raise table.fault("file", f"must be a file beside the card, such as mnist.csv, got {chosen.file[:LONGEST]!r}")
    return chosen


def line(table: TomlTable, key: str) -> str:
    """Text that fits a cell of a table."""
    text = table.text(key)
    if not is_line(text):
        raise table.fault(key, f"must be one line of at most {LONGEST} printable characters")
    return text


def is_line(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and len(value) <= LONGEST and value.isprintable()


def link(table: TomlTable, key: str, *, file_too: bool) -> str | None:
    """A web address, or where allowed the path of a file of this repository."""
    text = table.optional_text(key)
    if text is None or (len(text) <= LONGEST and URL.fullmatch(text)):
        return text
    if file_too and len(text) <= LONGEST and is_inside(text) and re.fullmatch(r"[\w./-]+", text, re.ASCII):
        return text
    raise table.fault(key, "must be an address that begins with https://" + (" or a file here" if file_too else ""))
