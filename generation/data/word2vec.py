"""The frozen word vectors of a task with texts: trained on these, or given ones reduced by PCA. Needs gensim."""

import importlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from generation.data.vectors_file import read_vectors
from zoo.tasks.embedding import WordEmbedding

SEED = 0
EPOCHS = 10
WINDOW = 5
MIN_COUNT = 5


def train_embedding(texts: Sequence[str], dim: int) -> WordEmbedding:
    """Word2Vec (CBOW) on the whitespace tokens of ``texts``: the same texts give the same bytes.

    One worker, because several would race; words ordered by count, then alphabetically, so no hash order enters.
    """
    Word2Vec = import_gensim("gensim.models").Word2Vec
    sentences = [text.split() for text in texts]
    counts = Counter(word for sentence in sentences for word in sentence)
    if max(counts.values(), default=0) < MIN_COUNT:
        raise ValueError(
            f"no word occurs {MIN_COUNT} times in the {len(texts):,} texts: too few to train word vectors on"
        )
    model = Word2Vec(vector_size=dim, window=WINDOW, min_count=MIN_COUNT, workers=1, seed=SEED, epochs=EPOCHS)
    ordered = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    model.build_vocab_from_freq(ordered, corpus_count=len(sentences))
    model.train(sentences, total_examples=len(sentences), epochs=EPOCHS)
    words = [str(word) for word in model.wv.index_to_key]
    return WordEmbedding.from_vectors(words, torch.from_numpy(model.wv.vectors.copy()))


def reduce_vectors(source: str, texts: Sequence[str], dim: int) -> WordEmbedding:
    """Vectors of a word2vec file, or of a name gensim can download, for the words of ``texts``, reduced by PCA.

    ``word2vec-google-news-300`` is what the paper used.
    """
    path = Path(source)
    if not path.is_file():
        path = Path(download_vectors(source))
    vocabulary, vectors = read_vectors(path, least_dimensions=dim)
    used = {word for text in texts for word in text.split()}
    rows = [row for row, word in enumerate(vocabulary) if word in used]
    if not rows:
        raise ValueError(f"{path}: none of its {len(vocabulary):,} words occurs in the {len(texts):,} texts")
    components = principal_components(vectors, dim)
    mean = vectors.mean(axis=0, dtype=np.float64)
    reduced = (vectors[rows] - mean) @ components
    return WordEmbedding.from_vectors([vocabulary[row] for row in rows], torch.from_numpy(reduced.astype(np.float32)))


def import_gensim(module: str) -> Any:
    """A module of gensim, or the line that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(
            "word vectors need gensim: `pip install 'small-transformer-zoo[generation]'`, or put a finished embedding "
            "(embedding.safetensors, vocabulary.json) into the output folder"
        ) from error


def download_vectors(name: str) -> str:
    """Path of vectors fetched by gensim's downloader; the loader code that comes with them is not run."""
    downloader = import_gensim("gensim.downloader")
    try:
        return downloader.load(name, return_path=True)
    except (OSError, ValueError) as error:
        raise FileNotFoundError(
            f"{name} is neither a word2vec file nor vectors that gensim could download: {error}"
        ) from error


def principal_components(vectors: np.ndarray, dim: int) -> np.ndarray:
    """The first ``dim`` principal axes as columns, each with its largest entry positive, from the covariance matrix."""
    centered = vectors - vectors.mean(axis=0, dtype=np.float64).astype(vectors.dtype)
    covariance = centered.T.astype(np.float64) @ centered / len(vectors)
    axes = np.linalg.eigh(covariance)[1][:, ::-1][:, :dim]
    signs = np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(dim)])
    return axes * signs
