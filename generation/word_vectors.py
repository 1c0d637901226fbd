"""The frozen word vectors of a task with texts: trained on these by gensim, random, or given ones reduced by PCA.

Given ones are a file in the format of word2vec, as text or as bytes, gzipped or not: ``words dimensions`` on the first
line, then each word, a blank, and its numbers. It is read here and not by gensim, which reads on until a line or a word
ends, however long it is.
"""

import gzip
import hashlib
import importlib
import io
import math
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from torch.nn import functional as F

from zoo.command import missing
from zoo.storage.atomic import write_atomically
from zoo.tasks.embedding import RESERVED, VECTORS_FILE, WordEmbedding
from zoo.tasks.formats import RawTexts
from zoo.tasks.task_file import TaskFile

ORIGIN_FILE = "embedding-origin.txt"
_SEED, _EPOCHS, _WINDOW, _MIN_COUNT = 0, 10, 5, 5  # of Word2Vec
_LEAST_SPREAD = 2.5
"""How far vectors must spread across their mean direction, in units of what Word2Vec starts from.

On few texts all words move in that direction alone. For 200 to 1,000 sentences, and up to 2,000 texts of AG News, it
is 1 to 2.5, and most transformers learn nothing, or less than with random vectors. It is 4 to 8 for 5,000 texts of AG
News, 31 for 48,000. The mean cosine of two words is no such sign: 0.54 for 200 sentences, 0.73 for 10,000 of AG News.
"""
_LONGEST_HEADER, _LONGEST_WORD, _LONGEST_NUMBER = 100, 1000, 32  # bytes
_MOST_COMPRESSION = 10
"""How many times its own size a gzipped file may hold: vectors are noise, and shrink to a half at best."""
_BUFFER_BYTES = 1 << 20


def frozen_embedding(task: TaskFile, raw: RawTexts, folder: Path | None, vectors: str | None) -> WordEmbedding:
    """The word vectors that all transformers of a zoo share: those in ``folder`` where there are some.

    Else they are made from ``vectors`` (a file or a name for gensim), or trained on the training texts or drawn at
    random as the task file has it, and saved in ``folder``. Where vectors are learned, there are only words: their
    vectors have no numbers.
    """
    dim = task.text_spec(raw.classes).dim
    make, origin = _train_embedding, f"trained on {raw.source}"
    kind = task.content.transformer.embedding
    drawn = kind in ("random", "learned")
    if drawn:
        if vectors is not None:
            raise ValueError(f'--vectors {vectors}: {task.where} has embedding = "{kind}"; use one or the other')
        make, origin = _random_embedding, f"random, for the words of {raw.source}"
        if kind == "learned":
            dim, origin = 0, f"learned, for the words of {raw.source}"
    elif vectors is not None:
        make, origin = partial(_reduce_vectors, vectors), f"{vectors}, reduced by PCA"
    if folder is not None and (folder / VECTORS_FILE).is_file():
        _check_origin(folder, origin)
        embedding = WordEmbedding.load(folder)
        if (found := embedding.table.shape[1]) != dim and kind != "learned":
            raise ValueError(f"{task.where}: [transformer] dim is {dim}, the word vectors in {folder} have {found}")
    else:
        embedding = make(raw.train.texts, dim)
        if folder is not None:
            write_atomically(folder / ORIGIN_FILE, origin.encode())
            embedding.save(folder)
    if not drawn:
        _warn_if_alike(embedding)
    return embedding


def _warn_if_alike(embedding: WordEmbedding) -> None:
    vectors = embedding.table[RESERVED:].double()
    direction = F.normalize(vectors.mean(dim=0), dim=0)
    spread = float((vectors - (vectors @ direction)[:, None] * direction).square().mean().sqrt())
    least = _LEAST_SPREAD / (math.sqrt(3) * vectors.shape[1])  # Word2Vec starts from uniform numbers up to 1/dim
    if spread < least:
        warnings.warn(
            f"the word vectors hardly differ (by {spread:.3f}, less than {least:.3f}), so transformers may learn "
            'nothing: take more texts, or set embedding = "random" in the [transformer] table of the task file',
            stacklevel=3,
        )


