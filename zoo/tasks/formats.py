"""The ``[data]`` table of a task file, and the formats it may name: npz, idx, csv, text, huggingface.

Nothing is unpickled.

section = data_section({"format": "npz", "path": "digits.npz"}, "digits.toml")
data = section.read(base=Path("folder of digits.toml"))
"""

import csv
import gzip
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from jaxtyping import UInt8
from msgspec import Meta
from torch import Tensor

from zoo.checked import Text, checked, shown
from zoo.storage.untrusted import MOST_DEFLATION, HeldFile, faults_named
from zoo.tasks.examples import ImageSplit, LabeledTexts, RawCharacters, RawImages, RawTexts, class_names, class_numbers
from zoo.tasks.huggingface import HuggingFaceData
from zoo.tasks.limits import LONGEST_TEXT, MAX_BYTES, MAX_TEXT_BYTES, MOST_CLASSES, check_count

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")
_IMAGES = "images are [n, h, w] or [n, h, w, c], as uint8, or as floats from 0 to 1"
_LABELS = f"labels are whole numbers from 0 to {MOST_CLASSES - 1} of an integer type, in one dimension"
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_BYTES_AT_ONCE = 1 << 20
_IDX_STEMS = {"train": "train", "test": "t10k"}
_UNSIGNED_BYTE = 0x08
_MOST_CHARACTERS, _TRAIN_SHARE = 1 << 16, 0.9
_Column = Text | Annotated[int, Meta(ge=1, le=1000)]
"""A column by its name, or by its number from 1."""


