"""Measures speed and appends the rows to ``benchmarks/results/`` the moment they are measured.

python -m benchmarks.speed nfn          Transformer-NFN: training step and forward + backward, beside its literal twin
python -m benchmarks.speed gauge        Gauge-NFN: the invariants of 1,000 checkpoints, a fit on 1,400
python -m benchmarks.speed generation   training zoo models
python -m benchmarks.speed loader       reading checkpoints
python -m benchmarks.speed page         the static page of a zoo: size, time to the first chart

Each takes ``--help``.
"""

import argparse
import inspect
from pathlib import Path

import torch

from benchmarks import results
from benchmarks.speed.measurements import line_of
from benchmarks.speed.reading import MIN_CHECKPOINTS, loader, page
from benchmarks.speed.training import FUSED_VARIANTS, gauge, generation, nfn
from zoo.command import command, command_parser, positive
from zoo.format.hyperparameters import SEED_POLICIES, SHARED_SEED
from zoo.transformer.dimensions import add_dimensions
from zoo.transformer.spec import SPECS

_BENCHMARKS = {"nfn": nfn, "gauge": gauge, "generation": generation, "loader": loader, "page": page}
_REPEATS = {
    "nfn": (30, "samples of each time"),
    "gauge": (3, "samples of each time"),
    "generation": (3, "epochs timed"),
    "loader": (7, "passes over the data for each way"),
    "page": (5, "times that each page is opened"),
}


@command
def main(arguments: list[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    if getattr(options, "threads", None) is not None:
        torch.set_num_threads(options.threads)
    for row in _BENCHMARKS[options.benchmark](options):
        if not options.dry_run:
            results.append([row])
        print(line_of(row), flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("benchmarks.speed", __doc__)
    benchmarks = parser.add_subparsers(
        dest="benchmark", required=True, metavar="BENCHMARK", help=f"one of {', '.join(_BENCHMARKS)}"
    )
    of = {}
    for name, measured in _BENCHMARKS.items():
        text = inspect.getdoc(measured)
        of[name] = benchmarks.add_parser(name, description=text, formatter_class=parser.formatter_class)
        repeats, what = _REPEATS[name]
        kind = positive if name == "generation" else _at_least_two
        of[name].add_argument("--repeats", type=kind, default=repeats, help=what)
        of[name].add_argument("--dry-run", action="store_true", help="print the rows without storing them")

    for name in ("nfn", "gauge"):
        of[name].add_argument(
            "--device", choices=["cpu", "cuda"], help="where to train (default: all that this machine has)"
        )
        of[name].add_argument("--config", choices=list(SPECS), help="task (default: all)")
        of[name].add_argument("--threads", type=positive, help="CPU threads (default: torch's own choice)")

    add = of["generation"].add_argument
    add("--device", default="auto", help="cpu, cuda, cuda:1, or auto: the GPU where there is one")
    add("--config", choices=list(SPECS), nargs="+", default=list(SPECS), help="tasks")
    add("--models", type=positive, nargs="+", help="population sizes (default: 512 1024 on a GPU, 4 on a CPU)")
    add(
        "--engines",
        choices=("fused", "torch"),
        nargs="+",
        help="what trains populations (default: both on a GPU, torch on a CPU)",
    )
    add("--steps", type=positive, help="steps per epoch (default: on a GPU 468, a whole epoch of MNIST; on a CPU 3)")
    add(
        "--seeds",
        choices=SEED_POLICIES,
        default=SHARED_SEED,
        help="shared: one seed for all models; distinct: a seed for each",
    )
    add(
        "--variant",
        choices=FUSED_VARIANTS,
        help="the fused engine's variant (default: the best that fits this GPU)",
    )
    add_dimensions(of["generation"])

    add = of["loader"].add_argument
    add("--zoo", help=f"a zoo with at least {MIN_CHECKPOINTS:,} training rows (default: fabricated)")
    add("--config", default="mnist", help="config of the zoo")
    add("--threads", type=positive, default=1, help="threads that sum the batches")
    add("--scratch", type=Path, help="folder for about 1.5 GB of temporary files (default: that of the system)")

    of["page"].add_argument("--runs", type=positive, default=16_000, help="runs of the fabricated zoo")
    return parser


def _at_least_two(text: str) -> int:
    if (value := int(text)) < 2:
        raise argparse.ArgumentTypeError(f"must be at least 2 to have a spread, got {value}")
    return value


if __name__ == "__main__":
    main()
