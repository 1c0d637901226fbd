"""The options that the speed benchmarks of predictors share."""

from dataclasses import dataclass

import torch

from benchmarks.speed.record import Record
from zoo.command import command_parser, positive
from zoo.transformer.spec import SPECS


@dataclass(frozen=True)
class SpeedOptions:
    """Every pair of a config and a device is measured ``repeats`` times."""

    cases: tuple[tuple[str, torch.device], ...]
    repeats: int
    record: Record


def read_options(name: str, documentation: str | None, arguments: list[str] | None, repeats: int) -> SpeedOptions:
    """Parses the command line of ``benchmarks.speed NAME``, whose default is this many repeats."""
    parser = command_parser(f"benchmarks.speed {name}", documentation)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="where to train (default: all that this machine has)")
    parser.add_argument("--config", choices=list(SPECS), help="task (default: all)")
    parser.add_argument("--repeats", type=int, default=repeats, help="samples of each time")
    parser.add_argument("--threads", type=positive, help="CPU threads (default: torch's own choice)")
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
    cases = tuple((config, torch.device(device)) for config in configs for device in devices)
    return SpeedOptions(cases, options.repeats, Record(options.dry_run))
