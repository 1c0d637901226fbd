"""What was generated, from the shards themselves: runs, how many diverged, the time they took.

python -m benchmarks.census runs                counts every finished shard below runs/ and stores the rows
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.results import Result
from benchmarks.tables.census import census_table
from zoo.command import command
from zoo.json_text import read_json
from zoo.shards import TIMING_FILE, Shard, find_shards


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.census", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("runs", type=Path, metavar="RUNS", help="folder that generation wrote its shards to")
    options.add_argument("--out", type=Path, default=results.FOLDER, metavar="DIR", help="default: %(default)s")
    options.add_argument("--dry-run", action="store_true", help="print the table, store nothing")
    return options


@command
def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    configs, _ = find_shards(options.runs)
    rows = [row for config, shards in configs.items() for row in count(config, shards)]
    print(census_table(rows))
    if not options.dry_run:
        results.append_news(rows, options.out)


def count(config: str, shards: Sequence[Shard]) -> list[Result]:
    """The rows of one config. ``wall_over_engine`` is known where no shard was interrupted."""
    timings = [read_timing(shard) for shard in shards]
    status = [state for shard in shards for state in shard.runs().column("status").to_pylist()]
    runs, seconds = len(status), sum(shard.wall_seconds() for shard in shards)
    epochs = shards[0].details["protocol"]["epochs"]
    numbers = {
        "runs": runs,
        "diverged_share": sum(state == "diverged" for state in status) / runs,
        "device_minutes": seconds / 60,
        "model_epochs_per_second": runs * epochs / seconds,
        "runs_per_hour": 3600 * runs / seconds,
    }
    engine = [float(timing["engine_seconds"]) for timing in timings if timing.get("engine_seconds")]
    if len(engine) == len(shards):
        numbers["wall_over_engine"] = seconds / sum(engine)
    setting = {
        "preset": shards[0].details["preset"],
        "engine": shards[0].details["engine"],
        "shards": [shard.number for shard in shards],
    }
    device = ", ".join(sorted({str(timing.get("device")) for timing in timings}))
    return [
        replace(
            Result.measured(
                "census", config, metric, value, n=len(shards), device="cpu", variant="shards", setting=setting
            ),
            device=device,
        )
        for metric, value in numbers.items()
    ]


def read_timing(shard: Shard) -> dict[str, Any]:
    shard.wall_seconds()  # says what is wrong with the file
    return read_json(shard.folder / TIMING_FILE)


if __name__ == "__main__":
    main()
