"""Measures speed and appends the rows to ``benchmarks/results/``.

python -m benchmarks.speed nfn          Transformer-NFN: training step and forward + backward, beside its literal twin
python -m benchmarks.speed gauge        Gauge-NFN: the invariants of 1,000 checkpoints, a fit on 1,400
python -m benchmarks.speed generation   training zoo models
python -m benchmarks.speed loader       reading checkpoints
python -m benchmarks.speed page         the static page of a zoo: size, time to the first chart

Each takes ``--help``.
"""

import importlib
import sys

BENCHMARKS = ("nfn", "gauge", "generation", "loader", "page")


def main(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        sys.exit(0 if arguments else 2)
    name, *rest = arguments
    if name not in BENCHMARKS:
        sys.exit(f"unknown speed benchmark {name!r}: one of {', '.join(BENCHMARKS)}")
    importlib.import_module(f"benchmarks.speed.{name}").main(rest)


if __name__ == "__main__":
    main(sys.argv[1:])
