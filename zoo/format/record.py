"""How transformers were trained, as a shard's manifest and a published zoo's both record it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from zoo.checked import Sha256, checked
from zoo.format.hyperparameters import DISTINCT_SEEDS, repeats_of
from zoo.format.recipe import epochs_of_checkpoints, hashed_configuration, run_id, seeds_by_policy
from zoo.format.schema import BEST
from zoo.tasks.identity import SHORT_HASH, DataIdentity, shortfall
from zoo.tasks.task_file import NAMED_TASKS, TaskFile
from zoo.transformer.spec import TransformerSpec

_SEEDS_SUFFIX, _REPEATS_SUFFIX = "-seeds", "-repeats"
_R = TypeVar("_R", bound="TrainingRecord")
_Epoch = Annotated[int, Meta(ge=1, lt=10**5)]
_Epochs = Annotated[tuple[_Epoch, ...], Meta(min_length=1)] | None


def config_name(task: str, seeds: str) -> str:
    """The config of the published zoo that these runs belong to.

    ``TASK-repeats`` where each configuration is trained several times, else the task; but the paper's tasks are
    ``TASK-seeds`` where each run has a seed of its own.
    """
    if repeats_of(seeds) is not None:
        return task + _REPEATS_SUFFIX
    return task + _SEEDS_SUFFIX if task in NAMED_TASKS and seeds == DISTINCT_SEEDS else task


def task_of(config: str) -> str:
    """The task of a config: ``mnist`` for ``mnist``, ``mnist-seeds`` and ``mnist-repeats``."""
    return config.removesuffix(_SEEDS_SUFFIX).removesuffix(_REPEATS_SUFFIX)


@dataclass(frozen=True)
class TrainingRecord:
    """The facts that all shards of a config share."""

    task: str
    spec: TransformerSpec
    preset: str
    protocol: dict[str, Any]
    seeds: str
    data_source: str
    embedding_sha256: Sha256 | None
    data: DataIdentity | None = field(default=None, kw_only=True)
    """None in records made before it was kept."""
    task_file: str | None = field(default=None, kw_only=True)
    """The text of the task file; None for named tasks, whose files are in this package."""
    characters: str | None = field(default=None, kw_only=True)
    """Those that the tokens of language models stand for, in order; None for other transformers."""

    def __post_init__(self) -> None:
        """Refuses a record that contradicts itself."""
        repeats_of(self.seeds)
        epochs = checked(self.protocol.get("checkpoint_epochs"), _Epochs, "checkpoint_epochs ")
        if epochs is not None and sorted(set(epochs)) != list(epochs):
            raise ValueError(f"checkpoint_epochs must be ascending epochs, got {str(epochs)[:80]}")
        checked(self.protocol.get("epochs"), _Epoch, "epochs ")
        self._check_task()
        needed, given = self.spec.classes if self.spec.causal else 0, self.characters or ""
        if len(given) != needed or list(given) != sorted(set(given)):
            order = "different characters are needed, in the order of their code points"
            raise ValueError(f"{needed} {order}, got {given[:80]!r}")

    def _check_task(self) -> None:
        """Refuses a task that is not the paper's and has no file, or whose file describes other transformers.

        The name of a task becomes part of paths. Only a task file has names that are safe there.
        """
        if self.spec.task != self.task:
            raise ValueError(f"the task is {self.task!r}, but its spec is that of {self.spec.task!r}")
        if self.task in NAMED_TASKS and self.task_file is None:
            return
        if not isinstance(self.task_file, str):
            raise ValueError(
                f"unknown task {self.task!r}: {', '.join(NAMED_TASKS)}, or one that comes with a task_file"
            )
        file = TaskFile.own(self.task_file, "task_file", Path())
        different = [name for name, value in file.dimensions.items() if getattr(self.spec, name) != value]
        if file.name != self.task or different:
            what = f"{different[0]} of {file.name}" if different else file.name
            raise ValueError(f"the task_file is about {what}, the transformers are not: {self.spec}")

    def definition(self, base: Path, *, fetch: bool = False) -> TaskFile:
        """The task file, with paths that start from ``base``. It may be a stranger's: data are fetched on request."""
        if self.task_file is None:
            return TaskFile.named(self.task)
        return replace(TaskFile.own(self.task_file, f"the task file of {self.task}", base), fetch=fetch)

    @property
    def checkpoints(self) -> tuple[str, ...]:
        """The checkpoints that every completed run has, in order."""
        return self.checkpoints_among(None)

    def checkpoints_among(self, kept: Sequence[str] | None) -> tuple[str, ...]:
        """Those of these names, in order, or for None all that were taken; a name of no checkpoint is a ValueError."""
        taken = (*epochs_of_checkpoints(self.protocol), BEST)
        if kept is not None and not (kept and set(kept) <= set(taken)):
            raise ValueError(f"checkpoints of {self.task} are {', '.join(taken)}, got {', '.join(kept) or 'none'}")
        return tuple(name for name in taken if kept is None or name in kept)

    def run_id(self, hyperparameters: Mapping[str, Any]) -> str:
        """The id of the run with these hyperparameters."""
        return run_id(hashed_configuration(hyperparameters, self.task, self.protocol, self._task_sha256))

    def seeds_of(self, hyperparameters: Mapping[str, Any]) -> list[int]:
        """The seeds that the policy gives to this configuration."""
        return seeds_by_policy(self.seeds, hyperparameters, self.task)

    @cached_property
    def _task_sha256(self) -> str | None:
        return None if self.task_file is None else self.definition(Path()).sha256

    @property
    def usual_checkpoint(self) -> str:
        """The one nearest to 75 % of the epochs, which the paper's tables are about."""
        if self.protocol.get("checkpoint_epochs") is None and "epoch_75" in self.checkpoints:
            return "epoch_75"
        wanted, epochs = 0.75 * self.protocol["epochs"], epochs_of_checkpoints(self.protocol)
        return min(self.checkpoints, key=lambda label: abs(epochs.get(label, math.inf) - wanted))

    @property
    def repeats(self) -> int | None:
        """How often each configuration was trained; None if once."""
        return repeats_of(self.seeds)

    def data_note(self) -> str | None:
        """How the data differ from the whole of the task's own, as the end of "was trained on"."""
        return shortfall(self.task, self.data_source, self.data)

    def training(self) -> dict[str, Any]:
        """The fields of this class, without those of subclasses, by name."""
        return {field.name: getattr(self, field.name) for field in fields(TrainingRecord)}

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain JSON-ready data, without those that have their default, which older manifests lack."""
        plain = asdict(self) | {"spec": self.spec.to_dict()}
        return {field.name: plain[field.name] for field in fields(self) if plain[field.name] != field.default}

    @classmethod
    def from_dict(cls: type[_R], raw: Mapping[str, Any]) -> _R:
        """The inverse of ``to_dict``; a field that is missing, unknown or of the wrong type is a ValueError."""
        return checked(raw, cls, "")


def check_same_data(records: Mapping[str, TrainingRecord]) -> None:
    """Refuses configs of one task with different files or, where both record them, different data."""
    first: dict[str, tuple[str, DataIdentity]] = {}
    files: dict[str, str | None] = {}
    for config, record in records.items():
        if files.setdefault(record.task, record.task_file) != record.task_file:
            raise ValueError(f"{config} and another config of {record.task} have different task files: not one zoo")
        if record.data is None:
            continue
        other, data = first.setdefault(record.task, (config, record.data))
        if data != record.data:
            raise ValueError(
                f"{other} and {config} were trained on different data: {_rows(data)} against {_rows(record.data)}; "
                "they cannot be one zoo"
            )


def _rows(data: DataIdentity) -> str:
    """The numbers of rows, and the beginning of both hashes."""
    return (
        f"{data.train_rows:,} training rows ({data.train_sha256[:SHORT_HASH]}) and "
        f"{data.test_rows:,} test rows ({data.test_sha256[:SHORT_HASH]})"
    )
