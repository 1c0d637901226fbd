"""How transformers were trained, as a shard's manifest and a published zoo's both record it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from zoo.format.manifest import MAX_COUNT, is_sha256
from zoo.tasks.identity import SHORT_HASH, DataIdentity, shortfall
from zoo.transformer.spec import TransformerSpec

SHARED_SEED, DISTINCT_SEEDS = "shared", "distinct"
SEED_POLICIES = (SHARED_SEED, DISTINCT_SEEDS)
"""What can be chosen by name. A number of repeats is a policy too."""
SEEDS_SUFFIX, REPEATS_SUFFIX = "-seeds", "-repeats"
MIN_REPEATS, MAX_REPEATS = 2, 1000
R = TypeVar("R", bound="TrainingRecord")
TEXTS = ("task", "preset", "seeds", "data_source")


def config_name(task: str, seeds: str) -> str:
    """The config of the published zoo that such runs belong to.

    The task where all runs share a seed, ``TASK-seeds`` where each has its own, and ``TASK-repeats`` where each
    configuration is trained several times.
    """
    if repeats_of(seeds) is not None:
        return task + REPEATS_SUFFIX
    return task if seeds == SHARED_SEED else task + SEEDS_SUFFIX


def task_of(config: str) -> str:
    """The task of a config: ``mnist`` for ``mnist``, ``mnist-seeds`` and ``mnist-repeats``."""
    return config.removesuffix(SEEDS_SUFFIX).removesuffix(REPEATS_SUFFIX)


def repeats_of(seeds: str) -> int | None:
    """How often each configuration is trained, each time with another seed; None where it is trained once."""
    if seeds in SEED_POLICIES:
        return None
    # few digits: a manifest may hold any text
    number = int(seeds) if seeds.isascii() and seeds.isdecimal() and len(seeds) <= len(str(MAX_REPEATS)) else 0
    if not MIN_REPEATS <= number <= MAX_REPEATS or str(number) != seeds:
        raise ValueError(
            f"unknown seeds {seeds[:80]!r}: {', '.join(SEED_POLICIES)}, or how often to train each configuration, "
            f"{MIN_REPEATS} to {MAX_REPEATS}"
        )
    return number


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
    data: DataIdentity | None = field(default=None, kw_only=True)
    """None in records made before it was kept."""

    def __post_init__(self) -> None:
        """Refuses values of the wrong kind."""
        for name in TEXTS:
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} must be text, got {getattr(self, name)!r}")
        repeats_of(self.seeds)
        if not isinstance(self.protocol, dict):
            raise ValueError(f"protocol must be an object, got {self.protocol!r}")
        if not (self.embedding_sha256 is None or is_sha256(self.embedding_sha256)):
            raise ValueError(f"embedding_sha256 must be a hash, got {self.embedding_sha256!r}")
        if self.data is not None:
            check_data(self.data)

    @property
    def repeats(self) -> int | None:
        """How often each configuration was trained; None where once."""
        return repeats_of(self.seeds)

    def data_note(self) -> str | None:
        """What sets the data apart from the whole of the task's own, as the end of "was trained on"."""
        return shortfall(self.task, self.data_source, self.data)

    def training(self) -> dict[str, Any]:
        """The fields of this class alone, by name."""
        return {field.name: getattr(self, field.name) for field in fields(TrainingRecord)}

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain JSON-ready data, without ``data`` where it is not known."""
        plain = asdict(self) | {"spec": self.spec.to_dict()}
        return {name: value for name, value in plain.items() if name != "data" or value is not None}

    @classmethod
    def from_dict(cls: type[R], raw: Mapping[str, Any]) -> R:
        """The inverse of ``to_dict``. A field that is missing is a KeyError, an unknown one a ValueError."""
        names = [field.name for field in fields(cls)]
        values: dict[str, Any] = {name: raw[name] for name in names if name != "data"}
        values["data"] = None if raw.get("data") is None else DataIdentity(**raw["data"])
        if surplus := sorted(raw.keys() - values.keys()):
            raise ValueError(f"unknown field {surplus[0]!r}: there are {', '.join(names)}")
        values["spec"] = TransformerSpec(**values["spec"])
        return cls(**values)


def check_data(data: DataIdentity) -> None:
    """Refuses rows that are no count and hashes that are none."""
    for name in ("train_rows", "test_rows"):
        if type(getattr(data, name)) is not int or not 0 <= getattr(data, name) < MAX_COUNT:
            raise ValueError(f"{name} must be a whole number, got {getattr(data, name)!r}")
    for name in ("train_sha256", "test_sha256"):
        if not is_sha256(getattr(data, name)):
            raise ValueError(f"{name} must be a hash, got {getattr(data, name)!r}")


def check_same_data(records: Mapping[str, TrainingRecord]) -> None:
    """Refuses configs of one task that were trained or measured on different data, where both say on which."""
    first: dict[str, tuple[str, DataIdentity]] = {}
    for config, record in records.items():
        if record.data is None:
            continue
        other, data = first.setdefault(record.task, (config, record.data))
        if data != record.data:
            raise ValueError(
                f"{other} and {config} were trained on different data: {rows(data)} against {rows(record.data)}; "
                "they cannot be one zoo"
            )


def rows(data: DataIdentity) -> str:
    """How many, and the beginning of both hashes."""
    return (
        f"{data.train_rows:,} training rows ({data.train_sha256[:SHORT_HASH]}) and "
        f"{data.test_rows:,} test rows ({data.test_sha256[:SHORT_HASH]})"
    )
