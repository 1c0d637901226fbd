"""IDX, the file format of MNIST: a magic number, the sizes as big-endian integers, then bytes."""

import gzip
import zlib
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from zoo.storage.bounded import MOST_DEFLATION
from zoo.tasks.formats.checks import MAX_BYTES, ImageSplit, join_images
from zoo.tasks.raw_data import RawImages
from zoo.tasks.toml_table import TomlTable

UNSIGNED_BYTE = 0x08
STEMS = {"train": "train", "test": "t10k"}


@dataclass(frozen=True)
class IdxData:
    """A folder with the four files of MNIST, Fashion-MNIST or KMNIST, each plain or gzipped; images of any size."""

    path: str

    @classmethod
    def from_table(cls, table: TomlTable) -> "IdxData":
        return cls(table.text("path"))

    def read(self, base: Path) -> RawImages:
        folder = base / self.path
        for split in STEMS:
            for stem in stems(split):
                if find_idx(folder, stem) is None:
                    raise FileNotFoundError(
                        f"{folder / stem}[.gz] is missing: idx data are a folder with images and labels to train and "
                        "to test on, named like those of MNIST"
                    )
        return join_images(folder.resolve().name, read_split(folder, "train"), read_split(folder, "test"))


def stems(split: str) -> tuple[str, str]:
    """The names of a split's images and labels."""
    return f"{STEMS[split]}-images-idx3-ubyte", f"{STEMS[split]}-labels-idx1-ubyte"


def find_idx(folder: Path, stem: str) -> Path | None:
    """``stem`` in ``folder``, unzipped or gzipped; None where there is neither."""
    return next((path for path in (folder / stem, folder / f"{stem}.gz") if path.is_file()), None)


def read_split(folder: Path, split: str) -> ImageSplit:
    """Images and labels of a split whose files are there."""
    images, labels = (find_idx(folder, stem) or folder / stem for stem in stems(split))
    return ImageSplit(read_idx(images, 3), read_idx(labels, 1), str(images), str(labels))


def read_idx(path: Path, dimensions: int) -> Tensor:
    """The bytes of an IDX file, gzipped or not, as a uint8 tensor with the given number of dimensions."""
    zipped = path.suffix == ".gz"
    try:
        with gzip.open(path) if zipped else path.open("rb") as file:
            shape = read_shape(file.read(4 + 4 * dimensions), path, dimensions)
            size = prod(shape)
            check_promise(path, size, path.stat().st_size - (0 if zipped else 4 + 4 * dimensions), zipped)
            content = file.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged: {error}; delete it and fetch it again") from error
    if len(content) != size:
        raise broken_promise(path, size, f"{len(content):,}" if len(content) < size else "more")
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8).reshape(shape).copy())


def read_shape(header: bytes, path: Path, dimensions: int) -> tuple[int, ...]:
    if len(header) < 4 + 4 * dimensions or header[:4] != bytes([0, 0, UNSIGNED_BYTE, dimensions]):
        raise ValueError(f"{path} is not an IDX file of bytes in {dimensions} dimensions; delete it and fetch it again")
    return tuple(int(size) for size in np.frombuffer(header, dtype=">u4", offset=4))


def check_promise(path: Path, size: int, stored: int, zipped: bool) -> None:
    """Refuses a header that cannot be true before room is made for what it promises.

    A few kilobytes of gzip may unpack to megabytes, and may be followed by gigabytes of padding.
    """
    if size > MAX_BYTES:
        raise ValueError(f"{path} holds {size:,} bytes, at most {MAX_BYTES:,} are read")
    if not zipped and size != stored:
        raise broken_promise(path, size, f"{stored:,}")
    if zipped and size > MOST_DEFLATION * stored:
        raise broken_promise(path, size, "less")
    if zipped and stored > 2 * size + 1024:
        raise broken_promise(path, size, "more")


def broken_promise(path: Path, size: int, held: str) -> ValueError:
    return ValueError(
        f"{path} is damaged: its header promises {size:,} bytes of data, it holds {held}; delete it and fetch it again"
    )
