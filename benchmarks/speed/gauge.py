"""How fast Gauge-NFN reads and learns: the invariants of 1,000 checkpoints, and one fit on 1,400 of them.

python -m benchmarks.speed gauge                  on the CPU and, where there is one, the GPU
python -m benchmarks.speed gauge --device cuda --config mnist

The checkpoints are random. A fit is that of the tables, 50 epochs by Gauge-NFN's own recipe and 300 rows to choose the
epoch by, once with the invariants to compute and once with those already in memory, as every later fit finds them.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch

from benchmarks.data.checkpoints import Checkpoints
from benchmarks.models.registry import builder
from benchmarks.models.schedule import EPOCHS, RECIPES
from benchmarks.models.training_group import TrainingGroup, train_together
from benchmarks.results import Result
from benchmarks.speed.options import read_options
from benchmarks.speed.timing import Timing, measure
from nfn import invariant_features
from nfn.predictors.gauge_nfn import CACHE
from nfn.predictors.input_cache import READ_AT_ONCE
from zoo import TransformerSpec, TransformerWeights
from zoo.command import command
from zoo.transformer.spec import SPECS

READ, TRAIN, VALIDATION = 1000, 1400, 300


@command
def main(arguments: list[str] | None = None) -> None:
    options = read_options("gauge", __doc__, arguments, repeats=3)
    for config, device in options.cases:
        options.record.keep(measure_case(config, device, options.repeats))


def measure_case(config: str, device: torch.device, repeats: int) -> Iterator[Result]:
    """All rows of one config and device."""
    spec = SPECS[config]
    train, validation = invented(spec, TRAIN, 0, device), invented(spec, VALIDATION, 1, device)
    group = TrainingGroup(np.arange(TRAIN), np.arange(VALIDATION), (0,))

    def read() -> None:
        for part in train.weights[:READ].double().split(READ_AT_ONCE):
            invariant_features(TransformerWeights.from_flat(spec, part, check_finite=False))

    def fit() -> None:
        train_together(builder("gauge_nfn", spec, None, None), [group], train, validation, RECIPES["gauge"], EPOCHS)

    def fit_from_nothing() -> None:
        CACHE.clear()
        fit()

    with torch.no_grad():
        reading = measure(read, device=device, repeats=repeats, warmup=1)
    yield row(config, device, "invariants_of_1000_seconds", reading)
    for metric, call in (("first_fit_of_1400_seconds", fit_from_nothing), ("fit_of_1400_seconds", fit)):
        yield row(config, device, metric, measure(call, device=device, repeats=repeats, warmup=0))


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
