"""What each kernel is given.

``TrainArguments`` and ``EvaluateArguments`` have the fields of the C++ structs of the same names, in the same order.
A tensor is passed as its address, an integer as 32 bits.
"""

import ctypes
from dataclasses import dataclass, fields
from functools import cache
from typing import ClassVar

import torch
from jaxtyping import Float16, Float32, Float64, Int32, UInt8, UInt32
from torch import Tensor


@dataclass(frozen=True)
class TrainArguments:
    """One epoch of a population; weights, moments and losses are written in place."""

    kernel: ClassVar[str] = "train_epoch"

    tokens: Float16[Tensor, "samples tokens features"]
    facts: Int32[Tensor, " samples"]
    positions: Float32[Tensor, "tokens dim"]
    corrections: Float32[Tensor, "steps 2"]
    rules: Float32[Tensor, "models numbers"]
    epsilons: Float32[Tensor, " models"]
    thresholds: Int32[Tensor, " models"]
    seeds: UInt32[Tensor, " models"]
    alive: UInt8[Tensor, " models"]
    weights: Float32[Tensor, "models parameters"]
    first_moments: Float32[Tensor, "models parameters"]
    second_moments: Float32[Tensor, "models parameters"]
    losses: Float64[Tensor, " models"]
    steps: int
    batch: int
    first_step: int
    parked: Int32[Tensor, "models words"]
    packs: Int32[Tensor, "steps batch"]
    pack_counts: Int32[Tensor, " steps"]


@dataclass(frozen=True)
class EvaluateArguments:
    """All examples through every model; correct answers and losses are written in place, one number per part."""

    kernel: ClassVar[str] = "evaluate"

    tokens: Float16[Tensor, "examples tokens features"]
    facts: Int32[Tensor, " examples"]
    positions: Float32[Tensor, "tokens dim"]
    alive: UInt8[Tensor, " models"]
    weights: Float32[Tensor, "models parameters"]
    correct: Int32[Tensor, "models parts"]
    losses: Float64[Tensor, "models parts"]
    examples: int
    part_size: int
    parts: int


Arguments = TrainArguments | EvaluateArguments
KERNELS: tuple[type[TrainArguments] | type[EvaluateArguments], ...] = (TrainArguments, EvaluateArguments)


@cache
def layout(kind: type[TrainArguments] | type[EvaluateArguments]) -> type[ctypes.Structure]:
    """The struct as C lays it out."""
    members = [(field.name, ctypes.c_int32 if field.type is int else ctypes.c_void_p) for field in fields(kind)]
    return type(kind.__name__, (ctypes.Structure,), {"_fields_": members})


def pack(arguments: Arguments, device: torch.device) -> ctypes.Structure:
    """The struct that a kernel takes by value. It holds no tensor: keep ``arguments`` until the kernel is launched."""
    values: list[int] = []
    for field in fields(arguments):
        value = getattr(arguments, field.name)
        if isinstance(value, Tensor):
            assert value.is_contiguous(), f"{field.name} is not contiguous"
            assert value.device == device, f"{field.name} is on {value.device}, the kernel on {device}"
            value = value.data_ptr()
        values.append(value)
    return layout(type(arguments))(*values)
