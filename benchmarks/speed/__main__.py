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

from zoo.command import BAD_INPUT, command

BENCHMARKS = ("nfn", "gauge", "generation", "loader", "page")


@command
def main(arguments: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        sys.exit(0 if arguments else BAD_INPUT)
    name, *rest = arguments
    if name not in BENCHMARKS:
        raise ValueError(f"unknown speed benchmark {name!r}: one of {', '.join(BENCHMARKS)}")
    importlib.import_module(f"benchmarks.speed.{name}").main(rest)


if __name__ == "__main__":
    main()
