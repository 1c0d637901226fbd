"""How fast Gauge-NFN reads and learns: the invariants of 1,000 checkpoints, and one fit on 1,400 of them.

python -m benchmarks.speed gauge                  on the CPU and, where there is one, the GPU
python -m benchmarks.speed gauge --device cuda --config mnist

The checkpoints are random. A fit is that of the tables, 50 epochs by Gauge-NFN's own recipe and 300 rows to choose the
epoch by, once with the invariants to compute and once with those already in memory, as every later fit finds them.
"""

import sys
from collections.abc import Callable

import numpy as np
import pandas as pd
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import results
from benchmarks.data.checkpoints import Checkpoints
from benchmarks.models.registry import builder
from benchmarks.models.schedule import EPOCHS, RECIPES
from benchmarks.models.training_group import TrainingGroup, train_together
from benchmarks.results import Result
from benchmarks.speed.timing import Timing, measure
from nfn import invariant_features
from nfn.predictors import gauge_nfn
from zoo import TransformerSpec, TransformerWeights
from zoo.command import command, command_parser
from zoo.transformer.spec import SPECS

READ, TRAIN, VALIDATION = 1000, 1400, 300


@command
def main(arguments: list[str] | None = None) -> None:
    parser = command_parser("benchmarks.speed gauge", __doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: all that this machine has")
    parser.add_argument("--config", choices=list(SPECS), help="default: all")
    parser.add_argument("--repeats", type=int, default=3, help="samples of each time (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's own choice)")
    parser.add_argument("--dry-run", action="store_true", help="print the rows, store none")
    options = parser.parse_args(arguments)
    if options.repeats < 2:
        raise ValueError(f"--repeats must be at least 2 to have a spread, got {options.repeats}")
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch finds no CUDA device on this machine, use --device cpu")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    devices = [options.device] if options.device else ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    configs = [options.config] if options.config else list(SPECS)
    cases = [(config, device) for config in configs for device in devices]
    rows: list[Result] = []
    for config, device in track(cases, description="timing", disable=not sys.stderr.isatty()):
        measured = measure_case(config, torch.device(device), options.repeats)
        rows += measured
        if not options.dry_run:
            results.append(measured)
    show(rows)


def measure_case(config: str, device: torch.device, repeats: int) -> list[Result]:
    """All rows of one config and device."""
    spec = SPECS[config]
    train, validation = invented(spec, TRAIN, 0, device), invented(spec, VALIDATION, 1, device)
    group = TrainingGroup(np.arange(TRAIN), np.arange(VALIDATION), (0,))
    recipe = RECIPES["gauge"]

    def read() -> None:
        for part in train.weights[:READ].double().split(gauge_nfn.READ_AT_ONCE):
            invariant_features(TransformerWeights.from_flat(spec, part, check_finite=False))

    def fit() -> None:
        train_together(
            builder("gauge_nfn", spec, None, None),
            [group],
            train,
            validation,
            lambda: recipe.schedule(EPOCHS),
            scaled=recipe.scaled,
            place=recipe.place,
            weight_decay=recipe.weight_decay,
        )

    def fit_from_nothing() -> None:
        gauge_nfn.CACHE.clear()
        fit()

    calls: dict[str, Callable[[], None]] = {
        "invariants_of_1000_seconds": read,
        "first_fit_of_1400_seconds": fit_from_nothing,
        "fit_of_1400_seconds": fit,
    }
    rows = []
    with torch.no_grad():
        timing = measure(calls.pop("invariants_of_1000_seconds"), device=device, repeats=repeats, warmup=1)
    rows.append(row(config, device, "invariants_of_1000_seconds", timing))
    for metric, call in calls.items():
        rows.append(row(config, device, metric, measure(call, device=device, repeats=repeats, warmup=0)))
    return rows


def invented(spec: TransformerSpec, count: int, seed: int, device: torch.device) -> Checkpoints:
    """Random weights with random accuracies: how long a fit takes does not depend on what there is to learn."""
    generator = torch.Generator().manual_seed(seed)
    flat = torch.randn(count, spec.num_parameters, generator=generator) * 0.1
    accuracy = torch.rand(count, generator=generator)
    runs = np.array([f"{seed}-{number}" for number in range(count)])
    return Checkpoints(spec, flat.to(device), accuracy.to(device), runs, pd.DataFrame(index=range(count)))


def row(config: str, device: torch.device, metric: str, timing: Timing) -> Result:
    return Result.measured(
        "speed.nfn",
        config,
        metric,
        timing.median,
        stderr=timing.stderr,
        n=timing.n,
        device=device,
        variant="gauge_nfn",
        setting={"best_seconds": timing.best},
    )


def show(rows: list[Result]) -> None:
    table = Table(title="Gauge-NFN, seconds")
    for heading in ("config", "device", "metric", "median", "± stderr"):
        table.add_column(heading)
    for result in rows:
        table.add_row(result.config, result.device, result.metric, f"{result.value:.2f}", f"{result.stderr:.2f}")
    Console(width=160).print(table)
