"""How fast the code is: a table of the README, from the rows of ``python -m benchmarks.speed``."""

from collections.abc import Iterable
from typing import Any

from benchmarks.results import Result
from benchmarks.tables.markdown import MISSING, table

GPU, CPU = "H200", "CPU"
OTHER_DIMENSIONS = {  # than the paper's: how their rows call them, and how the table does
    "dim 16, heads 1": "`dim` 16, one head",
    "blocks 4": "4 blocks",
    "dim 64, heads 4, hidden_dim 128": "`dim` 64, 4 heads, `hidden_dim` 128",
}


class SpeedRows:
    """The rows of all speed benchmarks; of several measurements of the same thing the last counts."""

    def __init__(self, rows: Iterable[Result]) -> None:
        self.rows = list(rows)

    def find(self, metric: str, variant: str, device: str, config: str = "mnist", **setting: Any) -> float | None:
        for row in reversed(self.rows):
            matches = (row.metric, row.variant, row.config) == (metric, variant, config) and device in row.device
            if matches and all(row.setting.get(name) == value for name, value in setting.items()):
                return row.value
        return None

    def populations(self, config: str, variant: str) -> str:
        """Microseconds per step of one model, for every population size measured on the GPU."""
        metric = "us_per_model_step_with_evaluation"
        sizes = [
            row.setting["models"]
            for row in self.rows
            if (row.metric, row.variant, row.config) == (metric, variant, config) and GPU in row.device
        ]
        parts = [
            f"{self.find(metric, variant, GPU, config, models=size):,.3g} µs ({size:,} at once)"
            for size in sorted({size for size in sizes if isinstance(size, int)})
        ]
        return ", ".join(parts) or MISSING


def joined(values: Iterable[float | None], unit: str, scale: float = 1.0, digits: int = 0) -> str:
    """Such as 72 / 88 ms."""
    texts = [MISSING if value is None else f"{value * scale:,.{digits}f}" for value in values]
    return MISSING if set(texts) == {MISSING} else f"{' / '.join(texts)} {unit}".strip()


def speed_table(rows: Iterable[Result]) -> str:
    """The slow twin beside this code, one line per kind of work."""
    speed = SpeedRows(rows)
    tasks, batches = ("mnist", "agnews"), (16, 256)

    def generation(variant: str) -> list[float | None]:
        return [speed.find("us_per_model_step", variant, CPU, task) for task in tasks]

    def single(task: str, *others: str) -> str:
        return joined([speed.find("us_per_model_step", ", ".join(("single", *others)), GPU, task)], "µs, float32")

    def on_gpu(task: str, *others: str) -> str:
        engines = {"fused, float16": "fused population", "torch, bfloat16": "population"}
        times = {name: speed.populations(task, ", ".join((kind, *others))) for name, kind in engines.items()}
        return "; ".join(f"{name}: {time}" for name, time in times.items() if time != MISSING) or MISSING

    def fused(task: str, *others: str) -> str:
        parts = [speed.populations(task, f"fused population, {other}") for other in others]
        return f"fused, float16: {'; '.join(parts)}"

    def step(variant: str, graph: bool) -> list[float | None]:
        settings = [{"batch": batch, "seeds": 1, "cuda_graph": graph} for batch in batches]
        return [speed.find("training_step_ms", variant, GPU, **setting) for setting in settings]

    def passes(variant: str) -> list[float | None]:
        return [speed.find("forward_backward_ms", variant, CPU, task, batch=16) for task in tasks]

    def gauge(metric: str, device: str) -> list[float | None]:
        return [speed.find(metric, "gauge_nfn", device, task) for task in tasks]

    def gauge_line(work: str, metric: str) -> tuple[str, str, str]:
        cpu, gpu = (joined(gauge(metric, device), "s", digits=2) for device in (CPU, GPU))
        return f"{work}: MNIST / AG News", f"{cpu}, two CPU cores", f"{gpu}, H200"

    def reading(variant: str) -> float | None:
        return speed.find("checkpoints_per_second", variant, CPU)

    lines = [
        (
            "a training step of one model with batch 128 on an H200: MNIST",
            single("mnist"),
            f"with its share of one evaluation per epoch, {on_gpu('mnist')}",
        ),
        (
            "the same, AG News",
            single("agnews"),
            on_gpu("agnews"),
        ),
        *(
            (f"the same, MNIST with {name}", single("mnist", other), on_gpu("mnist", other))
            for other, name in OTHER_DIMENSIONS.items()
        ),
        (
            "the same, the paper's dimensions, in an A100's shared memory (163 KiB); an RTX 4090's (99 KiB): MNIST",
            single("mnist"),
            fused("mnist", "medium", "small"),
        ),
        (
            "the same, AG News",
            single("agnews"),
            fused("agnews", "medium", "small"),
        ),
        (
            "a training step of one model with batch 128, two CPU cores: MNIST / AG News",
            joined(generation("single"), "ms", 1e-3),
            joined(generation("population"), "ms", 1e-3),
        ),
        (
            "a training step of Transformer-NFN on an H200, MNIST, batch 16 / 256",
            joined(step("literal", False), "ms"),
            f"{joined(step('merged', True), 'ms', digits=2)} as a CUDA graph, "
            f"{joined(step('merged', False), 'ms', digits=1)} without",
        ),
        (
            "forward and backward of Transformer-NFN, batch 16, two CPU cores: MNIST / AG News",
            joined(passes("literal"), "ms"),
            joined(passes("merged"), "ms"),
        ),
        gauge_line("invariants of 1,000 checkpoints", "invariants_of_1000_seconds"),
        gauge_line("a fit of Gauge-NFN on 1,400 checkpoints", "fit_of_1400_seconds"),
        (
            "checkpoints read per second, one thread",
            f"{joined([reading('one .pt file each')], '')} (one `.pt` file each)",
            f"{joined([reading('zoo.open')], '')} in order, {joined([reading('zoo.open, shuffled')], '')} shuffled",
        ),
    ]
    return table(["work", "slow twin", "this code"], lines)
