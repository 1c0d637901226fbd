"""The two tasks the zoo's transformers are trained on, as tensors."""

from zoo.tasks.agnews import load_news
from zoo.tasks.embedding import WordEmbedding
from zoo.tasks.examples import Examples, TaskData, normalize_pixels
from zoo.tasks.mnist import load_mnist
from zoo.tasks.raw_data import RawImages, RawTexts

__all__ = [
    "Examples",
    "RawImages",
    "RawTexts",
    "TaskData",
    "WordEmbedding",
    "load_mnist",
    "load_news",
    "normalize_pixels",
]
