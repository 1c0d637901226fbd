"""Every measured number is a row: a typed record, one line of JSON in ``benchmarks/results/<benchmark>.jsonl``.

Tables and plots are made from these rows and from nothing else; ``ResultIndex`` looks them up.
"""

import functools
import itertools
import json
import os
import platform
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from msgspec import Meta

from benchmarks.statistics import interval_of, standard_error
from zoo.checked import LARGEST, Count, Text, check_fields, checked
from zoo.device import name_device
from zoo.format.record import task_of
from zoo.format.schema import usual_label
from zoo.reading.selection import Selection
from zoo.storage.atomic import exclusive, write_atomically
from zoo.storage.untrusted import parse_json, read_bounded
from zoo.transformer.spec import SPECS

_COMMITTED = Path(__file__).parent / "results"
FOLDER = _COMMITTED if _COMMITTED.is_dir() else Path("results")
"""The folder of rows: the committed ones of a clone; for an installed package, a folder in the current one."""
_MAX_BYTES = 64 << 20
"""The most that is read from a file of rows; the largest has 11 MB."""
_OfTrials = Literal["kendall", "ablation_components", "ablation_width", "augmentation", "transfer", "rows"]
_OfZoos = Literal["recipe", "scale", "curves", "census", "fidelity", "fresh", "merge"]
_OfMachines = Literal["speed.generation", "speed.loader", "speed.nfn", "soak"]
_Benchmark = Literal[_OfTrials, _OfZoos, _OfMachines]
_Finite = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
_WRITTEN_FIRST = ("benchmark", "config", "model", "variant", "setting", "metric", "value", "stderr", "n")
Scalar = str | int | float | bool | None
Setting = dict[str, Scalar | list[Scalar]]
Value = Scalar | Sequence[str] | Sequence[int]
"""A setting, as a table asks for it."""


@dataclass(frozen=True)
class Result:
    """One number, how it was measured, and what it takes to measure it again.

    ``model`` names a predictor, ``variant`` anything else that is compared; a row has one of them. ``setting`` holds
    the other choices (threshold, components, channels, batch size …). ``value`` is the mean or median of ``n``
    measurements and ``stderr`` their standard error, None for a single measurement.
    """

    benchmark: _Benchmark
    config: Text
    metric: Text
    value: _Finite
    n: Count
    device: Text
    versions: dict[str, str]
    command: Text
    commit: Text
    date: Text
    stderr: _Finite | None = None
    model: str | None = None
    variant: str | None = None
    setting: Setting = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)
        if (self.model is None) == (self.variant is None):
            raise ValueError(f"a row has a model or a variant, got model={self.model!r} and variant={self.variant!r}")

    @classmethod
    def measured(
        cls,
        benchmark: str,
        config: str,
        metric: str,
        value: float,
        stderr: float | None = None,
        *,
        device: torch.device | str,
        packages: Sequence[str] = ("torch",),
        **others: Any,
    ) -> Self:
        """A row measured by this process, on a device of torch or one in words; the rest is filled in."""
        return cls(
            benchmark,  # pyright: ignore[reportArgumentType]
            config,
            metric,
            value,
            device=device if isinstance(device, str) else describe_device(device),
            versions={"python": platform.python_version()} | {name: _installed_version(name) for name in packages},
            stderr=stderr,
            command=" ".join(["python", *sys.orig_argv[1:]]),
            commit=current_commit(),
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            **others,
        )

    @classmethod
    def estimated(
        cls, benchmark: str, config: str, metric: str, values: Sequence[float], resampled: Any = None, **others: Any
    ) -> list[Self]:
        """The mean of some measurements with its error, and the ends of the interval that its resampled values give."""
        numbers = {metric: (float(np.mean(values)), standard_error(values))}
        if ends := None if resampled is None else interval_of(resampled):
            numbers |= {f"{metric}_low": (ends[0], None), f"{metric}_high": (ends[1], None)}
        others = {"n": len(values)} | others
        return [cls.measured(benchmark, config, name, *both, **others) for name, both in numbers.items()]

    def identity(self) -> str:
        """The thing that was measured. The last of several rows with the same identity counts."""
        what = (self.benchmark, self.config, self.model, self.variant, self.metric, self.setting)
        return json.dumps(what, sort_keys=True)

    def to_dict(self) -> dict[str, Any]:
        """Plain data in a fixed order; only one of model and variant, the one that is set."""
        row = {name: getattr(self, name) for name in (*_WRITTEN_FIRST, *self.__dataclass_fields__)}
        del row["variant" if self.variant is None else "model"]
        return row


