"""How transformers were trained, as a shard's manifest and a published zoo's both record it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from zoo.format.manifest import is_sha256
from zoo.transformer.spec import TransformerSpec

SHARED_SEED, DISTINCT_SEEDS = "shared", "distinct"
SEED_POLICIES = (SHARED_SEED, DISTINCT_SEEDS)
SEEDS_SUFFIX = "-seeds"
R = TypeVar("R", bound="TrainingRecord")
TEXTS = ("task", "preset", "seeds", "data_source")


def config_name(task: str, seeds: str) -> str:
    """The config of the published zoo that such runs belong to: the task, or ``TASK-seeds`` with a seed for each."""
    return task if seeds == SHARED_SEED else task + SEEDS_SUFFIX


def task_of(config: str) -> str:
    """The task of a config: ``mnist`` for ``mnist`` and ``mnist-seeds``."""
    return config.removesuffix(SEEDS_SUFFIX)


@dataclass(frozen=True)
class TrainingRecord:
    """What all shards of a config have in common."""

    task: str
    spec: TransformerSpec
    preset: str
    protocol: dict[str, Any]
    seeds: str
    data_source: str
    embedding_sha256: str | None

    def __post_init__(self) -> None:
        """Refuses values of the wrong kind."""
        for name in TEXTS:
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} must be text, got {getattr(self, name)!r}")
        if not isinstance(self.protocol, dict):
            raise ValueError(f"protocol must be an object, got {self.protocol!r}")
        if not (self.embedding_sha256 is None or is_sha256(self.embedding_sha256)):
            raise ValueError(f"embedding_sha256 must be a hash, got {self.embedding_sha256!r}")

    def training(self) -> dict[str, Any]:
        """The fields of this class alone, by name."""
        return {field.name: getattr(self, field.name) for field in fields(TrainingRecord)}

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain JSON-ready data."""
        return asdict(self) | {"spec": self.spec.to_dict()}

    @classmethod
    def from_dict(cls: type[R], raw: Mapping[str, Any]) -> R:
        """The inverse of ``to_dict``. A field that is missing is a KeyError, an unknown one a ValueError."""
        names = [field.name for field in fields(cls)]
        values: dict[str, Any] = {name: raw[name] for name in names}
        if surplus := sorted(raw.keys() - values.keys()):
            raise ValueError(f"unknown field {surplus[0]!r}: there are {', '.join(names)}")
        values["spec"] = TransformerSpec(**values["spec"])
        return cls(**values)
