"""IDX, the file format of MNIST: a magic number, the sizes as big-endian integers, then bytes."""

import gzip
import zlib
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

UNSIGNED_BYTE = 0x08
MAX_BYTES = 1 << 27


def find_idx(folder: Path, stem: str) -> Path | None:
    """``stem`` in ``folder``, unzipped or gzipped; None where there is neither."""
    return next((path for path in (folder / stem, folder / f"{stem}.gz") if path.is_file()), None)


def read_idx(path: Path, dimensions: int) -> Tensor:
    """The bytes of an IDX file, gzipped or not, as a uint8 tensor with the given number of dimensions."""
    try:
        # never more than the limit: a few kilobytes of gzip may unpack to gigabytes
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged: {error}; delete it and fetch it again") from error
    if len(raw) > MAX_BYTES:
        raise ValueError(f"{path} holds more than {MAX_BYTES:,} bytes, MNIST's largest file has 47,040,016")
    header = 4 + 4 * dimensions
    if len(raw) < header or raw[:4] != bytes([0, 0, UNSIGNED_BYTE, dimensions]):
        raise ValueError(f"{path} is not an IDX file of bytes in {dimensions} dimensions; delete it and fetch it again")
    shape = tuple(int(size) for size in np.frombuffer(raw, dtype=">u4", count=dimensions, offset=4))
    if len(raw) != header + prod(shape):
        raise ValueError(
            f"{path} is damaged: its header promises {prod(shape):,} bytes of data, it holds {len(raw) - header:,}; "
            "delete it and fetch it again"
        )
    return torch.from_numpy(np.frombuffer(raw, dtype=np.uint8, offset=header).reshape(shape).copy())