def append(rows: Iterable[Result], folder: Path = FOLDER) -> None:
    """Adds the rows to the files of their benchmarks, but for those that were last measured with the same result.

    A file is replaced as a whole, so it never holds half a row, and writers wait for each other.
    """
    name, outcome = attrgetter("benchmark"), attrgetter("value", "stderr", "n", "device")
    folder.mkdir(parents=True, exist_ok=True)
    for benchmark, measured in itertools.groupby(sorted(rows, key=name), name):
        path = folder / f"{benchmark}.jsonl"
        with exclusive(folder, busy=None):
            last = {row.identity(): outcome(row) for row in read(benchmark, folder)}
            before = path.read_bytes() if path.exists() else b""
            end = "" if not before or before.endswith(b"\n") else "\n"
            added = (row.to_dict() for row in measured if outcome(row) != last.get(row.identity()))
            lines = [f"{json.dumps(row, ensure_ascii=False, allow_nan=False)}\n" for row in added]
            if lines:
                write_atomically(path, before + "".join([end, *lines]).encode())


def read(benchmark: str, folder: Path = FOLDER) -> list[Result]:
    """All rows of a benchmark, each checked; none if it was never run."""
    path = folder / f"{benchmark}.jsonl"
    if not path.exists():
        return []
    return list(_parsed(path.name, read_bounded(path, _MAX_BYTES)))


@functools.lru_cache(maxsize=16)
def _parsed(name: str, data: bytes) -> tuple[Result, ...]:
    """The rows in a file's bytes, kept: a report asks dozens of times for files of thousands of rows."""
    places = ((f"{name}, line {number}: ", line) for number, line in enumerate(data.splitlines(), start=1))
    return tuple(checked(parse_json(line, f"{place}the row"), Result, place) for place, line in places)


def usual_label_of(config: str) -> str:
    """The label that ranks the runs of a config, by its task; that of a task which is not known is test accuracy."""
    spec = SPECS.get(task_of(config))
    return "test_accuracy" if spec is None else usual_label(spec)[0]


def named_label(label: str) -> str | None:
    """A label as a setting has it: None for test accuracy, which older rows do not name."""
    return None if label == "test_accuracy" else label


def describe_device(device: torch.device) -> str:
    """What a number was measured on, in words: the name of the GPU, or the number of CPU threads that torch uses."""
    return name_device(device) + (f", {platform.machine()}" if device.type == "cpu" else "")


_installed_version = functools.cache(metadata.version)
"""Asked once per process, like the commit: a table has hundreds of rows."""


@functools.cache
def current_commit() -> str:
    """``$ZOO_COMMIT`` if it is set, else the commit of the working tree, with ``+`` if tracked files differ from it."""
    if commit := os.environ.get("ZOO_COMMIT"):
        return commit
    try:
        git = ["git", "-C", str(_COMMITTED.parent)]
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "*.py"], capture_output=True, check=False)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + ("+" if changed.returncode else "")


