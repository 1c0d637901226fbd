"""Texts in CSV files: one column is the text, one its label."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from zoo.storage.bounded import refuse_larger
from zoo.tasks.formats.checks import TextSplit, class_names, class_numbers, join_texts
from zoo.tasks.raw_data import RawTexts
from zoo.tasks.toml_table import TomlTable, shown

FIELD_LIMIT = 1 << 20
MAX_CSV_BYTES = 256 << 20
MOST_COLUMNS = 1000


@dataclass(frozen=True)
class CsvData:
    """A folder with a file to train on and one to test on.

    ``text`` and ``label`` are names of columns, and then the first line of each file is a header, or numbers of columns
    from 1, and then there is none. The classes are the distinct labels of the training set.
    """

    path: str
    text: str | int
    label: str | int
    train: str = "train.csv"
    test: str = "test.csv"

    @classmethod
    def from_table(cls, table: TomlTable) -> "CsvData":
        section = cls(
            table.text("path"),
            table.text_or_integer("text", most=MOST_COLUMNS),
            table.text_or_integer("label", most=MOST_COLUMNS),
            table.text("train", cls.train),
            table.text("test", cls.test),
        )
        if isinstance(section.text, str) != isinstance(section.label, str):
            raise table.fault("label", f"must be a {kind_of(section.text)} as text is, got {shown(section.label)}")
        if section.text == section.label:
            raise table.fault("label", f"must be another column than text, got {shown(section.label)} for both")
        if section.train == section.test:
            raise table.fault("test", f"must be another file than train, got {shown(section.test)} for both")
        return section

    def read(self, base: Path) -> RawTexts:
        folder = base / self.path
        (texts, labels), (test_texts, test_labels) = (
            read_columns(folder / name, self.text, self.label) for name in (self.train, self.test)
        )
        at, test_at = (f"{folder / name}, column {self.label}" for name in (self.train, self.test))
        names = class_names(labels, at)
        train = TextSplit(texts, class_numbers(labels, names, at), at)
        test = TextSplit(test_texts, class_numbers(test_labels, names, test_at), test_at)
        return join_texts(folder.resolve().name, train, test, len(names))


def kind_of(column: str | int) -> str:
    return "column's name" if isinstance(column, str) else "column's number"


def read_columns(
    path: Path, text: str | int, label: str | int, *, width: int | None = None
) -> tuple[list[str], list[str]]:
    """The texts and labels of a file whose rows all have ``width`` columns, or as many as the first."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: csv data are a folder with a file to train on and one to test on")
    refuse_larger(path, MAX_CSV_BYTES)
    rows = read_rows(path, width)
    first = next(rows, [])
    text_place, label_place = (place_of(column, first, path) for column in (text, label))
    if isinstance(text, int):
        rows = chain([first], rows)
    pairs = [(row[text_place], row[label_place]) for row in rows]
    if not pairs:
        raise ValueError(f"{path} is empty: it has a header and no rows")
    texts, labels = ([pair[place] for pair in pairs] for place in (0, 1))
    if "" in labels:
        raise ValueError(f"{path} has no label in row {labels.index('') + 1:,}")
    return texts, labels


def read_rows(path: Path, width: int | None) -> Iterator[list[str]]:
    """The rows of a file that are not blank, one at a time."""
    csv.field_size_limit(FIELD_LIMIT)
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            for number, row in enumerate(filter(None, csv.reader(file)), start=1):
                width = width or len(row)
                if len(row) != width:
                    raise ValueError(f"row {number:,} is not {width} columns, but {len(row)}")
                yield row
        except (csv.Error, ValueError) as error:
            raise ValueError(f"{path} is damaged: {error}") from error


def place_of(column: str | int, first: list[str], path: Path) -> int:
    """Where a column stands in a row; ``first`` is the header that names are looked up in."""
    if not first:
        raise ValueError(f"{path} is empty")
    if isinstance(column, int):
        if column > len(first):
            raise ValueError(f"{path} has no column {column}: it has {len(first)}")
        return column - 1
    if first.count(column) != 1:
        found = "no column" if column not in first else "more than one column"
        raise ValueError(f"{path} has {found} {shown(column)}: its first line is {shown(','.join(first))}")
    return first.index(column)
