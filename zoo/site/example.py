"""One input of a task for every checkpoint to look at: from the data folder, else from what comes with a dependency."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo.reading.reader import ZooReader
from zoo.storage.cache import data_folder
from zoo.tasks.embedding import PADDING, RESERVED, WordEmbedding
from zoo.tasks.evaluation import load_task
from zoo.tasks.examples import TaskData
from zoo.tasks.paper_data import load_sample_digits
from zoo.transformer.spec import MNIST, TransformerSpec

MOST_WORDS = 24  # more do not fit beside each other
FEWEST_WORDS = 5
SENTENCE = "oil prices rose to a record high on monday as investors feared new attacks in iraq , analysts said"
UNKNOWN_WORD = "(unknown)"


@dataclass(frozen=True)
class Example:
    """An input as a ``ZooTransformer`` takes it, what a reader of the page sees of it, and where it comes from.

    ``label`` is its class, None where nobody gave it one.
    """

    inputs: Tensor
    mask: Tensor | None
    source: str
    label: int | None
    pixels: list[list[int]] | None = None
    words: list[str] | None = None

    def shown(self) -> dict[str, Any]:
        """The part that goes into a page."""
        return {"source": self.source, "label": self.label, "pixels": self.pixels, "words": self.words}


def find_example(reader: ZooReader, data: Path | None) -> Example | str:
    """An example for the transformers of a config, or in words why there is none."""
    spec, embedding, details = reader.spec, reader.embedding, reader.details
    definition = details.definition(Path.cwd())
    folder = data or (data_folder() if definition.is_paper else None)
    try:
        task = load_task(definition, folder, lambda: given(embedding))
        return image_example(spec, task) if spec.patch_size else text_example(task)
    except (OSError, ValueError) as error:
        # other data than these, or none: then something of our own, or the reason
        missing = str(error)
    if embedding is not None:
        return sentence_example(spec, embedding)
    if details.task == "mnist":
        try:
            return image_example(spec, load_sample_digits().as_task(MNIST))
        except FileNotFoundError as error:
            return str(error)
    return f"no example of {details.task} is at hand: {missing}"


def given(embedding: WordEmbedding | None) -> WordEmbedding:
    """The embedding that a zoo of texts comes with."""
    if embedding is None:
        raise ValueError("the zoo has no embedding to read texts by")
    return embedding


def image_example(spec: TransformerSpec, task: TaskData) -> Example | str:
    """The first test image; of several channels the page shows the mean."""
    image = task.test.inputs[0]
    height, width, *channels = image.shape
    patch = spec.patch_size or 1
    if (height // patch) * (width // patch) != spec.tokens or (channels or [1])[0] != spec.channels:
        return f"the images of {task.source} are {tuple(image.shape)}, which these transformers do not read"
    inputs, _ = task.model_inputs(task.test.inputs[:1])
    gray = image.float().mean(dim=-1).round().to(torch.uint8) if channels else image
    source = f"first test image of {task.source}"
    return Example(inputs, None, source, int(task.test.labels[0]), pixels=gray.tolist())


def text_example(task: TaskData) -> Example:
    """The first test text that is short enough to show; the beginning of the first where none is."""
    assert task.embedding is not None
    lengths = (task.test.inputs != PADDING).sum(dim=1)
    short = torch.nonzero((lengths >= FEWEST_WORDS) & (lengths <= MOST_WORDS)).flatten().tolist()
    number = short[0] if short else 0
    ids = task.test.inputs[number : number + 1, : min(int(lengths[number]), MOST_WORDS)]
    source = f"test text {number} of {task.source}"
    return of_words(task.embedding, ids, source, int(task.test.labels[number]))


def sentence_example(spec: TransformerSpec, embedding: WordEmbedding) -> Example:
    """A sentence of our own in the words that the embedding knows, else the first words of its vocabulary."""
    known = [word for word in SENTENCE.split() if word in embedding.ids]
    words, source = known, "a sentence of our own, not of the data"
    if len(known) < FEWEST_WORDS:
        words, source = list(embedding.vocabulary[:FEWEST_WORDS]), "the first words of the vocabulary, not of the data"
    words = words[: min(MOST_WORDS, spec.tokens)]
    ids = embedding.encode([" ".join(words)], spec.tokens)[:, : max(1, len(words))]
    return of_words(embedding, ids, source, None)


def of_words(embedding: WordEmbedding, ids: Tensor, source: str, label: int | None) -> Example:
    inputs, mask = embedding(ids)
    numbers = ids[0].tolist()
    words = [embedding.vocabulary[i - RESERVED] if i >= RESERVED else UNKNOWN_WORD for i in numbers]
    return Example(inputs, mask, source, label, words=words)
