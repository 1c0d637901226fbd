"""A zoo of a task that is not the paper's, with measured accuracies, in a fraction of a second."""

import contextlib
from pathlib import Path

import numpy as np

from tests.fabricated import fabricate_shard
from zoo.publish import main as publish
from zoo.tasks.paper_data import read_task, task_data
from zoo.tasks.task_file import find_task

TASK = """
name = "my-digits"

[data]
format = "npz"
path = "digits.npz"

[transformer]
patch_size = 4
dim = 4
key_dim = 2
value_dim = 2
hidden_dim = 4

[grid]
optimizer = ["adam"]
learning_rate = [1e-3]
init_std = [0.1]
seeds = "distinct"

[protocol]
epochs = 100
"""


def publish_own_zoo(folder: Path, *options: str, count: int = 24) -> Path:
    """Writes ``my-zoo`` and the data and the file of its task to the folder, and returns the zoo."""
    random = np.random.default_rng(0)
    arrays = {
        f"{kind}_{split}": size for split in ("train", "test") for kind, size in (("x", (20, 8, 8)), ("y", (20,)))
    }
    parts = {name: random.integers(0, 256 if name[0] == "x" else 3, size) for name, size in arrays.items()}
    np.savez(folder / "digits.npz", allow_pickle=False, **{name: part.astype(np.uint8) for name, part in parts.items()})
    (folder / "my_digits.toml").write_text(TASK)
    file = find_task(folder / "my_digits.toml")
    task = task_data(file, read_task(file, None))
    fabricate_shard(folder / "runs", task.spec, count=count, seeds="distinct", task=task, task_file=file.text)
    with contextlib.chdir(folder):
        publish(["runs", "my-zoo", *options])
    return folder / "my-zoo"
