"""What the speed benchmarks share: seconds per call, and the row and the line made from them.

Warm up, synchronize, repeat; a row has the median and the spread.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, TypeVar

import torch

from benchmarks.results import Result, Scalar
from benchmarks.statistics import standard_error
from zoo.command import duration
from zoo.terminal import say

_Name = TypeVar("_Name")


def measure(
    calls: Mapping[_Name, Callable[[], object]],
    *,
    repeats: int,
    device: torch.device | str = "cpu",
    warmup: int = 3,
    calls_per_sample: int = 1,
) -> dict[_Name, Sequence[float]]:
    """Seconds per call of each function. They take turns, so that a busy moment of the machine affects all of them.

    ``calls_per_sample`` calls share one synchronization, for work that a GPU queues. If the first samples show that the
    others will take more than some seconds, this is announced.
    """
    device = torch.device(device)
    for call in calls.values():
        for _ in range(warmup):
            _seconds(call, device)
    rounds: list[list[float]] = []
    for left in range(repeats - 1, -1, -1):
        rounds.append([_seconds(call, device, calls_per_sample) for call in calls.values()])
        if len(rounds) == 1 and (expected := sum(rounds[0]) * calls_per_sample * left) > 5:
            say(f"  about {duration(expected)} more")
    return dict(zip(calls, zip(*rounds, strict=True), strict=True))


def _seconds(call: Callable[[], object], device: torch.device, calls: int = 1) -> float:
    """The mean of some calls in a row, which the device has finished."""
    _synchronize(device)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    _synchronize(device)
    return (time.perf_counter() - start) / calls


def _synchronize(device: torch.device) -> None:
    """Waits until the device has finished its work; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def speed_row(benchmark: str, config: str, variant: str, metric: str, samples: Sequence[float], **known: Any) -> Result:
    """A row of the median and its error; ``known`` are other arguments of ``Result.measured``."""
    values = {"device": torch.device("cpu"), "variant": variant, "n": len(samples), "stderr": standard_error(samples)}
    return Result.measured(f"speed.{benchmark}", config, metric, median(samples), **values | known)


def line_of(row: Result) -> str:
    """A row in the terminal: config, variant, metric, value ± standard error, and the setting."""

    def short(value: Scalar | list[Scalar]) -> str:
        if not isinstance(value, float):
            return str(value)
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"

    setting = ", ".join(f"{name} {short(value)}" for name, value in row.setting.items())
    value = short(row.value) + ("" if row.stderr is None else f" ± {short(row.stderr)}")
    return f"{row.config:8s} {row.variant or '':26s} {row.metric:34s} {value:20s} {row.device}: {setting}"
