"""Counts the generated runs from their shards: how many there are, how many diverged, the time they took.

python -m benchmarks.census [RUNS]                 counts every finished shard below RUNS and stores the rows
python -m benchmarks.census RUNS --at-once 2       where two shards at a time shared a device, as under NVIDIA's MPS
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

from benchmarks.options import Rows
from zoo.checked import Count
from zoo.command import Argument, Command, DryRun, Option


@dataclass(frozen=True)
class _Options:
    runs: Annotated[Path, Argument("folder with the generated shards", "RUNS")] = Path("runs")
    at_once: Annotated[Count, Option("shards that shared a device all the time")] = 1
    out: Rows = None
    dry_run: DryRun = False


_command = Command(__name__, "benchmarks.census", __doc__, _Options)

from collections.abc import Iterable, Sequence

from benchmarks import results
from benchmarks.results import Result
from benchmarks.tables import for_terminal, render_table
from zoo.format.record import task_of
from zoo.format.schema import CHECKPOINTS
from zoo.format.shard import Shard, find_shards
from zoo.transformer.spec import SPECS

_RUNS_PER_TASK = 16_000  # the paper's grid
_BYTES_PER_WEIGHT = 4


def _count(config: str, shards: Sequence[Shard], at_once: int = 1) -> list[Result]:
    """The rows of one config. ``wall_over_engine`` is known if no shard was interrupted."""
    status = [state for shard in shards for state in shard.runs().column("status").to_pylist()]
    runs, wall = len(status), sum(shard.timing.wall_seconds for shard in shards)
    seconds = wall / at_once
    epochs = shards[0].record.protocol["epochs"]
    numbers = {
        "runs": runs,
        "diverged_share": sum(state == "diverged" for state in status) / runs,
        "device_minutes": seconds / 60,
        "model_epochs_per_second": runs * epochs / seconds,
        "runs_per_hour": 3600 * runs / seconds,
    }
    engine = [time for shard in shards if (time := shard.timing.engine_seconds) is not None]
    if len(engine) == len(shards):
        numbers["wall_over_engine"] = wall / sum(engine)
    setting = {
        "preset": shards[0].record.preset,
        "engines": sorted({shard.record.engine for shard in shards}),
        "code_versions": sorted({shard.manifest.code_version for shard in shards}),
        "shards": [shard.record.shard for shard in shards],
        "at_once": at_once,
    }
    device = ", ".join(sorted({shard.timing.device for shard in shards}))  # that trained them, not that counts them
    what = {"n": len(shards), "device": device, "variant": "shards", "setting": setting}
    return [Result.measured("census", config, metric, value, **what) for metric, value in numbers.items()]


def census_table(rows: Iterable[Result]) -> str:
    """One line per config, shards, preset and device, with the numbers of the last census."""
    censuses: dict[tuple[str, ...], dict[str, float]] = {}
    for row in rows:
        shards = _named(cast("list[int]", row.setting["shards"]))
        if (count := row.setting.get("at_once", 1)) != 1:
            shards += f" ({count} at once)"
        what = (row.config, shards, f"{row.setting['preset']} preset", row.device)
        if row.metric == "runs":  # the first row of a census
            spec = SPECS.get(task_of(row.config))  # the paper's grid does not have other tasks
            run_bytes = len(CHECKPOINTS) * spec.num_parameters * _BYTES_PER_WEIGHT if spec else 0
            censuses[what] = {"grid_gigabytes": _RUNS_PER_TASK * run_bytes / 1e9}
        censuses[what][row.metric] = row.value
    return render_table("census", censuses=censuses, grid=_RUNS_PER_TASK)


def _named(shards: Sequence[int]) -> str:
    """Such as "shard 3", "shards 0 to 3" or, where some between are missing, "shards 0, 2, 5"."""
    first, last = shards[0], shards[-1]
    if list(shards) != list(range(first, last + 1)):
        return f"shards {', '.join(map(str, shards))}"
    return f"shard {first}" if first == last else f"shards {first} to {last}"


@_command
def main(options: _Options) -> None:
    configs, unfinished = find_shards(options.runs)
    for folder in unfinished:
        print(f"not counted because it is unfinished: {folder}")
    rows = [row for config, shards in configs.items() for row in _count(config, shards, options.at_once)]
    print(for_terminal(census_table(rows)))
    if not options.dry_run:
        results.append(rows, options.out or results.FOLDER)
