"""A task's data for training, by name."""

from dataclasses import replace
from pathlib import Path

from generation.batches import train_subset
from generation.word2vec import reduce_vectors, train_embedding
from zoo.tasks import TaskData, WordEmbedding, load_mnist, load_news
from zoo.tasks.embedding import VECTORS_FILE


def load_task_data(
    task: str,
    folder: Path | None,
    *,
    embedding_folder: Path | None = None,
    vectors: str | None = None,
    train_examples: int | None = None,
) -> TaskData:
    """The task as tensors, whole, or with a random ``train_examples`` of its training set.

    AG News needs its frozen embedding: the one in ``embedding_folder`` where there is one; else from ``vectors`` (a
    file or a name that gensim knows), else trained on the training texts; then saved in ``embedding_folder``.
    """
    loaded = load_mnist(folder) if task == "mnist" else load_embedded_news(folder, embedding_folder, vectors)
    available = len(loaded.train)
    if train_examples is None or train_examples >= available:
        return loaded
    chosen = train_subset(available, train_examples / available)
    source = f"{loaded.source}, {train_examples:,} of {available:,} training examples"
    return replace(loaded, train=loaded.train[chosen], source=source)


def load_embedded_news(folder: Path | None, embedding_folder: Path | None, vectors: str | None) -> TaskData:
    """AG News as word ids of its frozen embedding, which is made here if there is none yet."""
    news = load_news(folder)
    if embedding_folder is not None and (embedding_folder / VECTORS_FILE).is_file():
        return news.encode(WordEmbedding.load(embedding_folder))
    texts = news.train.texts
    embedding = train_embedding(texts) if vectors is None else reduce_vectors(vectors, texts)
    if embedding_folder is not None:
        embedding.save(embedding_folder)
    return news.encode(embedding)
