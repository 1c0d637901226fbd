"""The long version of the fault tests: kills, flips, hostile files, faulty cells, and Ray with a killed worker.

    python -m tests.soak                                  100 kills, 1,000 flips per target, 1,000 files per reader, Ray
    python -m tests.soak --kills 20 --inputs 100 --flips 100 --demo-runs 0
    python -m tests.soak --record                         and write the figures to benchmarks/results/soak.jsonl

Ends with a traceback at the first fault that is not survived. Runs from a clone; needs Linux.
"""

import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch

from benchmarks import results
from benchmarks.results import Result
from generation.job import Job
from generation.protocol import PRESETS
from generation.shard import train_shard
from generation.sweep import Sweep
from generation.task import named_task
from tests.faults.cells import all_cells, outcomes
from tests.faults.flips import TARGETS, flip
from tests.faults.fuzzing import fuzz
from tests.faults.killing import Killer
from tests.faults.processes import finish
from tests.faults.ray_nodes import kill_worker, launcher, shard_contents, two_nodes
from tests.faults.readers import READERS
from zoo.command import Command, Option, progress_bar

INPUTS_AT_ONCE = 250
DEMO_SHARDS = 4
Advance = Callable[[], None]


def soak_kills(count: int, folder: Path, advance: Advance) -> list[Result]:
    """SIGKILLs, the four phases in turn; each is followed by a run to the end and a comparison of all bytes."""
    survived: Counter[str] = Counter()
    for kill in Killer(folder).kills(count):
        survived[kill.phase] += 1
        advance()
    return [row("kills_survived", phase, number, number) for phase, number in survived.items()]


def soak_flips(count: int, folder: Path, advance: Advance) -> list[Result]:
    """Single flipped bytes in snapshots, shards and zoos."""
    rows = []
    for target in TARGETS:
        (folder / target.name).mkdir()
        found = 0
        for noticed in flip(target, folder / target.name, count):
            found += noticed
            advance()
        assert found == count or target.name == "snapshot", f"{count - found} flips in a {target.name} went unnoticed"
        rows.append(row("flips_found", target.name, found, count))
    return rows


def soak_inputs(count: int, folder: Path, advance: Advance) -> list[Result]:
    """Hostile files for every reader, some hundred per process, each process with at most 1 GB."""
    rows = []
    for reader in READERS:
        refused = 0
        for first in range(0, count, INPUTS_AT_ONCE):
            log = folder / f"{reader.name} {first}"
            some = min(INPUTS_AT_ONCE, count - first)
            assert finish(fuzz, reader.name, first, some, log=log) == 0, f"{reader.name}: {log.read_text()[-3000:]}"
            refused += int(log.read_text().split()[-1])
            for _ in range(some):
                advance()
        rows.append(row("inputs_fuzzed", reader.name, count, count, refused=refused))
    return rows


def soak_cells(count: int, folder: Path, advance: Advance) -> list[Result]:
    """Cells that are missing or out of range: publish refuses what verify reports."""
    refused = 0
    for _, found in outcomes(folder, all_cells()[:count]):
        refused += bool(found)
        advance()
    return [row("cells_agreed_on", "publish and verify", count, count, refused=refused)]


def soak_ray(runs: int, folder: Path, advance: Advance) -> list[Result]:
    """Four demo shards on two Ray nodes of this machine, one worker killed in the middle, against a plain loop."""
    # one thread, as each of Ray's workers has
    job = Job(Sweep(named_task("mnist"), PRESETS["demo"]), folder / "loop", runs=runs, device="cpu")
    for shard in range(DEMO_SHARDS):
        train_shard(job, shard)
        advance()
    with two_nodes() as address:
        process = launcher(
            folder / "ray", "--shards", f"0-{DEMO_SHARDS - 1}", "--address", address, "--runs", str(runs)
        )
        kill_worker(process, folder / "ray", shard=1, seconds=600)
        out, errors = process.communicate(timeout=3600)
    assert process.returncode == 0, errors
    assert "its worker died" in errors, errors
    assert shard_contents(folder / "ray") == shard_contents(folder / "loop"), "other bytes than the plain loop's"
    for _ in range(DEMO_SHARDS):
        advance()
    print(out.strip())
    setting = {"runs": runs, "nodes": 2, "workers_killed": 1}
    return [row("shards_with_the_bytes_of_the_loop", "ray", DEMO_SHARDS, DEMO_SHARDS, **setting)]


def row(metric: str, variant: str, value: float, n: int, **setting: int) -> Result:
    """One figure. ``n`` is how many were tried."""
    return Result.measured(
        "soak",
        "mnist",
        metric,
        value,
        n=n,
        device=torch.device("cpu"),
        variant=variant,
        setting=dict(setting),
        packages=PACKAGES,
    )


PACKAGES = ("torch", "pyarrow", "safetensors", "numpy", "pandas", "ray")


@dataclass(frozen=True)
class Options:
    kills: Annotated[int, Option("SIGKILLs")] = 100
    flips: Annotated[int, Option(f"flipped bytes in each of {len(TARGETS)} targets")] = 1000
    inputs: Annotated[int, Option(f"files for each of {len(READERS)} readers")] = 1000
    cells: Annotated[int, Option("changed cells of rows, all there are without a number")] = len(all_cells())
    demo_runs: Annotated[int, Option("runs of each demo shard with Ray, 8 are all; 0: no Ray")] = 8
    record: Annotated[bool, Option("add the figures to benchmarks/results/soak.jsonl")] = False


@Command(__name__, "tests.soak", __doc__, Options)
def main(options: Options) -> None:
    parts = {
        "kills": (soak_kills, options.kills, options.kills),
        "flips": (soak_flips, options.flips, options.flips * len(TARGETS)),
        "inputs": (soak_inputs, options.inputs, options.inputs * len(READERS)),
        "cells": (soak_cells, options.cells, options.cells),
        "ray": (soak_ray, options.demo_runs, 2 * DEMO_SHARDS),
    }
    rows: list[Result] = []
    for name, (soak, amount, total) in parts.items():
        if amount < 1:
            continue
        with progress_bar() as bar, tempfile.TemporaryDirectory(prefix="soak-") as folder:
            task = bar.add_task(name, total=total)
            found = soak(amount, Path(folder), lambda task=task, bar=bar: bar.advance(task))
        for one in found:
            print(f"{one.metric} {one.variant}: {one.value:g} of {one.n} {one.setting or ''}", flush=True)
        rows += found
        # written as soon as they are there: a soak is long, and its results so far should not be lost
        if options.record:
            results.append(found)
