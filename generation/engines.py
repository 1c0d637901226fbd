"""Which engine trains a population: torch, or the fused CUDA kernels."""

from collections.abc import Sequence

import torch

from generation.fused.engine import FusedEngine
from generation.fused.fit import obstacle
from generation.population import Engine
from generation.protocol import RunConfig
from generation.torch_engine import TorchEngine
from zoo.tasks import TaskData

ENGINES = ("auto", "fused", "torch")


def make_engine(
    name: str,
    configs: Sequence[RunConfig],
    task: TaskData,
    device: torch.device,
    models_per_pass: int | None = None,
) -> Engine:
    """The engine by name. ``auto`` is torch: the fused kernels have run on the emulator, on no GPU yet."""
    if name not in ENGINES:
        raise ValueError(f"unknown engine {name!r}: one of {', '.join(ENGINES)}")
    if name == "fused":
        if problem := obstacle(configs, device):
            raise ValueError(f"the fused engine cannot train here: {problem}; use --engine torch")
        return FusedEngine.on_cuda(configs, task, device)
    return TorchEngine(configs, task, device=device, models_per_pass=models_per_pass)
