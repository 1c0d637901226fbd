"""What the speed benchmarks share: seconds per call, the row and the line made from them, and the README's table.

Warm up, synchronize, repeat; a row has the median and the spread.
"""

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from benchmarks.results import Result, Scalar, Setting
from benchmarks.tables.markdown import MISSING, table
from zoo.command import duration

WITH_EVALUATION = "us_per_model_step_with_evaluation"
_Name = TypeVar("_Name")
_GPU, _CPU = "H200", "CPU"
_TASKS = ({"config": "mnist"}, {"config": "agnews"})
_OTHER_DIMENSIONS = {  # than the paper's: their names in rows, and in the table
    "dim 16, heads 1": "`dim` 16, one head",
    "blocks 4": "4 blocks",
    "dim 64, heads 4, hidden_dim 128": "`dim` 64, 4 heads, `hidden_dim` 128",
}


@dataclass(frozen=True)
class Samples:
    """Repeated measurements of one thing, such as seconds per call."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def stderr(self) -> float | None:
        """Standard error of the mean; None for a single sample."""
        return statistics.stdev(self.values) / math.sqrt(len(self.values)) if len(self.values) > 1 else None

    def map(self, function: Callable[[float], float]) -> "Samples":
        return Samples(tuple(map(function, self.values)))


def measure(
    calls: Mapping[_Name, Callable[[], object]],
    *,
    repeats: int,
    device: torch.device | str = "cpu",
    warmup: int = 3,
    calls_per_sample: int = 1,
) -> dict[_Name, Samples]:
    """Seconds per call of each function. They take turns, so that a busy moment of the machine affects all of them.

    ``calls_per_sample`` calls share one synchronization, for work that a GPU queues.
    """
    device = torch.device(device)
    if warmup:
        warm = [min(_seconds(call, device) for _ in range(warmup)) for call in calls.values()]
        if (expected := sum(warm) * calls_per_sample * repeats) > 5:
            say(f"  about {duration(expected)}")
    rounds = [[_seconds(call, device, calls_per_sample) for call in calls.values()] for _ in range(repeats)]
    return {name: Samples(values) for name, values in zip(calls, zip(*rounds, strict=True), strict=True)}


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


def say(text: str) -> None:
    """Progress, beside the rows."""
    print(text, file=sys.stderr, flush=True)


def speed_row(
    benchmark: str,
    config: str,
    variant: str,
    metric: str,
    samples: Samples,
    *,
    setting: Setting,
    device: torch.device | str = "cpu",
    packages: Sequence[str] = ("torch",),
) -> Result:
    return Result.measured(
        f"speed.{benchmark}",
        config,
        metric,
        samples.median,
        stderr=samples.stderr,
        n=len(samples.values),
        device=device,
        variant=variant,
        setting=setting,
        packages=packages,
    )


def line_of(row: Result) -> str:
    """A row in the terminal: config, variant, metric, value ± standard error, and the setting."""

    def short(value: Scalar | list[Scalar]) -> str:
        if not isinstance(value, float):
            return str(value)
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"

    setting = ", ".join(f"{name} {short(value)}" for name, value in row.setting.items())
    value = short(row.value) + ("" if row.stderr is None else f" ± {short(row.stderr)}")
    return f"{row.config:8s} {row.variant or '':26s} {row.metric:34s} {value:20s} {row.device}: {setting}"


def speed_table(rows: Iterable[Result]) -> str:
    """The slow twin beside this code, one line per kind of work; the last of several equal measurements counts."""
    latest_first = list(rows)[::-1]

    def found(metric: str, variant: str, device: str, config: str = "mnist", **setting: Any) -> list[Result]:
        return [
            row
            for row in latest_first
            if (row.metric, row.variant, row.config) == (metric, variant, config)
            and device in row.device
            and setting.items() <= row.setting.items()
        ]

    def times(
        metric: str,
        variant: str,
        device: str,
        unit: str,
        *cases: dict[str, Any],
        scale: float = 1.0,
        digits: int = 0,
    ) -> str:
        """Such as 72 / 88 ms: a number for each case."""
        last = [next(iter(found(metric, variant, device, **case)), None) for case in cases]
        texts = [MISSING if row is None else f"{row.value * scale:,.{digits}f}" for row in last]
        return MISSING if set(texts) == {MISSING} else f"{' / '.join(texts)} {unit}".strip()

    def populations(task: str, *variant: str) -> str:
        """Microseconds per step of one model, for every population size measured on the GPU."""
        by_size: dict[Any, float] = {
            row.setting["models"]: row.value for row in found(WITH_EVALUATION, ", ".join(variant), _GPU, task)[::-1]
        }
        parts = [f"{by_size[size]:,.3g} µs ({size:,} at once)" for size in sorted(by_size)]
        return ", ".join(parts) or MISSING

    def on_gpu(task: str, *dimensions: str) -> tuple[str, str]:
        single = times("us_per_model_step", ", ".join(("single", *dimensions)), _GPU, "µs, float32", {"config": task})
        engines = {"fused, float16": "fused population", "torch, bfloat16": "population"}
        both = {name: populations(task, variant, *dimensions) for name, variant in engines.items()}
        return single, "; ".join(f"{name}: {text}" for name, text in both.items() if text != MISSING) or MISSING

    def smaller_gpus(task: str) -> tuple[str, str]:
        parts = [populations(task, "fused population", variant) for variant in ("medium", "small")]
        return on_gpu(task)[0], f"fused, float16: {'; '.join(parts)}"

    def gauge(work: str, metric: str) -> tuple[str, str, str]:
        cpu, gpu = (times(metric, "gauge_nfn", device, "s", *_TASKS, digits=2) for device in (_CPU, _GPU))
        return f"{work}: MNIST / AG News", f"{cpu}, two CPU cores", f"{gpu}, H200"

    def steps(variant: str, graph: bool, digits: int) -> str:
        cases = [{"batch": batch, "seeds": 1, "cuda_graph": graph} for batch in (16, 256)]
        return times("training_step_ms", variant, _GPU, "ms", *cases, digits=digits)

    def on_cpu(metric: str, *variants: str, scale: float = 1.0, **setting: Any) -> list[str]:
        cases = [task | setting for task in _TASKS]
        return [times(metric, variant, _CPU, "ms", *cases, scale=scale) for variant in variants]

    def per_second(variant: str) -> str:
        return times("checkpoints_per_second", variant, _CPU, "", {})

    single, populations_of_mnist = on_gpu("mnist")
    lines = [
        (
            "a training step of one model with batch 128 on an H200: MNIST",
            single,
            f"with its share of one evaluation per epoch, {populations_of_mnist}",
        ),
        ("the same, AG News", *on_gpu("agnews")),
        *((f"the same, MNIST with {name}", *on_gpu("mnist", other)) for other, name in _OTHER_DIMENSIONS.items()),
        (
            "the same, the paper's dimensions, in an A100's shared memory (163 KiB); an RTX 4090's (99 KiB): MNIST",
            *smaller_gpus("mnist"),
        ),
        ("the same, AG News", *smaller_gpus("agnews")),
        (
            "a training step of one model with batch 128, two CPU cores: MNIST / AG News",
            *on_cpu("us_per_model_step", "single", "population", scale=1e-3),
        ),
        (
            "a training step of Transformer-NFN on an H200, MNIST, batch 16 / 256",
            steps("literal", False, 0),
            f"{steps('merged', True, 2)} as a CUDA graph, {steps('merged', False, 1)} without",
        ),
        (
            "forward and backward of Transformer-NFN, batch 16, two CPU cores: MNIST / AG News",
            *on_cpu("forward_backward_ms", "literal", "merged", batch=16),
        ),
        gauge("invariants of 1,000 checkpoints", "invariants_of_1000_seconds"),
        gauge("a fit of Gauge-NFN on 1,400 checkpoints", "fit_of_1400_seconds"),
        (
            "checkpoints read per second, one thread",
            f"{per_second('one .pt file each')} (one `.pt` file each)",
            f"{per_second('zoo.open')} in order, {per_second('zoo.open, shuffled')} shuffled",
        ),
    ]
    return table(["work", "slow twin", "this code"], lines)