def _check_origin(folder: Path, origin: str) -> None:
    """Refuses an embedding that was made from other vectors or texts than these; one put there by hand is accepted."""
    recorded = folder / ORIGIN_FILE
    if recorded.is_file() and (before := recorded.read_text(encoding="utf-8", errors="replace")) != origin:
        raise ValueError(
            f"the word vectors in {folder} are '{before}', these would be '{origin}': "
            "choose another --out, since all runs of a zoo share one embedding"
        )


def _train_embedding(texts: Sequence[str], dim: int) -> WordEmbedding:
    """Word2Vec (CBOW) on the whitespace tokens of ``texts``: the same texts give the same bytes.

    One worker, because several would race; words ordered by count, then alphabetically, so no hash order enters.
    """
    Word2Vec = _import_gensim("gensim.models").Word2Vec
    counts = _word_counts(texts)
    model = Word2Vec(vector_size=dim, window=_WINDOW, min_count=_MIN_COUNT, workers=1, seed=_SEED, epochs=_EPOCHS)
    model.build_vocab_from_freq(counts, corpus_count=len(texts))
    model.train(_Sentences(texts), total_examples=len(texts), epochs=_EPOCHS)
    words = [str(word) for word in model.wv.index_to_key]
    return WordEmbedding.from_vectors(words, torch.from_numpy(model.wv.vectors.copy()))


def _random_embedding(texts: Sequence[str], dim: int) -> WordEmbedding:
    """Random vectors for the words that Word2Vec would have: uniform numbers of mean 0 and variance 1.

    A word alone decides its vector, in any task and on any machine.
    """
    words = [word for word, count in _word_counts(texts).items() if count >= _MIN_COUNT]
    keys = (int.from_bytes(hashlib.sha256(word.encode()).digest()[:16], "little") for word in words)
    uniform = np.stack([np.random.Generator(np.random.Philox(key=key)).random(dim, np.float32) for key in keys])
    return WordEmbedding.from_vectors(words, torch.from_numpy((2 * uniform - 1) * np.float32(math.sqrt(3))))


def _word_counts(texts: Sequence[str]) -> dict[str, int]:
    """How often each word occurs, the most frequent first; at least one must be frequent enough to have a vector."""
    counts = Counter(word for sentence in _Sentences(texts) for word in sentence)
    if max(counts.values(), default=0) < _MIN_COUNT:
        raise ValueError(f"no word occurs {_MIN_COUNT} times in the {len(texts):,} texts: too few to have word vectors")
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


@dataclass(frozen=True)
class _Sentences:
    """The words of each text, split anew in each epoch: those of all texts at once take many times their bytes."""

    texts: Sequence[str]

    def __iter__(self) -> Iterator[list[str]]:
        return (text.split() for text in self.texts)


def _reduce_vectors(source: str, texts: Sequence[str], dim: int) -> WordEmbedding:
    """Vectors of a word2vec file, or of a name gensim can download, for the words of ``texts``, reduced by PCA.

    ``word2vec-google-news-300`` is what the paper used.
    """
    path = Path(source)
    if not path.is_file():
        downloader = _import_gensim("gensim.downloader")
        try:
            # the path alone: the loader code that comes with the vectors is not run
            path = Path(downloader.load(source, return_path=True))
        except (OSError, ValueError) as error:
            raise FileNotFoundError(
                f"{source} is neither a word2vec file nor vectors that gensim could download: {error}"
            ) from error
    vocabulary, vectors = _read_vectors(path, least_dimensions=dim)
    used = {word for text in texts for word in text.split()}
    rows = [row for row, word in enumerate(vocabulary) if word in used]
    if not rows:
        raise ValueError(f"{path}: none of its {len(vocabulary):,} words occurs in the {len(texts):,} texts")
    components = _principal_components(vectors, dim)
    mean = vectors.mean(axis=0, dtype=np.float64)
    reduced = (vectors[rows] - mean) @ components
    return WordEmbedding.from_vectors([vocabulary[row] for row in rows], torch.from_numpy(reduced.astype(np.float32)))


