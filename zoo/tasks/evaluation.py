"""Accuracy and loss of a transformer on its task's test set: the numbers a row of the zoo stores."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn import functional as F

from zoo.command import DEFAULT_NAME
from zoo.device import fast_small_products, single_threaded_workers
from zoo.format.manifest import MANIFEST_FILE
from zoo.format.published import PublishedZoo
from zoo.reading.locate import find_folder
from zoo.tasks.embedding import WordEmbedding
from zoo.tasks.examples import Examples, RawTexts, TaskData
from zoo.tasks.formats import CsvData
from zoo.tasks.paper_data import read_task, task_data
from zoo.tasks.task_file import NAMED_TASKS, TaskFile, find_task
from zoo.transformer.model import ZooTransformer
from zoo.transformer.population import fitting_examples

_TILE, _SMALLER_TILES = 100, (10, 1)
"""Examples the model sees at once. Matrix products round differently for different shapes, so the shape is fixed; it is
smaller where a large vocabulary has too many logits."""


class Evaluation(NamedTuple):
    """Share of examples classified correctly, and mean cross entropy; of language models, per token."""

    accuracy: float
    loss: float


def evaluate(
    model: ZooTransformer,
    task: str | Path | TaskData,
    *,
    data: str | Path | None = None,
    zoo: str | Path = DEFAULT_NAME,
    embedding: str | Path | WordEmbedding | None = None,
    batch_size: int = 1000,
    fetch: bool = False,
) -> Evaluation:
    """Measures ``model`` on the whole test set of ``task``.

    ``task`` is one of the paper's by name, the path of a task file, the name of a config or task of ``zoo``, whose
    manifest has the task file, the folder of a zoo, or data that is loaded already; ``data`` is the folder that the
    paths of its data start from. A transformer of texts reads words by the frozen embedding it was trained with: that
    of ``zoo``, the zoo it is from, found by name as ``zoo.open`` finds it; without a zoo, ``embedding`` is the
    embedding or its folder. Data that the manifest of a zoo names on the Hugging Face hub are downloaded only with
    ``fetch``. ``batch_size`` examples go to the device at a time; the model itself always sees tiles of ``_TILE``, the
    last one filled up, so the result is the same at every batch size, to the bit.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if not isinstance(task, TaskData):
        if (Path(task) / MANIFEST_FILE).is_file():
            task, zoo = model.spec.task, task
        file = _define_task(task, zoo, fetch)
        task = load_task(file, data, lambda: _find_embedding(zoo, file.name) if embedding is None else embedding)
    if task.spec.task != model.spec.task:
        raise ValueError(f"a transformer of {model.spec.task} cannot be evaluated on {task.spec.task}")
    if (last := int(task.test.labels.max())) >= model.spec.classes:
        raise ValueError(f"a transformer of {model.spec.classes:,} classes cannot be evaluated on the class {last:,}")
    return measure(model, task, task.test, max(1, batch_size // _TILE) * _TILE)


def _define_task(name: str | Path, zoo: str | Path, fetch: bool) -> TaskFile:
    """The file of a task: the paper's by name, one by its path, or by the name of its config or task that of a zoo."""
    if str(name) in NAMED_TASKS or Path(name).suffix == ".toml":
        return find_task(name)
    configs = PublishedZoo.read(find_folder(zoo, str(name))).configs
    for config, details in configs.items():
        if str(name) in (config, details.task):
            return details.definition(Path(), fetch=fetch)
    known = ", ".join(dict.fromkeys([*NAMED_TASKS, *configs]))
    raise ValueError(f"unknown task {str(name)!r}: {known}, the path of a TOML file, or a task of another zoo=FOLDER")


def load_task(task: TaskFile, data: str | Path | None, embedding: Callable[[], str | Path | WordEmbedding]) -> TaskData:
    """A task's data. ``embedding`` gives the one that its texts are read by, or the folder it lies in."""
    # a missing embedding should be reported before a long download of the data
    found = embedding() if isinstance(task.data, CsvData) else None
    raw = read_task(task, None if data is None else Path(data))
    if not isinstance(raw, RawTexts):
        return task_data(task, raw)
    found = embedding() if found is None else found
    return task_data(task, raw, found if isinstance(found, WordEmbedding) else WordEmbedding.load(Path(found)))


def _find_embedding(zoo: str | Path, task: str) -> Path:
    """The folder of the frozen embedding that a zoo's transformers read words by."""
    try:
        return find_folder(zoo, task) / task
    except FileNotFoundError as error:
        raise ValueError(
            f"{task} needs the frozen embedding of its transformer's zoo ({error}): name that with zoo=NAME, or pass "
            "embedding=FOLDER, where embedding.safetensors lies"
        ) from error


@torch.no_grad()
@fast_small_products()
def measure(model: ZooTransformer, task: TaskData, examples: Examples, chunk: int) -> Evaluation:
    """Accuracy and loss over ``examples``, moved to the model's device ``chunk`` at a time, a multiple of ``_TILE``.

    On a CPU each thread reads tiles of its own.
    """
    was_training = model.training
    model.eval()
    parameter = next(model.parameters())
    task = replace(task, embedding=task.embedding.to(parameter.device) if task.embedding else None)
    size = next(size for size in (_TILE, *_SMALLER_TILES) if size <= fitting_examples(task.spec, _TILE))

    @torch.no_grad()
    def answer(tile: Examples) -> tuple[int, float]:
        count, inputs = len(tile), tile.inputs
        if count < size:
            inputs = torch.cat([inputs, inputs[:1].expand(size - count, *inputs.shape[1:])])
        x, mask = task.model_inputs(inputs)
        logits = model(x if task.spec.vocabulary else x.to(parameter.dtype), mask)[:count]
        loss = float(F.cross_entropy(logits.double().flatten(0, -2), tile.labels.flatten(), reduction="sum"))
        return int((logits.argmax(dim=-1) == tile.labels).sum()), loss

    correct, loss = 0, 0.0
    threads = torch.get_num_threads() if parameter.device.type == "cpu" else 1
    with single_threaded_workers(threads) as pool:
        for start in range(0, len(examples), chunk):
            part = examples[slice(start, start + chunk)].to(parameter.device)
            for right, lost in pool.map(answer, (part[slice(at, at + size)] for at in range(0, len(part), size))):
                correct, loss = correct + right, loss + lost
    model.train(was_training)
    return Evaluation(correct / examples.labels.numel(), loss / examples.labels.numel())