@dataclass(frozen=True)
class ResultIndex:
    """The rows of one table: of one benchmark, config, selection and label, and of the last zoo, checkpoint, epochs."""

    rows: tuple[Result, ...]

    @classmethod
    def latest(cls, rows: Iterable[Result], config: str, where: str | None = None, **parts: Any) -> "ResultIndex":
        """The rows of a config and a selection (None: of all checkpoints), only those of the last zoo and number of
        epochs.

        ``parts`` are other settings that they have: the number of ``folds`` (if it is not given: the zoo's own splits),
        the ``label`` (the usual one of the config's task), the ``label_checkpoint`` (that of the weights) and the
        ``checkpoint`` (the last one). Rows of test accuracy have no label in their setting. ``beside`` names a model:
        then zoo, checkpoint and, where it has them, epochs are the last of its rows.
        """
        selection = None if where is None else Selection.parse(where).expression
        what = {"where": selection, "folds": None, "label_checkpoint": None} | parts
        what["label"] = named_label(what.get("label") or usual_label_of(config))
        checkpoint, beside = what.pop("checkpoint", None), what.pop("beside", None)
        own = (row for row in rows if row.config == config)
        kept = [row for row in own if all(row.setting.get(name) == value for name, value in what.items())]
        if checkpoint is not None:
            kept = [row for row in kept if row.setting.get("checkpoint", checkpoint) == checkpoint]
        kept = kept if beside in (None, *(row.model for row in kept)) else []
        for name in ("zoo", "checkpoint", "epochs"):
            having = sorted((row for row in kept if name in row.setting), key=lambda row: beside in (None, row.model))
            last = having[-1].setting[name] if having else None
            kept = [row for row in kept if row.setting.get(name, last) == last]
        return cls(tuple({row.identity(): row for row in kept}.values()))

    def __bool__(self) -> bool:
        return any(row.metric == "tau" for row in self.rows)

    @property
    def whole(self) -> bool:
        """Whether the numbers are of the accuracies of all checkpoints, as the paper's are."""
        return not any(map(self._first, ("where", "label", "label_checkpoint")))

    @property
    def label(self) -> str:
        """What the runs are ranked by."""
        return self._first("label") or "test_accuracy"

    @property
    def folds(self) -> str:
        """Their number in a cross-validation; empty for the zoo's own splits."""
        return self._first("folds")

    def _first(self, name: str) -> str:
        """A setting that is the same in all rows which have it; empty if none has."""
        return next((str(row.setting[name]) for row in self.rows if name in row.setting), "")

    def title(self, name: str) -> str:
        """The name of the data, with the selection if there is one."""
        where = self._first("where")
        return f"{name} where {where}" if where else name

    def heading(self, name: str) -> str:
        """The title of a table: also which checkpoint it is of, the folds of a cross-validation, and the label."""
        checkpoint, split, later = map(self._first, ("checkpoint", "split", "label_checkpoint"))
        folds = f"{self.folds} folds{f' of {split}' if split else ''}" if self.folds else ""
        label = "" if self.label == "test_accuracy" and not later else f"by {self.label.replace('_', ' ')}"
        label += f" at {later}" if later else ""
        checkpoint = "all checkpoints" if checkpoint == "all" else checkpoint
        return self.title(", ".join(filter(None, (name, checkpoint, folds, label))))

    @property
    def thresholds(self) -> list[float]:
        """The accuracy thresholds of the rows, ascending; 0 if there are no rows."""
        values = [row.setting.get("threshold") for row in self.rows]
        return sorted({float(value) for value in values if isinstance(value, int | float)}) or [0.0]

    def find(self, metric: str, who: str, **setting: Value) -> Result | None:
        """The last row of a metric of a model (or variant) with this setting; None means that it is not set."""
        wanted = {name: list(value) if isinstance(value, tuple) else value for name, value in setting.items()}
        rows = reversed(self.measured(metric, who))
        return next((row for row in rows if all(row.setting.get(name) == wanted[name] for name in wanted)), None)

    def measured(self, metric: str, who: str) -> Sequence[Result]:
        """All rows of a metric of a model or variant, in every setting."""
        return self._by_name.get((metric, who), ())

    @functools.cached_property
    def _by_name(self) -> dict[tuple[str, str], list[Result]]:
        """The rows by metric and by model or variant, of which a row has one."""
        found = defaultdict(list)
        for row in self.rows:
            found[row.metric, row.model or row.variant or ""].append(row)
        return found

    def value(self, metric: str, who: str, **setting: Value) -> float | None:
        row = self.find(metric, who, **setting)
        return None if row is None else row.value

    def interval(self, metric: str, who: str, **setting: Value) -> tuple[float, float] | None:
        low, high = (self.value(f"{metric}_{end}", who, **setting) for end in ("low", "high"))
        return None if low is None or high is None else (low, high)
