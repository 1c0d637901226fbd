"""The rows of one split as a model reads them: weights on a device, accuracies, runs and hyperparameters."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Integer
from torch import Tensor

from nfn import GroupElement
from zoo import TransformerSpec, TransformerWeights, ZooReader
from zoo.format.hyperparameters import CONFIGURATION
from zoo.reading.selection import Selection

HYPERPARAMETERS = CONFIGURATION
MOVED_AT_ONCE = 256  # group elements act in float64: this many checkpoints stay within 100 MB


def require_rows(config: str, rows: Mapping[str, int], least: int = 1) -> None:
    """A split that has fewer rows is a ValueError: a small zoo may have no run in one. ``rows`` counts each split's."""
    for split, count in rows.items():
        if count < least:
            found = {0: "no rows", 1: "1 row"}.get(count, f"{count:,} rows")
            raise ValueError(f"the {split} split of {config} has {found}, at least {least} needed: add runs to the zoo")


@dataclass(frozen=True)
class Checkpoints:
    """Checkpoints, one per row. ``runs`` are their run ids; splits are by run, so no run is in two of them."""

    spec: TransformerSpec
    weights: Float[Tensor, "n d"]
    accuracy: Float[Tensor, " n"]
    runs: np.ndarray
    hyperparameters: pd.DataFrame

    @classmethod
    def read(
        cls, reader: ZooReader, checkpoint: str, device: torch.device, where: Selection | None = None
    ) -> "Checkpoints":
        """The rows of a reader at one checkpoint (or ``all``) that ``where`` chooses, copied to the device."""
        require_rows(reader.config, {reader.split: len(reader)})
        at_checkpoint = reader.rows(None if checkpoint == "all" else f"checkpoint == '{checkpoint}'")
        rows = np.intersect1d(at_checkpoint, reader.rows(where))
        metadata = reader.metadata.iloc[rows].reset_index(drop=True)
        return cls(
            spec=reader.spec,
            # a copy: the reader's tensors are views of a file that may be replaced
            weights=reader.weights(rows).to(device, copy=True),
            accuracy=torch.from_numpy(metadata["test_accuracy"].to_numpy(dtype=np.float32, copy=True)).to(device),
            runs=metadata["run_id"].to_numpy(dtype=str),
            hyperparameters=metadata[list(HYPERPARAMETERS)],
        )

    def __len__(self) -> int:
        return len(self.runs)

    def at_least(self, threshold: float) -> Integer[np.ndarray, " m"]:
        """The indices of the rows whose accuracy reaches the threshold."""
        return np.flatnonzero(self.truth() >= np.float32(threshold))

    def truth(self) -> Float[np.ndarray, " n"]:
        return self.accuracy.cpu().numpy()

    def configurations(self) -> Integer[np.ndarray, " n"]:
        """A number for each row, the same for rows with the same hyperparameters."""
        return self.hyperparameters.groupby(list(HYPERPARAMETERS)).ngroup().to_numpy(dtype=np.int32)

    def of_other_runs(self, seen: "Checkpoints") -> Integer[np.ndarray, " m"]:
        """The indices of the rows whose run has no row in ``seen``."""
        return np.flatnonzero(~np.isin(self.runs, seen.runs))

    def of_other_configurations(self, seen: "Checkpoints") -> Integer[np.ndarray, " m"]:
        """The indices of the rows whose hyperparameters are those of no row of ``seen``."""
        known = set(seen.hyperparameters[list(HYPERPARAMETERS)].itertuples(index=False, name=None))
        own = self.hyperparameters[list(HYPERPARAMETERS)].itertuples(index=False, name=None)
        return np.flatnonzero([configuration not in known for configuration in own])

    def first_by_hash(self, count: int) -> Integer[np.ndarray, " m"]:
        """The indices of ``count`` rows, or of all: those of the runs whose ids have the lowest hashes.

        The hash is not the one that divides runs into splits, so a few rows are like the whole split.
        """
        hashes = [hashlib.sha256(f"subset {run}".encode()).digest() for run in self.runs]
        order = sorted(range(len(self)), key=lambda row: (hashes[row], row))
        return np.sort(np.array(order[:count], dtype=np.int64))

    def take(self, rows: Integer[np.ndarray, " m"]) -> "Checkpoints":
        """Some of the rows; not copied if they are all, in order."""
        if np.array_equal(rows, np.arange(len(self))):
            return self
        index = torch.from_numpy(rows).to(self.weights.device)
        return replace(
            self,
            weights=self.weights[index],
            accuracy=self.accuracy[index],
            runs=self.runs[rows],
            hyperparameters=self.hyperparameters.iloc[rows].reset_index(drop=True),
        )

    def digest(self) -> str:
        """A hash of the rows alone, however they are divided into files."""
        digest = hashlib.sha256("\n".join(self.runs).encode())
        for tensor in (self.accuracy, self.weights):
            digest.update(np.ascontiguousarray(tensor.cpu().numpy()).data)
        return digest.hexdigest()

    def pieces(self, size: int) -> Iterator[TransformerWeights]:
        """The weights, ``size`` rows at a time."""
        for part in self.weights.split(size):
            yield TransformerWeights.from_flat(self.spec, part, check_finite=False)

    def moved(self, seed: int, entry_range: float | None = None) -> "Checkpoints":
        """Every checkpoint acted on by its own random group element: other weights, the same function.

        Drawn on the CPU, so that a seed gives the same elements on every device.
        """
        generator = torch.Generator().manual_seed(seed)
        moved = []
        for weights in self.pieces(MOVED_AT_ONCE):
            g = GroupElement.sample(self.spec, tuple(weights.batch_shape), generator=generator, entry_range=entry_range)
            moved.append(g.map(lambda tensor: tensor.to(self.weights.device)).act(weights).flat())
        return replace(self, weights=torch.cat(moved)) if moved else self

    def doubled(self, seed: int, entry_range: float) -> "Checkpoints":
        """The checkpoints, followed by a moved copy of each (tab:augmented_agnews)."""
        moved = self.moved(seed, entry_range)
        return replace(
            self,
            weights=torch.cat([self.weights, moved.weights]),
            accuracy=torch.cat([self.accuracy, self.accuracy]),
            runs=np.concatenate([self.runs, self.runs]),
            hyperparameters=pd.concat([self.hyperparameters, self.hyperparameters], ignore_index=True),
        )