@dataclass(frozen=True)
class NpzData:
    """A file with ``x_train`` [n, h, w] or [n, h, w, c], ``y_train`` [n], ``x_test`` and ``y_test``.

    Images are uint8, or floats in [0, 1], which become ⌊255·x⌉:
    ``np.savez("digits.npz", x_train=…, y_train=…, x_test=…, y_test=…)``.
    """

    path: Text

    def read(self, base: Path) -> RawImages:
        path = base / self.path
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing: npz data are one file with the arrays {', '.join(_ARRAYS)}")
        arrays = _read_arrays(path)
        train, test = (
            ImageSplit(
                _pixels(arrays[f"x_{split}"], f"{path}: x_{split}"),
                torch.from_numpy(arrays[f"y_{split}"].astype(np.int64)),
                f"{path}: x_{split}",
                f"{path}: y_{split}",
            )
            for split in ("train", "test")
        )
        return RawImages.joined(path.stem, train, test)


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The four arrays. Their sizes are compared with the archive before memory is allocated for them."""
    HeldFile(path).refuse_larger(MAX_BYTES)
    try:
        with zipfile.ZipFile(path) as archive:
            members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
            for name in _ARRAYS:
                if name not in members:
                    raise ValueError(f"{path}: {name} is missing: an npz file must hold {', '.join(_ARRAYS)}")
            total = sum(members[name].file_size for name in _ARRAYS)
            if total > MAX_BYTES:
                raise ValueError(f"{path}: its arrays unpack to {total:,} bytes, at most {MAX_BYTES:,} are read")
            return {name: _read_array(archive, members[name], f"{path}: {name}") for name in _ARRAYS}
    # zipfile has no error of its own for encrypted members (RuntimeError) and for offsets out of range
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{path} is damaged or not an npz file: {error}") from error


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, where: str) -> np.ndarray:
    """One array, read by NumPy after its header was checked."""
    assert archive.filename is not None
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{where} is packed by a method that NumPy does not use: write the file with np.savez")
    most = member.compress_size * (MOST_DEFLATION if member.compress_type == zipfile.ZIP_DEFLATED else 1)
    if member.compress_size > Path(archive.filename).stat().st_size or member.file_size > most:
        raise ValueError(f"{where} is damaged: {member.file_size:,} bytes do not fit in it")
    with archive.open(member) as file:
        assert isinstance(file, zipfile.ZipExtFile)
        length, shape, dtype = _read_header(file, _IMAGES if member.filename.startswith("x") else _LABELS, where)
        size = prod(shape) * dtype.itemsize
        if length + size != member.file_size:
            held = member.file_size - length
            raise ValueError(f"{where} is damaged: its header promises {size:,} bytes, it holds {held:,}")
        file.seek(0)
        with faults_named(f"{where} is damaged"):  # NumPy does not know the name of the file
            return np.lib.format.read_array(file, allow_pickle=False)


def _read_header(file: zipfile.ZipExtFile, allowed: str, where: str) -> tuple[int, tuple[int, ...], np.dtype]:
    """The length of an npy header, and the shape and type that it promises."""
    try:
        shape, _, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
    except (zipfile.BadZipFile, zlib.error):
        raise
    # NumPy evaluates the header as a literal, which has many ways to fail
    except Exception as error:
        raise ValueError(f"{where} is not a plain NumPy array: {allowed}") from error
    images = allowed == _IMAGES
    if not (dtype.kind == "f" or dtype == np.uint8 if images else dtype.kind in "iu"):
        held = "Python objects, which are not read" if dtype.hasobject else dtype.name
        raise ValueError(f"{where} holds {held}: {allowed}")
    if len(shape) not in ((3, 4) if images else (1,)) or not all(0 <= side <= MAX_BYTES for side in shape):
        raise ValueError(f"{where} has the shape {shown(shape)}: {allowed}")
    if 0 in shape:
        raise ValueError(f"{where} is empty: its shape is {shape}")
    check_count(shape[0], where)
    return file.tell(), shape, dtype


def _pixels(images: np.ndarray, where: str) -> UInt8[Tensor, "n height width *channels"]:
    """Bytes as they are, floats in [0, 1] as ⌊255·x⌉, some rows at a time."""
    if images.dtype == np.uint8:
        return torch.from_numpy(np.ascontiguousarray(images))
    rounded = np.empty(images.shape, dtype=np.uint8)
    rows = max(1, _BYTES_AT_ONCE // prod(images.shape[1:]))
    for start in range(0, len(images), rows):
        part = images[start : start + rows].astype(np.float64)
        inside = (part >= 0) & (part <= 1)
        if not inside.all():
            raise ValueError(f"{where} holds {part[~inside][0]:g}: {_IMAGES}")
        rounded[start : start + rows] = np.rint(255 * part)
    return torch.from_numpy(rounded)


@dataclass(frozen=True)
class IdxData:
    """A folder with the four files of MNIST, Fashion-MNIST or KMNIST, each plain or gzipped; images of any size.

    An IDX file is a magic number, the sizes as big-endian integers, then bytes.
    """

    path: Text

    def read(self, base: Path) -> RawImages:
        folder = base / self.path
        missing = "idx data are a folder with images and labels to train and to test on, named like those of MNIST"
        train = read_idx_split(folder, "train", missing)
        test = read_idx_split(folder, "test", missing, MAX_BYTES - train.images.numel())
        return RawImages.joined(folder.resolve().name, train, test)


def find_idx(folder: Path, stem: str) -> Path | None:
    """``stem`` in ``folder``, plain or gzipped; None where there is neither."""
    return next((path for path in (folder / stem, folder / f"{stem}.gz") if path.is_file()), None)


def read_idx_split(folder: Path, split: str, missing: str, most: int = MAX_BYTES) -> ImageSplit:
    """Images of at most ``most`` bytes, and labels; ``missing`` ends the message about a file that is not there."""
    stem, paths = _IDX_STEMS[split], []
    for name in (f"{stem}-images-idx3-ubyte", f"{stem}-labels-idx1-ubyte"):
        if (path := find_idx(folder, name)) is None:
            raise FileNotFoundError(f"{folder / name}[.gz] is missing: {missing}")
        paths.append(path)
    images, labels = paths
    return ImageSplit(_read_idx(images, 3, most), _read_idx(labels, 1), str(images), str(labels))


def _read_idx(path: Path, dimensions: int, most: int = MAX_BYTES) -> Tensor:
    """The bytes of an IDX file, gzipped or not, as a uint8 tensor with the given number of dimensions."""
    zipped = path.suffix == ".gz"
    length, stored = 4 + 4 * dimensions, path.stat().st_size
    try:
        with gzip.open(path) if zipped else path.open("rb") as file:
            header = file.read(length)
            if len(header) < length or header[:4] != bytes([0, 0, _UNSIGNED_BYTE, dimensions]):
                raise ValueError(
                    f"{path} is not an IDX file of bytes in {dimensions} dimensions; delete it and fetch it again"
                )
            shape = struct.unpack(f">{dimensions}I", header[4:])
            size = prod(shape)
            check_count(shape[0], str(path))
            if size > most:
                raise ValueError(f"{path} holds {size:,} bytes, at most {most:,} are read")
            # a few kilobytes of gzip may unpack to megabytes, and may be followed by gigabytes of padding
            if zipped:
                held = "less" if size > MOST_DEFLATION * stored else "more" if stored > 2 * size + 1024 else None
            else:
                held = None if stored == length + size else f"{stored - length:,}"
            content, read = np.empty(0 if held else size, dtype=np.uint8), 0
            while part := file.readinto(content.data[read : read + _BYTES_AT_ONCE]):
                read += part
            held = held or ("more" if file.read(1) else None if read == size else f"{read:,}")
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged: {error}; delete it and fetch it again") from error
    if held:
        raise ValueError(
            f"{path} is damaged: its header promises {size:,} bytes of data, it holds {held}; delete it and fetch it "
            "again"
        )
    return torch.from_numpy(content.reshape(shape))


@dataclass(frozen=True)
class CsvData:
    """A folder with a CSV file to train on and one to test on: one column is the text, one its label.

    ``text`` and ``label`` are names of columns, and then the first line of each file is a header, or numbers of columns
    from 1, and then there is none. The classes are the distinct labels of the training set.
    """

    path: Text
    text: _Column
    label: _Column
    train: Text = "train.csv"
    test: Text = "test.csv"

    def __post_init__(self) -> None:
        if isinstance(self.text, str) != isinstance(self.label, str):
            kind = "column's name" if isinstance(self.text, str) else "column's number"
            raise ValueError(f"label must be a {kind} as text is, got {shown(self.label)}")
        if self.text == self.label:
            raise ValueError(f"label must be another column than text, got {shown(self.label)} for both")
        if self.train == self.test:
            raise ValueError(f"test must be another file than train, got {shown(self.test)} for both")

    def read(self, base: Path) -> RawTexts:
        folder = base / self.path
        paths = (folder / self.train, folder / self.test)
        (texts, labels), (test_texts, test_labels) = (read_columns(path, self.text, self.label) for path in paths)
        at, test_at = (f"{path}, column {self.label}" for path in paths)
        names = class_names(labels, at)
        train = LabeledTexts(texts, class_numbers(labels, names, at))
        test = LabeledTexts(test_texts, class_numbers(test_labels, names, test_at))
        return RawTexts.joined(folder.resolve().name, train, test, len(names), at, test_at)


def read_columns(path: Path, text: _Column, label: _Column, *, width: int | None = None) -> tuple[list[str], list[str]]:
    """The texts and labels of a file whose rows all have ``width`` columns, or as many as the first."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: csv data are a folder with a file to train on and one to test on")
    HeldFile(path).refuse_larger(MAX_TEXT_BYTES)
    rows = _read_rows(path, width)
    first = next(rows, [])
    if not first:
        raise ValueError(f"{path} is empty")
    columns = [_find_column(column, first, path) for column in (text, label)]
    if isinstance(text, int):
        rows = chain([first], rows)
    texts: list[str] = []
    labels: list[str] = []
    for row in rows:
        check_count(len(texts) + 1, str(path))
        texts.append(row[columns[0]])
        labels.append(sys.intern(row[columns[1]]))
    if not texts:
        raise ValueError(f"{path} is empty: it has a header and no rows")
    if "" in labels:
        raise ValueError(f"{path} has no label in row {labels.index('') + 1:,}")
    return texts, labels


