"""Images in a NumPy archive: ``np.savez("digits.npz", x_train=…, y_train=…, x_test=…, y_test=…)``.

Read here and not by NumPy, which makes room for whatever a header promises. Nothing is unpickled.
"""

import os
import re
import struct
import zipfile
import zlib
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from zoo.storage.bounded import MOST_DEFLATION, check_size, open_regular
from zoo.tasks.formats.checks import MAX_BYTES, MOST_CLASSES, ImageSplit, join_images
from zoo.tasks.raw_data import RawImages
from zoo.tasks.toml_table import TomlTable, shown

METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
MAX_HEADER_BYTES = 10_000
CHUNK_BYTES = 1 << 20
# nothing in it can match in two ways: a long line that does not match takes no longer than one that does
HEADER = re.compile(rb"\{'descr': '([<>|=]?)(\w+)', 'fortran_order': (True|False), 'shape': \(([\d, ]*)\),? ?\}\s*")
MOST_DIGITS = 12


@dataclass(frozen=True)
class ArrayRule:
    """What an array may be, by the header of it and in words."""

    types: tuple[str, ...]
    dimensions: tuple[int, ...]
    allowed: str


IMAGES = ArrayRule(
    ("u1", "f2", "f4", "f8"),
    (3, 4),
    "images are [n, h, w] or [n, h, w, c], as uint8, or as floats from 0 to 1",
)
LABELS = ArrayRule(
    ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"),
    (1,),
    f"labels are whole numbers from 0 to {MOST_CLASSES - 1} of an integer type, in one dimension",
)
RULES = {"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES, "y_test": LABELS}


@dataclass(frozen=True)
class NpzData:
    """A file with ``x_train`` [n, h, w] or [n, h, w, c], ``y_train`` [n], ``x_test`` and ``y_test``.

    Images are uint8, or floats in [0, 1], which become ⌊255·x⌉.
    """

    path: str

    @classmethod
    def from_table(cls, table: TomlTable) -> "NpzData":
        return cls(table.text("path"))

    def read(self, base: Path) -> RawImages:
        path = base / self.path
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing: npz data are one file with the arrays {', '.join(RULES)}")
        arrays = read_arrays(path)
        train, test = (
            ImageSplit(
                pixels(arrays[f"x_{split}"], f"{path}: x_{split}"),
                torch.from_numpy(arrays[f"y_{split}"].astype(np.int64)),
                f"{path}: x_{split}",
                f"{path}: y_{split}",
            )
            for split in ("train", "test")
        )
        return join_images(path.stem, train, test)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The four arrays, once the archive's directory and their headers are known to be true."""
    with os.fdopen(open_regular(path), "rb") as file:
        check_size(file.fileno(), MAX_BYTES, path)
        try:
            with zipfile.ZipFile(file) as archive:
                members = find_members(archive, path)
                return {
                    name: read_array(archive, member, RULES[name], f"{path}: {name}")
                    for name, member in members.items()
                }
        # zipfile has no error of its own for encrypted members (RuntimeError) and for offsets out of range
        except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, OverflowError) as error:
            raise ValueError(f"{path} is damaged or not an npz file: {error}") from error


def find_members(archive: zipfile.ZipFile, path: Path) -> dict[str, zipfile.ZipInfo]:
    found = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
    for name in RULES:
        if name not in found:
            raise ValueError(f"{path}: {name} is missing: an npz file must hold {', '.join(RULES)}")
    members = {name: found[name] for name in RULES}
    total = sum(member.file_size for member in members.values())
    if total > MAX_BYTES:
        raise ValueError(f"{path}: its arrays unpack to {total:,} bytes, at most {MAX_BYTES:,} are read")
    return members


