"""Word vectors in the format of word2vec, as text or as bytes, gzipped or not.

``words dimensions`` on the first line, then each word, a blank, and its numbers. Read here and not by gensim, which
reads on until a line or a word ends, however long it is.
"""

import gzip
import io
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

LONGEST_HEADER, LONGEST_WORD, LONGEST_NUMBER = 100, 1000, 32  # bytes
MOST_COMPRESSION = 10
"""How many times its own size a gzipped file may hold: vectors are noise, and shrink to a half at best."""
BUFFER_BYTES = 1 << 20


def read_vectors(path: Path, least_dimensions: int) -> tuple[list[str], Float32[np.ndarray, "words dim"]]:
    """The words, each once, and their vectors; whatever is wrong with the file is a ValueError that names it."""
    try:
        with open_buffered(path) as file:
            words, dim = read_header(file)
            if words < 1:
                raise ValueError("it has no words")
            if dim < least_dimensions:
                raise ValueError(f"vectors of {dim} dimensions cannot be reduced to {least_dimensions}")
            # a number takes two bytes at least, a digit and a blank
            if words * dim * 2 > path.stat().st_size * (MOST_COMPRESSION if path.suffix == ".gz" else 1):
                raise ValueError(f"{words:,} vectors of {dim:,} numbers do not fit in it")
            read_row = read_text_row if is_text(file) else read_binary_row
            vocabulary: dict[str, int] = {}
            vectors = np.empty((words, dim), dtype=np.float32)
            for _ in range(words):
                word, vector = read_row(file, dim)
                if not np.isfinite(vector).all():
                    raise ValueError(f"a number of the vector of {word!r} is not finite")
                vectors[vocabulary.setdefault(word, len(vocabulary))] = vector
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise ValueError(f"{path} is damaged or not a word2vec file: {error}") from error
    return list(vocabulary), vectors[: len(vocabulary)]


def open_buffered(path: Path) -> io.BufferedReader:
    raw: Any = gzip.GzipFile(path) if path.suffix == ".gz" else path.open("rb", buffering=0)
    return io.BufferedReader(raw, BUFFER_BYTES)


def read_header(file: io.BufferedReader) -> tuple[int, int]:
    first = file.readline(LONGEST_HEADER).split()
    if len(first) != 2 or not all(part.isdigit() for part in first):
        raise ValueError(f"its first line should be 'words dimensions', got {first}")
    words, dim = (int(part) for part in first)
    return words, dim


def is_text(file: io.BufferedReader) -> bool:
    """Whether the numbers of the next row are written out; a name says little about it."""
    try:
        float(file.peek(LONGEST_WORD)[:LONGEST_WORD].split(maxsplit=2)[1].decode("ascii"))
    except (ValueError, IndexError):
        return False
    return True


def read_text_row(file: io.BufferedReader, dim: int) -> tuple[str, np.ndarray]:
    longest = LONGEST_WORD + LONGEST_NUMBER * dim
    line = file.readline(longest)
    word, *numbers = line.rstrip().split(b" ")
    if len(numbers) != dim or len(line) == longest:
        raise ValueError(f"a line of {len(numbers):,} numbers and {len(line):,} bytes where {dim} numbers should be")
    return word.decode(), np.array([float(number) for number in numbers], dtype=np.float32)


def read_binary_row(file: io.BufferedReader, dim: int) -> tuple[str, np.ndarray]:
    word = bytearray()
    while (byte := file.read(1)) != b" ":
        if not byte or len(word) == LONGEST_WORD:
            raise ValueError("a word without an end")
        word += byte
    data = file.read(4 * dim)
    if len(data) < 4 * dim:
        raise ValueError("it ends in the middle of a vector")
    # some writers end each vector with a line break, which the next word then begins with
    return word.lstrip(b"\n").decode(), np.frombuffer(data, dtype="<f4")