def _read_rows(path: Path, width: int | None) -> Iterator[list[str]]:
    """The rows of a file that are not blank, one at a time."""
    csv.field_size_limit(LONGEST_TEXT)
    with path.open(newline="", encoding="utf-8-sig") as file, faults_named(f"{path} is damaged", csv.Error):
        for number, row in enumerate(filter(None, csv.reader(file)), start=1):
            width = width or len(row)
            if len(row) != width:
                raise ValueError(f"row {number:,} is not {width} columns, but {len(row)}")
            yield row


def _find_column(column: str | int, first: list[str], path: Path) -> int:
    """The index of a column; names are looked up in the first row."""
    if isinstance(column, int):
        if column > len(first):
            raise ValueError(f"{path} has no column {column}: it has {len(first)}")
        return column - 1
    if first.count(column) != 1:
        found = "no column" if column not in first else "more than one column"
        raise ValueError(f"{path} has {found} {shown(column)}: its first line is {shown(','.join(first))}")
    return first.index(column)


@dataclass(frozen=True)
class TextData:
    """One long text in UTF-8, plain or gzipped, for a language model of its characters.

    The first 90 % of the characters train, the rest tests. They are numbered in the order of their code points.
    """

    path: Text

    def read(self, base: Path) -> RawCharacters:
        path = base / self.path
        if not path.is_file():
            found = "a folder" if path.is_dir() else "missing"
            raise FileNotFoundError(f"{path} is {found}: text data are one file of UTF-8 text")
        content = _read_text(path)
        if not content:
            raise ValueError(f"{path} is empty")
        train, test = content[: (cut := int(_TRAIN_SHARE * len(content)))], content[cut:]
        characters = set(train)
        if unseen := set(test) - characters:
            at = cut + min(map(test.index, unseen))
            raise ValueError(
                f"{path}: character {at + 1:,}, {shown(content[at])}, is in the last tenth, the test text, and nowhere "
                "before it"
            )
        if len(characters) > _MOST_CHARACTERS:
            raise ValueError(
                f"{path} has {len(characters):,} different characters, at most {_MOST_CHARACTERS:,} are possible"
            )
        return RawCharacters(train, test, "".join(sorted(characters)), path.name.partition(".")[0], str(path))


