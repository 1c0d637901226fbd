"""What was generated and what the whole grid would take: a table of the README, from ``benchmarks.census``."""

from collections.abc import Iterable, Sequence
from typing import cast

from benchmarks.results import Result
from benchmarks.tables.markdown import MISSING, number, table
from zoo.format.record import task_of
from zoo.format.schema import CHECKPOINTS
from zoo.transformer.spec import SPECS

RUNS_PER_TASK = 16_000  # the paper's grid
BYTES_PER_WEIGHT = 4


def census_table(rows: Iterable[Result]) -> str:
    """One line per config, shards, preset and device, with the numbers of the last census.

    A task of one's own has a grid of its own: what the paper's would take is not known.
    """
    latest: dict[tuple[str, str, str, str], list[Result]] = {}
    for row in rows:
        what = (row.config, named(cast("list[int]", row.setting["shards"])), str(row.setting["preset"]), row.device)
        if row.metric == "runs":  # the first row of a census
            latest[what] = []
        latest[what].append(row)
    lines = []
    for (config, shards, preset, device), census in latest.items():
        values = {row.metric: row.value for row in census}
        lines.append(
            (
                f"{config}, {shards}, {preset} preset, {device}",
                number(values["runs"]),
                f"{values['diverged_share']:.1%}",
                number(values["device_minutes"], ",.1f"),
                number(values["model_epochs_per_second"], ",.1f"),
                number(values.get("wall_over_engine"), ".3f"),
                whole_grid(config, values["runs_per_hour"]),
            )
        )
    headings = ["generated", "runs", "diverged", "minutes", "model-epochs/s", "wall / engine time"]
    return table([*headings, f"all {RUNS_PER_TASK:,} runs"], lines)


def named(shards: Sequence[int]) -> str:
    """Such as "shard 3", "shards 0 to 3" or, where some between are missing, "shards 0, 2, 5"."""
    first, *others = shards
    if not others:
        return f"shard {first}"
    in_a_row = list(shards) == list(range(first, others[-1] + 1))
    return f"shards {first} to {others[-1]}" if in_a_row else f"shards {', '.join(map(str, shards))}"


def whole_grid(config: str, runs_per_hour: float) -> str:
    """Hours and size of the paper's grid at that speed."""
    spec = SPECS.get(task_of(config))
    if spec is None:
        return MISSING
    gigabytes = RUNS_PER_TASK * len(CHECKPOINTS) * spec.num_parameters * BYTES_PER_WEIGHT / 1e9
    return f"{RUNS_PER_TASK / runs_per_hour:,.1f} h, {gigabytes:.1f} GB"
