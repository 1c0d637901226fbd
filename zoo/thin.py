"""Keeps all runs of the shards that generation wrote, but the weights of a few only: a zoo that fits in a repository.

    python -m zoo.thin runs thin --runs 10 --checkpoints epoch_75 --whole 1
    python -m zoo.publish thin my-zoo

Of each finished shard below RUNS this keeps the given checkpoints of its first ten completed runs, and all checkpoints
of the first of them. The table of runs, with all curves, stays as it is. A thinned shard records the SHA-256 of the
file of all its checkpoints, so that whoever trains it again can compare. A shard that is already in OUT is left alone.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from zoo.checked import CountOrZero, printable
from zoo.command import Argument, Command, Option


@dataclass(frozen=True)
class _Options:
    source: Annotated[Path, Argument("folder that generation wrote its shards to", "RUNS")]
    out: Annotated[Path, Argument("folder of the thinned shards", "OUT")]
    runs: Annotated[CountOrZero, Option("completed runs of each shard that keep weights", "N")] = 10
    whole: Annotated[CountOrZero, Option("of these, runs that keep all their checkpoints", "N")] = 1
    checkpoints: Annotated[
        tuple[str, ...] | None,
        Option("what the others keep (default: the one nearest to 75 %% of the epochs)", "LABEL"),
    ] = None


_command = Command(__name__, "zoo.thin", __doc__, _Options)

import numpy as np

from zoo.format.published import RUNS_FILE, refuse_nested
from zoo.format.schema import RUN_SCHEMA
from zoo.format.shard import CHECKPOINTS_FILE, TIMING_FILE, Shard, find_shards, finished_record, write_shard
from zoo.format.table_file import read_table
from zoo.reading.reader import MappedCheckpoints
from zoo.storage.untrusted import read_json
from zoo.tasks.embedding import copy_embedding


def _thin(shard: Shard, folder: Path, options: _Options) -> int:
    """Writes a shard with some of its checkpoints; returns how many these are."""
    shard.check_files()
    record, runs = shard.record, read_table(shard.folder / RUNS_FILE, RUN_SCHEMA)
    facts = runs.select(["run_id", "status"]).to_pandas()
    completed = facts["run_id"][facts["status"] == "completed"][: options.runs]
    kept = record.checkpoints_among(options.checkpoints or (record.usual_checkpoint,))
    rows = MappedCheckpoints([shard.folder / CHECKPOINTS_FILE], record.spec)
    there = rows.table.select(["run_id", "checkpoint"]).to_pandas()
    whole = there["run_id"].isin(completed[: options.whole])
    chosen = np.flatnonzero(whole | there["run_id"].isin(completed) & there["checkpoint"].isin(kept))
    thinned = replace(record, all_checkpoints=record.all_checkpoints or shard.manifest.files[CHECKPOINTS_FILE])
    write_shard(folder, thinned, [rows.take(chosen)], runs, lambda: read_json(shard.folder / TIMING_FILE))
    return len(chosen)


@_command
def main(options: _Options) -> None:
    refuse_nested(options.out.resolve(), [options.source.resolve()])
    configs, _ = find_shards(options.source)
    for shards in configs.values():
        for shard in shards:
            folder = options.out / shard.folder.relative_to(options.source)
            if finished_record(folder) is None:
                print(f"{printable(folder)}: {_thin(shard, folder, options):,} checkpoints kept")
        if shards[0].record.embedding_sha256 is not None:
            copy_embedding(shards[0].record.task, options.source, options.out)
