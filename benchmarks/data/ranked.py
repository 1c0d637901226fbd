"""Checkpoints to rank, from anywhere: rows of a published zoo, or files of single checkpoints."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from benchmarks.data.checkpoints import require_rows
from zoo import TransformerSpec
from zoo.reading.checkpoint_file import SUFFIXES, CheckpointFile
from zoo.reading.reader import ZooReader
from zoo.transformer.weights import TransformerWeights


@dataclass(frozen=True)
class RankedRows:
    """Checkpoints of one spec with a name each. ``measured`` is NaN where an accuracy is not known; ``runs`` are equal
    for checkpoints of the same run."""

    spec: TransformerSpec
    names: tuple[str, ...]
    weights: Float[Tensor, "n d"]
    measured: Float[np.ndarray, " n"]
    runs: np.ndarray

    @classmethod
    def of_zoo(cls, reader: ZooReader, where: str | None) -> "RankedRows":
        require_rows(reader.config, {reader.split: len(reader)})
        rows = reader.rows(where)
        metadata = reader.metadata.iloc[rows]
        runs = metadata["run_id"].to_numpy(dtype=str)
        return cls(
            spec=reader.spec,
            names=tuple(f"{run} {label}" for run, label in zip(runs, metadata["checkpoint"], strict=True)),
            weights=reader.weights(rows),
            measured=metadata["test_accuracy"].to_numpy(dtype=np.float64),
            runs=runs,
        )

    @classmethod
    def of_files(cls, spec: TransformerSpec, files: Sequence[CheckpointFile]) -> "RankedRows":
        """Files that fit the spec; one with NaN or infinity is a ValueError that names it."""
        return cls(
            spec=spec,
            names=tuple(str(file.path) for file in files),
            weights=torch.stack([flat_of(spec, file) for file in files]),
            measured=np.array([accuracy_of(file) for file in files]),
            runs=np.array([file.metadata.get("run_id", str(file.path)) for file in files]),
        )


def flat_of(spec: TransformerSpec, file: CheckpointFile) -> Float[Tensor, " d"]:
    state = {name: tensor.float() for name, tensor in file.state.items()}
    try:
        return TransformerWeights.from_state_dict(spec, state).flat()
    except ValueError as error:
        raise ValueError(f"{file.path}: {error}") from error


def accuracy_of(file: CheckpointFile) -> float:
    """What the header says was measured; NaN where it does not say."""
    try:
        accuracy = float(file.metadata.get("test_accuracy", "nan"))
    except ValueError:
        return math.nan
    return accuracy if 0 <= accuracy <= 1 else math.nan


def files_in(path: Path) -> list[CheckpointFile]:
    """The checkpoint of a file, or those of all files in a folder, by name."""
    if not path.is_dir():
        return [CheckpointFile.read(path)]
    paths = sorted(each for each in path.iterdir() if each.suffix in SUFFIXES)
    if not paths:
        raise ValueError(f"{path} holds neither a zoo (manifest.json) nor files that end in {', '.join(SUFFIXES)}")
    return [CheckpointFile.read(each) for each in paths]