def _read_text(path: Path) -> str:
    """At most 256 MB of text, unpacked where the file is gzipped."""
    HeldFile(path).refuse_larger(MAX_TEXT_BYTES)
    damaged = faults_named(f"{path} is damaged", OSError, EOFError, zlib.error)
    with damaged, gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        content = file.read(MAX_TEXT_BYTES + 1)
    if len(content) > MAX_TEXT_BYTES:
        raise ValueError(f"{path} unpacks to more than {MAX_TEXT_BYTES:,} bytes, which is the most that is read")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text: byte {error.start + 1:,} is {content[error.start]:#04x}"
        ) from error


DataSection = NpzData | IdxData | HuggingFaceData | CsvData | TextData
_FORMATS = {"npz": NpzData, "idx": IdxData, "huggingface": HuggingFaceData, "csv": CsvData, "text": TextData}


@dataclass(frozen=True)
class _Format:
    format: Literal["npz", "idx", "huggingface", "csv", "text"]


def data_section(raw: dict[str, Any], where: str) -> DataSection:
    """The content of a ``[data]`` table in the file ``where``; its keys depend on its ``format``."""
    head = {key: value for key, value in raw.items() if key == "format"}
    kind = _FORMATS[checked(head, _Format, f"{where}: [data] ").format]
    return checked({key: value for key, value in raw.items() if key not in head}, kind, f"{where}: [data] ")