def _import_gensim(module: str) -> Any:
    """A module of gensim, or an error with the way to install it."""
    if line := missing("making word vectors", ["gensim"]):
        raise ValueError(
            f"{line}, or put a finished embedding (embedding.safetensors, vocabulary.json) into the output folder"
        )
    return importlib.import_module(module)


def _principal_components(vectors: np.ndarray, dim: int) -> np.ndarray:
    """The first ``dim`` principal axes as columns, each with its largest entry positive, from the covariance matrix."""
    centered = vectors - vectors.mean(axis=0, dtype=np.float64).astype(vectors.dtype)
    covariance = centered.T.astype(np.float64) @ centered / len(vectors)
    axes = np.linalg.eigh(covariance)[1][:, ::-1][:, :dim]
    signs = np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(dim)])
    return axes * signs


def _read_vectors(path: Path, least_dimensions: int) -> tuple[list[str], Float32[np.ndarray, "words dim"]]:
    """The words, each once, and their vectors; whatever is wrong with the file is a ValueError that names it."""
    try:
        raw: Any = gzip.GzipFile(path) if path.suffix == ".gz" else path.open("rb", buffering=0)
        with io.BufferedReader(raw, _BUFFER_BYTES) as file:
            header = file.readline(_LONGEST_HEADER).split()
            if len(header) != 2 or not all(part.isdigit() for part in header):
                raise ValueError(f"its first line should be 'words dimensions', got {header}")
            words, dim = map(int, header)
            if words < 1:
                raise ValueError("it has no words")
            if dim < least_dimensions:
                raise ValueError(f"vectors of {dim} dimensions cannot be reduced to {least_dimensions}")
            # a number takes two bytes at least, a digit and a blank
            if words * dim * 2 > path.stat().st_size * (_MOST_COMPRESSION if path.suffix == ".gz" else 1):
                raise ValueError(f"{words:,} vectors of {dim:,} numbers do not fit in it")
            read_row = _read_text_row if _is_text(file) else _read_binary_row
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


def _is_text(file: io.BufferedReader) -> bool:
    """Whether the numbers of the next row are written out; a file's name may not show it."""
    try:
        float(file.peek(_LONGEST_WORD)[:_LONGEST_WORD].split(maxsplit=2)[1].decode("ascii"))
    except (ValueError, IndexError):
        return False
    return True


def _read_text_row(file: io.BufferedReader, dim: int) -> tuple[str, np.ndarray]:
    longest = _LONGEST_WORD + _LONGEST_NUMBER * dim
    line = file.readline(longest)
    word, *numbers = line.rstrip().split(b" ")
    if len(numbers) != dim or len(line) == longest:
        raise ValueError(f"a line of {len(numbers):,} numbers and {len(line):,} bytes where {dim} numbers should be")
    return word.decode(), np.array([float(number) for number in numbers], dtype=np.float32)


def _read_binary_row(file: io.BufferedReader, dim: int) -> tuple[str, np.ndarray]:
    word = bytearray()
    while (byte := file.read(1)) != b" ":
        if not byte or len(word) == _LONGEST_WORD:
            raise ValueError("a word without an end")
        word += byte
    data = file.read(4 * dim)
    if len(data) < 4 * dim:
        raise ValueError("it ends in the middle of a vector")
    # some writers end each vector with a line break, which the next word then begins with
    return word.lstrip(b"\n").decode(), np.frombuffer(data, dtype="<f4")
