"""The data of a task, by its file."""

from collections.abc import Callable
from pathlib import Path

from zoo.tasks.agnews import load_news
from zoo.tasks.embedding import WordEmbedding
from zoo.tasks.examples import TaskData
from zoo.tasks.formats import RawImages, RawTexts, read_data
from zoo.tasks.mnist import load_mnist
from zoo.tasks.task_file import TaskFile

PAPER_DATA: dict[str, Callable[[Path | None], RawImages | RawTexts]] = {"mnist": load_mnist, "agnews": load_news}
"""The paper's data can be downloaded, and is recognized by its content."""


def read_task(task: TaskFile, folder: Path | None) -> RawImages | RawTexts:
    """The data as its files hold it. ``folder`` takes the place of the one that the file's paths start from."""
    return PAPER_DATA[task.name](folder) if task.is_paper else read_data(task.data, folder or task.base)


def task_data(task: TaskFile, raw: RawImages | RawTexts, embedding: WordEmbedding | None = None) -> TaskData:
    """The data as a transformer of this task reads it, texts by an embedding."""
    if isinstance(raw, RawTexts):
        assert embedding is not None, "a task with words has an embedding"
        return raw.encode(embedding, task.text_spec(raw.classes))
    return raw.as_task(task.image_spec(*raw.size, raw.classes))
