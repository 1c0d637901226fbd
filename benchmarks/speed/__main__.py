"""Measures speed and appends the rows to ``benchmarks/results/`` the moment they are measured.

python -m benchmarks.speed nfn                                Transformer-NFN beside its literal twin, on CPU and GPU
python -m benchmarks.speed nfn --device cuda --config mnist
python -m benchmarks.speed gauge                              Gauge-NFN: invariants of 1,000 checkpoints, fit on 1,400
python -m benchmarks.speed generation                         a whole epoch on a GPU, a few steps on a CPU
python -m benchmarks.speed generation --models 512 1024 --config mnist --device cuda
python -m benchmarks.speed generation --engines fused --variant small      kernels of GPUs with less shared memory
python -m benchmarks.speed generation --engines fused --dim 64 --blocks 4  a transformer with other dimensions
python -m benchmarks.speed loader                             fabricates 4,000 checkpoints in a temporary folder
python -m benchmarks.speed loader --zoo small-transformer-zoo --config agnews
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from zoo.checked import Count
from zoo.command import Command, Device, DryRun, Option
from zoo.format.hyperparameters import SEED_POLICIES, SHARED_SEED
from zoo.transformer.dimensions import DimensionOptions
from zoo.transformer.spec import SPECS

_AtLeastTwo = Annotated[int, Meta(ge=2)]  # to have a spread
_Threads = Annotated[Count | None, Option("CPU threads (default: torch's own choice)")]


@dataclass(frozen=True, kw_only=True)
class _Shared:
    dry_run: DryRun = False


@dataclass(frozen=True, kw_only=True)
class _Nfn(_Shared):
    repeats: Annotated[_AtLeastTwo, Option("samples of each time")] = 30
    device: Annotated[Literal["cpu", "cuda"] | None, Option("where to train (default: all that this machine has)")] = (
        None
    )
    config: Annotated[str | None, Option("task (default: all)", choices=tuple(SPECS))] = None
    threads: _Threads = None


@dataclass(frozen=True, kw_only=True)
class _Gauge(_Nfn):
    repeats: Annotated[_AtLeastTwo, Option("samples of each time")] = 3


@dataclass(frozen=True, kw_only=True)
class _Generation(DimensionOptions, _Shared):
    repeats: Annotated[Count, Option("epochs timed")] = 3
    device: Device = "auto"
    config: Annotated[tuple[str, ...], Option("tasks", choices=tuple(SPECS))] = tuple(SPECS)
    models: Annotated[tuple[Count, ...] | None, Option("population sizes (default: 512 1024 on a GPU, 4 on a CPU)")] = (
        None
    )
    engines: Annotated[
        tuple[Literal["fused", "torch"], ...] | None,
        Option("what trains populations (default: both on a GPU, torch on a CPU)"),
    ] = None
    steps: Annotated[
        Count | None, Option("steps per epoch (default: on a GPU 468, a whole epoch of MNIST; on a CPU 3)")
    ] = None
    seeds: Annotated[
        str, Option("shared: one seed for all models; distinct: a seed for each", choices=SEED_POLICIES)
    ] = SHARED_SEED
    variant: Annotated[
        Literal["large", "medium", "small"] | None,
        Option("the fused engine's variant (default: the best that fits this GPU)"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class _Loader(_Shared):
    repeats: Annotated[_AtLeastTwo, Option("passes over the data for each way")] = 7
    zoo: Annotated[str | None, Option("a zoo with at least 4,000 training rows (default: fabricated)", "DIR")] = None
    config: Annotated[str, Option("config of the zoo")] = "mnist"
    threads: Annotated[Count, Option("threads that sum the batches")] = 1
    scratch: Annotated[
        Path | None, Option("folder for about 1.5 GB of temporary files (default: that of the system)", "DIR")
    ] = None


_command = Command(
    __name__,
    "benchmarks.speed",
    __doc__,
    {
        "nfn": (_Nfn, "Transformer-NFN: forward and backward, and a training step, beside its literal twin"),
        "gauge": (_Gauge, "Gauge-NFN: the invariants of 1,000 checkpoints, and a fit on 1,400"),
        "generation": (_Generation, "training zoo models: one at a time, and populations"),
        "loader": (_Loader, "reading checkpoints into torch batches: five ways, and a bare memory read"),
    },
)

import torch

from benchmarks import results
from benchmarks.speed.measurements import line_of
from benchmarks.speed.reading import loader
from benchmarks.speed.training import gauge, generation, nfn

_BENCHMARKS = {_Nfn: nfn, _Gauge: gauge, _Generation: generation, _Loader: loader}


@_command
def main(options: _Shared) -> None:
    values = dict(vars(options))
    store = not values.pop("dry_run")
    if (threads := values.pop("threads", None)) is not None:
        torch.set_num_threads(threads)
    for row in _BENCHMARKS[type(options)](**values):
        if store:
            results.append([row])
        print(line_of(row), flush=True)


if __name__ == "__main__":
    main()
