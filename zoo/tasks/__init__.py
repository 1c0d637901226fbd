"""The two tasks the zoo's transformers are trained on, as tensors."""

from zoo.tasks.agnews import NewsTexts, load_news
from zoo.tasks.embedding import WordEmbedding
from zoo.tasks.examples import Examples, TaskData, normalize_pixels
from zoo.tasks.mnist import load_mnist

__all__ = ["Examples", "NewsTexts", "TaskData", "WordEmbedding", "load_mnist", "load_news", "normalize_pixels"]
