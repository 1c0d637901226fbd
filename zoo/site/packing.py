"""Data on its way into a page: JSON, gzipped, as text that can stand in HTML and in a script."""

import base64
import gzip
import json
from typing import Any

import numpy as np
from jaxtyping import Float64

DIGITS = 5
"""Significant digits of losses and curves. Accuracies are kept to the last bit: filters compare them."""


def packed(value: Any) -> str:
    """The JSON of a value, gzipped, in base64: no character of it means anything to HTML or JavaScript.

    The same value always gives the same text. NaN is an error: see ``plain``.
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode()


def unpacked(text: str) -> Any:
    """The inverse of ``packed``."""
    return json.loads(gzip.decompress(base64.b64decode(text)))


def plain(numbers: Any, digits: int | None = DIGITS) -> list[float | None]:
    """Numbers as JSON has them: rounded to significant digits, or float32 in as few as tell it from its neighbors.

    What is not finite, such as the loss of a run in the epoch it diverged in, is None.
    """
    array = np.asarray(numbers, dtype=np.float32)
    finite = np.isfinite(array)
    if digits is None:
        values = [float(str(number)) for number in array]
    else:
        values = rounded(np.where(finite, array, 0).astype(np.float64), digits).tolist()
    return [value if good else None for value, good in zip(values, finite.tolist(), strict=True)]


def rounded(numbers: Float64[np.ndarray, " n"], digits: int) -> Float64[np.ndarray, " n"]:
    """The nearest numbers of so many significant digits."""
    size = np.floor(np.log10(np.abs(numbers), where=numbers != 0, out=np.zeros_like(numbers)))
    shift = digits - 1 - size
    small, large = 10.0 ** np.maximum(shift, 0), 10.0 ** np.maximum(-shift, 0)
    return np.rint(numbers / large * small) / small * large


def as_bytes(shares: Any) -> str:
    """Numbers of [0, 1] as bytes 0 … 255, in base64."""
    return base64.b64encode(np.rint(np.asarray(shares) * 255).astype(np.uint8).tobytes()).decode()
