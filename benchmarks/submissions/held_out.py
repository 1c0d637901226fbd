"""The test rows that a submission is scored on, and the hash that names them."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Integer

from benchmarks.data import Checkpoints, chosen_checkpoint, count_test_examples
from benchmarks.submissions.predictions import Key
from zoo.reading.locate import find_folder
from zoo.reading.reader import open_zoo


@dataclass(frozen=True)
class HeldOutRows:
    """The test split of a config at one checkpoint, or at ``all``.

    ``sha256`` is of the rows alone (run ids, checkpoints, accuracies, weights), however they are divided into files:
    adding runs to a zoo changes it only where some of them are in the test split. ``configurations`` numbers the
    configuration of each row; None unless the zoo has several runs of each.
    """

    config: str
    checkpoint: str
    keys: tuple[Key, ...]
    truth: Float[np.ndarray, " n"]
    runs: Integer[np.ndarray, " n"]
    configurations: Integer[np.ndarray, " n"] | None
    test_examples: int
    sha256: str

    @classmethod
    def read(cls, zoo: str | Path, config: str, checkpoint: str) -> "HeldOutRows":
        reader = open_zoo(find_folder(zoo, config), config, "test")
        checkpoint = chosen_checkpoint(reader.details, config, checkpoint)
        rows = Checkpoints.read(reader, checkpoint, torch.device("cpu"))
        labels = reader.metadata["checkpoint"].to_numpy(dtype=str)
        if checkpoint != "all":
            labels = labels[labels == checkpoint]
        content = "\n".join([rows.digest(), *labels])
        return cls(
            config=config,
            checkpoint=checkpoint,
            keys=tuple(zip(rows.runs.tolist(), labels.tolist(), strict=True)),
            truth=rows.truth(),
            runs=np.unique(rows.runs, return_inverse=True)[1].astype(np.int32),
            configurations=rows.configurations() if reader.details.repeats is not None else None,
            test_examples=count_test_examples(reader.details),
            sha256=hashlib.sha256(content.encode()).hexdigest(),
        )

    @property
    def title(self) -> str:
        return f"{self.config}, {'all checkpoints' if self.checkpoint == 'all' else self.checkpoint}"