def read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, rule: ArrayRule, place: str) -> np.ndarray:
    """One array. The sizes of member and header must agree before room is made for either."""
    stored = os.fstat(archive.fp.fileno()).st_size if archive.fp else 0
    most = member.compress_size * (MOST_DEFLATION if member.compress_type == zipfile.ZIP_DEFLATED else 1)
    if member.compress_type not in METHODS:
        raise ValueError(f"{place} is packed by a method that NumPy does not use: write the file with np.savez")
    if member.compress_size > stored or member.file_size > most:
        raise ValueError(f"{place} is damaged: {member.file_size:,} bytes do not fit in it")
    with archive.open(member) as file:
        assert isinstance(file, zipfile.ZipExtFile)
        length, dtype, fortran, shape = read_header(file, rule, place)
        size = prod(shape) * dtype.itemsize
        if length + size != member.file_size:
            raise ValueError(
                f"{place} is damaged: its header promises {size:,} bytes, it holds {member.file_size - length:,}"
            )
        content = read_exactly(file, size, place)
    return np.frombuffer(content, dtype=dtype).reshape(shape, order="F" if fortran else "C")


def read_header(file: zipfile.ZipExtFile, rule: ArrayRule, place: str) -> tuple[int, np.dtype, bool, tuple[int, ...]]:
    """Length of an npy header, and what it says: type, whether columns come first, shape."""
    magic = file.read(8)
    if len(magic) < 8 or magic[:6] != b"\x93NUMPY" or magic[6] not in (1, 2, 3):
        raise ValueError(f"{place} is not a NumPy array")
    width = 2 if magic[6] == 1 else 4
    length = int.from_bytes(file.read(width), "little")
    header = HEADER.fullmatch(file.read(length)) if length <= MAX_HEADER_BYTES else None
    if header is None:
        raise ValueError(f"{place} is not a plain NumPy array: {rule.allowed}")
    order, kind, fortran, listed = (part.decode("ascii", "replace") for part in header.groups())
    sizes = listed.replace(",", " ").split()
    if max(map(len, sizes), default=0) > MOST_DIGITS:
        raise ValueError(f"{place} is damaged: its header promises a size of more than {MOST_DIGITS} digits")
    shape = tuple(map(int, sizes))
    check_header(kind, shape, rule, place)
    return 8 + width + length, np.dtype(f"{order}{kind}"), fortran == "True", shape


def check_header(kind: str, shape: tuple[int, ...], rule: ArrayRule, place: str) -> None:
    if kind not in rule.types:
        raise ValueError(f"{place} holds {named(kind)}: {rule.allowed}")
    if len(shape) not in rule.dimensions:
        raise ValueError(f"{place} has the shape {shown(shape)}: {rule.allowed}")
    if 0 in shape:
        raise ValueError(f"{place} is empty: its shape is {shape}")


def named(kind: str) -> str:
    """A type as people write it."""
    if kind == "O":
        return "Python objects, which are not read"
    return np.dtype(kind).name if kind in (*IMAGES.types, *LABELS.types, "b1") else f"type {kind[:20]}"


def read_exactly(file: zipfile.ZipExtFile, size: int, place: str) -> bytearray:
    content, filled = bytearray(size), 0
    while filled < size and (part := file.read(min(CHUNK_BYTES, size - filled))):
        content[filled : filled + len(part)] = part
        filled += len(part)
    if filled < size:
        raise ValueError(f"{place} is damaged: it ends after {filled:,} of {size:,} bytes")
    return content


def pixels(images: np.ndarray, place: str) -> UInt8[Tensor, "n height width *channels"]:
    """Bytes as they are, floats in [0, 1] as ⌊255·x⌉, some rows at a time."""
    if images.dtype == np.uint8:
        return torch.from_numpy(np.ascontiguousarray(images))
    rounded = np.empty(images.shape, dtype=np.uint8)
    rows = max(1, CHUNK_BYTES // prod(images.shape[1:]))
    for start in range(0, len(images), rows):
        part = images[start : start + rows].astype(np.float64)
        if not ((part >= 0) & (part <= 1)).all():
            wrong = part[~((part >= 0) & (part <= 1))][0]
            raise ValueError(f"{place} holds {wrong:g}: {IMAGES.allowed}")
        rounded[start : start + rows] = np.rint(255 * part)
    return torch.from_numpy(rounded)
