"""The runs of the full zoo: their curves, kept in ``generated/`` beside the result rows, without the weights."""

from pathlib import Path

import pandas as pd

from zoo.format.hyperparameters import HYPERPARAMETERS
from zoo.format.manifest import MANIFEST_FILE
from zoo.format.published import RUNS_FILE, PublishedZoo
from zoo.format.schema import PUBLISHED_RUN_SCHEMA
from zoo.format.table_file import read_table

GENERATED = "generated"
COLUMNS = ("status", *HYPERPARAMETERS, "test_accuracy")


def trained_on(folder: Path) -> dict[str, str | None]:
    """Config → what its data fall short by, if they do, as its manifest says."""
    if not (folder / GENERATED / MANIFEST_FILE).is_file():
        return {}
    return {name: config.data_note() for name, config in PublishedZoo.read(folder / GENERATED).configs.items()}


def final_runs(folder: Path) -> dict[str, pd.DataFrame]:
    """Config → its completed runs: hyperparameters, and test accuracy after the last epoch."""
    configs = {}
    for path in sorted((folder / GENERATED).glob(f"*/{RUNS_FILE}")):
        runs = read_table(path, PUBLISHED_RUN_SCHEMA).select(list(COLUMNS)).to_pandas()
        completed = runs[runs["status"] == "completed"].reset_index(drop=True)
        configs[path.parent.name] = completed.assign(
            test_accuracy=[float(curve[-1]) for curve in completed["test_accuracy"]]
        )
    return configs
