"""How long a call takes: warm up, synchronize, repeat, report the median and the spread."""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Timing:
    """Seconds per call, one number per sample."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def stderr(self) -> float | None:
        """Standard error of the mean; None for a single sample."""
        return statistics.stdev(self.samples) / math.sqrt(self.n) if self.n > 1 else None

    @property
    def best(self) -> float:
        return min(self.samples)

    @property
    def n(self) -> int:
        return len(self.samples)


def measure(
    call: Callable[[], object],
    *,
    device: torch.device | str = "cpu",
    repeats: int = 20,
    warmup: int = 3,
    calls_per_sample: int = 1,
) -> Timing:
    """Times one function. ``calls_per_sample`` calls share one synchronization, for work that a GPU queues."""
    timings = measure_together(
        {"": call}, device=device, repeats=repeats, warmup=warmup, calls_per_sample=calls_per_sample
    )
    return timings[""]


def measure_together(
    calls: Mapping[str, Callable[[], object]],
    *,
    device: torch.device | str = "cpu",
    repeats: int = 20,
    warmup: int = 3,
    calls_per_sample: int = 1,
    expect: Callable[[float], None] = lambda seconds: None,
) -> dict[str, Timing]:
    """Times several functions in turn, sample by sample, so that a busy moment of the machine affects all of them.

    After the warm-up, ``expect`` is told how many seconds the samples will take by what the warm-up took.
    """
    device = torch.device(device)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    if warmup:
        warm = [min(seconds_of(call, device) for _ in range(warmup)) for call in calls.values()]
        expect(sum(warm) * calls_per_sample * repeats)
    for _ in range(repeats):
        for name, call in calls.items():
            samples[name].append(seconds_of(call, device, calls_per_sample))
    return {name: Timing(tuple(seconds)) for name, seconds in samples.items()}


def seconds_of(call: Callable[[], object], device: torch.device, calls: int = 1) -> float:
    """The mean of some calls in a row, which the device has finished."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    synchronize(device)
    return (time.perf_counter() - start) / calls


def synchronize(device: torch.device) -> None:
    """Waits until the device has finished its work; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
