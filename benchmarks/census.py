"""What was generated, counted from the shards: runs, how many diverged, the time they took.

python -m benchmarks.census [RUNS]              counts every finished shard below RUNS and stores the rows
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import results
from benchmarks.results import Result
from benchmarks.tables.census import census_table
from zoo.command import command, command_parser
from zoo.format.shard import Shard, find_shards


def parser() -> argparse.ArgumentParser:
    options = command_parser("benchmarks.census", __doc__)
    options.add_argument(
        "runs",
        type=Path,
        nargs="?",
        default=Path("runs"),
        metavar="RUNS",
        help="folder with the generated shards",
    )
    options.add_argument("--out", type=Path, default=results.FOLDER, metavar="DIR", help="folder of the rows")
    options.add_argument("--dry-run", action="store_true", help="print the table, store nothing")
    return options


@command
def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    configs, unfinished = find_shards(options.runs)
    for folder in unfinished:
        print(f"not counted because it is unfinished: {folder}")
    rows = [row for config, shards in configs.items() for row in count(config, shards)]
    print(census_table(rows))
    if not options.dry_run:
        results.append(rows, options.out)


def count(config: str, shards: Sequence[Shard]) -> list[Result]:
    """The rows of one config. ``wall_over_engine`` is known if no shard was interrupted."""
    status = [state for shard in shards for state in shard.runs().column("status").to_pylist()]
    runs, seconds = len(status), sum(shard.wall_seconds() for shard in shards)
    epochs = shards[0].record.protocol["epochs"]
    numbers = {
        "runs": runs,
        "diverged_share": sum(state == "diverged" for state in status) / runs,
        "device_minutes": seconds / 60,
        "model_epochs_per_second": runs * epochs / seconds,
        "runs_per_hour": 3600 * runs / seconds,
    }
    engine = [time for shard in shards if (time := shard.engine_seconds()) is not None]
    if len(engine) == len(shards):
        numbers["wall_over_engine"] = seconds / sum(engine)
    setting = {
        "preset": shards[0].record.preset,
        "engines": sorted({shard.record.engine for shard in shards}),
        "code_versions": sorted({shard.manifest.code_version for shard in shards}),
        "shards": [shard.record.shard for shard in shards],
    }
    device = ", ".join(sorted({shard.device() for shard in shards}))
    rows = [
        Result.measured("census", config, metric, value, n=len(shards), device="cpu", variant="shards", setting=setting)
        for metric, value in numbers.items()
    ]
    return [
        replace(row, device=device) for row in rows
    ]  # the device that trained the shards, not the one that counts them


if __name__ == "__main__":
    main()
