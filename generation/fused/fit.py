"""Whether the fused kernels can train a population on a device."""

from collections.abc import Sequence
from dataclasses import fields
from importlib.util import find_spec

import torch

from generation.fused.variants import OLDEST, SMALLEST
from generation.protocol import RunConfig
from zoo.transformer.spec import AGNEWS, MNIST, TransformerSpec

SAMPLES_AT_ONCE = 16  # the classifier's gradients are made of this many samples at a time
LARGEST_BATCH = 1 << 16


def obstacle(spec: TransformerSpec, configs: Sequence[RunConfig], device: torch.device) -> str | None:
    """Why the kernels cannot train these runs of this transformer on this device, in one line; None if they can."""
    batch = configs[0].protocol.batch_size
    if differing := unlike(AGNEWS if spec.patch_size is None else MNIST, spec):
        return f"its kernels are written for the paper's two transformers, this one has {', '.join(differing)}"
    if batch % SAMPLES_AT_ONCE or batch >= LARGEST_BATCH:
        return f"it needs a batch size that is a multiple of {SAMPLES_AT_ONCE} below {LARGEST_BATCH}, got {batch}"
    if device.type != "cuda":
        return f"it needs a CUDA device, got {device}"
    properties = torch.cuda.get_device_properties(device)
    if (properties.major, properties.minor) < OLDEST:
        needed = ".".join(map(str, OLDEST))
        return f"it needs compute capability {needed}, {properties.name} has {properties.major}.{properties.minor}"
    if properties.shared_memory_per_block_optin < SMALLEST.shared_bytes:
        return (
            f"it needs {SMALLEST.shared_kibibytes} KiB of shared memory per block, "
            f"{properties.name} has {properties.shared_memory_per_block_optin // 1024} KiB"
        )
    if find_spec("cuda") is None or find_spec("cuda.core") is None or find_spec("cuda.bindings") is None:
        return "it needs cuda-core to compile its kernels: pip install 'small-transformer-zoo[fused]'"
    return None


def unlike(expected: TransformerSpec, actual: TransformerSpec) -> list[str]:
    """The dimensions in which two specs differ, e.g. "blocks 4, not 2"; the task's name is none."""
    pairs = [(field.name, getattr(expected, field.name), getattr(actual, field.name)) for field in fields(expected)]
    return [f"{name} {b}, not {a}" for name, a, b in pairs if a != b and name != "task"]
