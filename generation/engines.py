"""Which engine trains a population: torch, or the fused CUDA kernels."""

import warnings
from collections.abc import Sequence

import torch

from generation.fused.engine import FusedEngine
from generation.fused.fit import obstacle
from generation.fused.variants import Variant
from generation.population.engine import Engine
from generation.population.torch_engine import TorchEngine
from generation.protocol import RunConfig
from zoo.tasks.examples import TaskData

ENGINES = ("auto", "fused", "torch")


def make_engine(
    name: str,
    configs: Sequence[RunConfig],
    task: TaskData,
    device: torch.device,
    models_per_pass: int | None = None,
    variant: Variant | None = None,
) -> Engine:
    """The engine by name. ``auto`` is the fused one where it can train and no ``models_per_pass`` asks for torch.

    The fused engine takes its best variant, unless one is given.
    """
    if name not in ENGINES:
        raise ValueError(f"unknown engine {name!r}: one of {', '.join(ENGINES)}")
    if name == "fused" and models_per_pass is not None:
        raise ValueError("the fused engine trains all models at once: --models-per-pass is for --engine torch")
    if name == "fused" or (name == "auto" and models_per_pass is None):
        problem = obstacle(task.spec, configs, device, variant)
        if problem is None:
            return FusedEngine.on_cuda(configs, task, device, variant)
        if name == "fused":
            raise ValueError(f"the fused engine cannot train here: {problem}; use --engine torch")
        if device.type == "cuda":
            warnings.warn(f"torch trains, several times slower than the fused engine: {problem}", stacklevel=2)
    return TorchEngine(configs, task, device=device, models_per_pass=models_per_pass)
