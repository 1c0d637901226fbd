"""A task's data for training, by name."""

from pathlib import Path

from generation.word2vec import reduce_vectors, train_embedding
from zoo.tasks import TaskData, WordEmbedding, load_mnist, load_news
from zoo.tasks.embedding import VECTORS_FILE


def load_task_data(
    task: str, folder: Path | None, *, embedding_folder: Path | None = None, vectors: str | None = None
) -> TaskData:
    """The whole task as tensors.

    AG News needs its frozen embedding: the one in ``embedding_folder`` where there is one; else from ``vectors`` (a
    file or a name that gensim knows), else trained on the training texts; then saved in ``embedding_folder``.
    """
    if task == "mnist":
        return load_mnist(folder)
    news = load_news(folder)
    if embedding_folder is not None and (embedding_folder / VECTORS_FILE).is_file():
        return news.encode(WordEmbedding.load(embedding_folder))
    texts = news.train.texts
    embedding = train_embedding(texts) if vectors is None else reduce_vectors(vectors, texts)
    if embedding_folder is not None:
        embedding.save(embedding_folder)
    return news.encode(embedding)
