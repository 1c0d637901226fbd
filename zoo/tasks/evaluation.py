"""Accuracy and loss of a transformer on its task's test set: the numbers a row of the zoo stores."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn import functional as F

from zoo.reading.locate import DEFAULT_NAME, find_folder
from zoo.tasks import Examples, TaskData, WordEmbedding, load_mnist, load_news
from zoo.transformer.model import ZooTransformer
from zoo.transformer.onednn import fast_small_products
from zoo.transformer.spec import AGNEWS

TILE = 100
"""Examples the model sees at once. Matrix products round differently for different shapes, so the shape is fixed."""


class Evaluation(NamedTuple):
    """Share of examples classified rightly, and their mean cross entropy."""

    accuracy: float
    loss: float


def evaluate(
    model: ZooTransformer,
    task: str | TaskData,
    *,
    data: str | Path | None = None,
    zoo: str | Path = DEFAULT_NAME,
    embedding: str | Path | WordEmbedding | None = None,
    batch_size: int = 1000,
) -> Evaluation:
    """Measures ``model`` on the whole test set of ``task``.

    ``task`` is a name, whose data is read from the folder ``data``, or data that is loaded already. A transformer of AG
    News reads words by the frozen embedding it was trained with: that of ``zoo``, the zoo it is from, found by name as
    ``zoo.open`` finds it; an ``embedding`` without a zoo is given itself, or the folder it lies in. ``batch_size``
    examples go to the device at a time; the model itself always sees tiles of ``TILE``, the last one filled up, so the
    result is the same at every batch size, to the bit.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    loaded = (
        task
        if isinstance(task, TaskData)
        else load_task(task, data, find_embedding(zoo, task) if embedding is None else embedding)
    )
    if loaded.spec.task != model.spec.task:
        raise ValueError(f"a {model.spec.task} transformer cannot be evaluated on {loaded.spec.task}")
    return measure(model, loaded, loaded.test, max(1, batch_size // TILE) * TILE)


def load_task(task: str, data: str | Path | None, embedding: str | Path | WordEmbedding | None) -> TaskData:
    """A task's data by name; ``embedding``, or the folder it lies in, is for the one that has words."""
    folder = None if data is None else Path(data)
    if task == "mnist":
        return load_mnist(folder)
    if task == "agnews":
        assert embedding is not None, "a task with words has an embedding"
        loaded = embedding if isinstance(embedding, WordEmbedding) else WordEmbedding.load(Path(embedding))
        return load_news(folder).encode(loaded, AGNEWS)
    raise ValueError(f"unknown task {task!r}: the zoo has mnist and agnews")


def find_embedding(zoo: str | Path, task: str) -> Path | None:
    """The folder of the frozen embedding that a zoo's transformers read words by; None where the task has no words."""
    if task != "agnews":
        return None
    try:
        return find_folder(zoo, task) / task
    except FileNotFoundError as error:
        raise ValueError(
            f"agnews needs the frozen embedding of its transformer's zoo ({error}): name that with zoo=NAME, or pass "
            "embedding=FOLDER, where embedding.safetensors lies"
        ) from error


@torch.no_grad()
@fast_small_products()
def measure(model: ZooTransformer, task: TaskData, examples: Examples, chunk: int) -> Evaluation:
    """Accuracy and loss over ``examples``, moved to the model's device ``chunk`` (a multiple of ``TILE``) at a time."""
    was_training = model.training
    model.eval()
    device, dtype = model.positions.device, model.classifier.fc1.weight.dtype
    task = replace(task, embedding=task.embedding.to(device) if task.embedding else None)
    correct, loss = 0, 0.0
    for start in range(0, len(examples), chunk):
        part = examples[slice(start, start + chunk)].to(device)
        for tile_start in range(0, len(part), TILE):
            tile = part[slice(tile_start, tile_start + TILE)]
            count = len(tile)
            inputs = tile.inputs
            if count < TILE:
                inputs = torch.cat([inputs, inputs[:1].expand(TILE - count, *inputs.shape[1:])])
            x, mask = task.model_inputs(inputs)
            logits = model(x.to(dtype), mask)[:count]
            correct += int((logits.argmax(dim=1) == tile.labels).sum())
            loss += float(F.cross_entropy(logits.double(), tile.labels, reduction="sum"))
    model.train(was_training)
    return Evaluation(correct / len(examples), loss / len(examples))
