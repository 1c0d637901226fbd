"""Are shards that were trained again the published runs, to the last bit?

    python -m tests.retrained RUNS                    compares them with the curves and the sample of this clone
    python -m tests.retrained --digests FILE          writes what is needed to do so on a machine without the sample
    python -m tests.retrained RUNS --digests FILE     compares them there

Compared are every number of a run's curves, and of those checkpoints that the sample has: weights, epoch, accuracy and
losses. Ends with exit code 1 at any difference, or where nothing could be compared.
"""

import hashlib
import json
import sys
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa

import zoo
from zoo.command import Argument, Command, Option
from zoo.format.published import PublishedZoo
from zoo.format.schema import PUBLISHED_RUN_SCHEMA, WEIGHTS, checkpoint_schema
from zoo.format.shard import CHECKPOINTS_FILE, Shard, find_shards
from zoo.format.splits import SPLITS
from zoo.format.table_file import read_table
from zoo.storage.atomic import write_atomically
from zoo.storage.untrusted import read_json

ROOT = Path(__file__).parent.parent
CURVES, SAMPLE = ROOT / "benchmarks" / "results" / "generated", ROOT / "small-transformer-zoo"
DIFFERS = 1
DIGITS = 32
# the only columns that may differ when a run is trained again, in its shard of the grid or in that of a draw
NOT_COMPARED = ("shard", "code_version", "wall_seconds")
MEASURED = ("epoch", "test_accuracy", "test_loss", "train_loss")  # of a checkpoint
RUNS, CHECKPOINTS = "runs", "checkpoints"
Row = Mapping[Hashable, Any]
Digests = dict[str, str]
"""``CONFIG RUN`` or ``CONFIG RUN CHECKPOINT`` → half the SHA-256 of a run's curves, or of a checkpoint."""


def run_digests(config: str, runs: pa.Table) -> Digests:
    rows = runs.drop_columns(list(NOT_COMPARED)).to_pylist()
    return {f"{config} {row['run_id']}": digest_of(json.dumps(row, sort_keys=True).encode()) for row in rows}


def published_digests(curves: Path, sample: Path) -> dict[str, Digests]:
    """The digests of the curves of all runs below a folder, and of the checkpoints of a zoo."""
    digests: dict[str, Digests] = {RUNS: {}, CHECKPOINTS: {}}
    for path in sorted(curves.glob("*/runs.arrow")):
        digests[RUNS] |= run_digests(path.parent.name, read_table(path, PUBLISHED_RUN_SCHEMA))
    for config in PublishedZoo.read(sample).configs:
        for split in SPLITS:
            reader = zoo.open(sample, config, split=split)
            digests[CHECKPOINTS] |= {
                checkpoint_name(config, row): checkpoint_digest(row, reader.weights(number).numpy())
                for number, row in enumerate(reader.metadata.to_dict("records"))
            }
    return digests


def checkpoint_digests(shard: Shard, published: Digests) -> Digests:
    """The digests of a shard's checkpoints, as far as they were published."""
    table = read_table(shard.folder / CHECKPOINTS_FILE, checkpoint_schema(shard.record.spec))
    rows = table.drop_columns([WEIGHTS]).to_pylist()
    names = (checkpoint_name(shard.record.config, row) for row in rows)
    return {
        name: checkpoint_digest(row, table.column(WEIGHTS)[number].values.to_numpy())
        for number, (name, row) in enumerate(zip(names, rows, strict=True))
        if name in published
    }


def checkpoint_name(config: str, row: Row) -> str:
    return f"{config} {row['run_id']} {row['checkpoint']}"


def checkpoint_digest(row: Row, weights: np.ndarray) -> str:
    return digest_of(json.dumps([float(row[name]) for name in MEASURED]).encode() + weights.tobytes())


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGITS]


@dataclass(frozen=True)
class Options:
    runs: Annotated[Path | None, Argument("folder of shards that were trained again", "RUNS")] = None
    digests: Annotated[Path | None, Option("of what was published; without RUNS, to write", "FILE")] = None

    def __post_init__(self) -> None:
        if self.runs is None and self.digests is None:
            raise ValueError("name a folder of shards, or a file to write digests to")


@Command(__name__, "tests.retrained", __doc__, Options)
def main(options: Options) -> None:
    if options.runs is None:
        assert options.digests is not None
        digests = published_digests(CURVES, SAMPLE)
        write_atomically(options.digests, json.dumps(digests).encode())
        print(f"{options.digests}: {sum(map(len, digests.values())):,} digests")
        return
    published = read_json(options.digests) if options.digests else published_digests(CURVES, SAMPLE)
    configs, _ = find_shards(options.runs)
    whole = True
    for config, shards in configs.items():
        trained: dict[str, Digests] = {RUNS: {}, CHECKPOINTS: {}}
        for shard in shards:
            trained[RUNS] |= run_digests(config, shard.runs())
            trained[CHECKPOINTS] |= checkpoint_digests(shard, published[CHECKPOINTS])
        for kind, digests in trained.items():
            same = {name: published[kind][name] == digests[name] for name in digests if name in published[kind]}
            print(f"{config}: {len(same):,} {kind} were published, {sum(same.values()):,} of them are the same")
            for name in (name for name, equal in same.items() if not equal):
                print(f"differs: {name}")
            whole &= all(same.values()) and (kind != RUNS or bool(same))
    if not whole:
        sys.exit(DIFFERS)
