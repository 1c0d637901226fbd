"""A training step as a CUDA graph: at this size launching its kernels takes many times longer than running them."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

WARMUP_STEPS = 3
T = TypeVar("T")


def record(
    step: Callable[[], T], parameters: Sequence[Tensor], optimizer: torch.optim.Optimizer
) -> tuple[torch.cuda.CUDAGraph, T]:
    """The recorded step, and what it returns, which every replay overwrites.

    CUDA needs a step warmed up before it is recorded. The warm-up trains, so parameters and optimizer are put back.
    """
    device = parameters[0].device
    before = [parameter.detach().clone() for parameter in parameters]
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(WARMUP_STEPS):
            step()
        with torch.no_grad():
            for parameter, value in zip(parameters, before, strict=True):
                parameter.copy_(value)
            for state in optimizer.state.values():
                for tensor in state.values():
                    tensor.zero_()
    torch.cuda.current_stream(device).wait_stream(stream)
    # Dropped before the recording begins, so that it allocates new gradients in its own memory.
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device), torch.cuda.graph(graph):
        result = step()
    return graph, result
