"""Data of one's own: the ``[data]`` table of a task file, and the four formats it may name.

section = data_section(TomlTable("digits.toml", "data", {"format": "npz", "path": "digits.npz"}))
data = read_data(section, base=Path("folder of digits.toml"))
"""

from pathlib import Path

from zoo.tasks.formats.csv import CsvData
from zoo.tasks.formats.huggingface import HuggingFaceData
from zoo.tasks.formats.idx import IdxData
from zoo.tasks.formats.npz import NpzData
from zoo.tasks.raw_data import LabelledTexts, RawImages, RawTexts
from zoo.tasks.toml_table import TomlTable

__all__ = [
    "CsvData",
    "DataSection",
    "HuggingFaceData",
    "IdxData",
    "LabelledTexts",
    "NpzData",
    "RawImages",
    "RawTexts",
    "data_section",
    "read_data",
]

DataSection = NpzData | IdxData | HuggingFaceData | CsvData
FORMATS: dict[str, type[DataSection]] = {
    "npz": NpzData,
    "idx": IdxData,
    "huggingface": HuggingFaceData,
    "csv": CsvData,
}


def data_section(table: TomlTable) -> DataSection:
    """What a ``[data]`` table says; the keys depend on its ``format``."""
    section = FORMATS[table.text("format", choices=tuple(FORMATS))].from_table(table)
    table.finish()
    return section


def read_data(section: DataSection, base: Path) -> RawImages | RawTexts:
    """The data themselves. Paths are relative to ``base``."""
    return section.read(base)
