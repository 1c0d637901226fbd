"""Whether the fused kernels can train a population on a device.

They take the paper's two transformers with any number of tokens, classes and blocks up to ``LIMITS``. A sample has four
warps with 16 token rows each. Logits are one tile of 16 columns. More than four blocks were
never tried.
"""

from collections.abc import Sequence
from dataclasses import fields
from importlib.util import find_spec

import torch

from generation.fused.variants import OLDEST, best_variant, smallest_variant
from generation.protocol import RunConfig
from zoo.transformer.spec import AGNEWS, MNIST, TransformerSpec

SAMPLES_AT_ONCE = 16  # the classifier's gradients are made of this many samples at a time
LARGEST_BATCH = 1 << 16
LIMITS = {"tokens": 64, "classes": 16, "blocks": 4}


def obstacle(spec: TransformerSpec, configs: Sequence[RunConfig], device: torch.device) -> str | None:
    """Why the kernels cannot train these runs of this transformer on this device, in one line; None if they can."""
    batch = configs[0].protocol.batch_size
    if found := misfits(spec):
        return "; ".join(found)
    if batch % SAMPLES_AT_ONCE or batch >= LARGEST_BATCH:
        return f"it needs a batch size that is a multiple of {SAMPLES_AT_ONCE} below {LARGEST_BATCH}, got {batch}"
    if device.type != "cuda":
        return f"it needs a CUDA device, got {device}"
    properties = torch.cuda.get_device_properties(device)
    if (properties.major, properties.minor) < OLDEST:
        needed = ".".join(map(str, OLDEST))
        return f"it needs compute capability {needed}, {properties.name} has {properties.major}.{properties.minor}"
    shared_bytes = properties.shared_memory_per_block_optin
    if best_variant(spec, shared_bytes, (properties.major, properties.minor)) is None:
        least = smallest_variant(spec)
        assert least is not None, "whatever is within the limits fits the largest"
        return (
            f"it needs {least.shared_kibibytes} KiB of shared memory per block for this transformer, "
            f"{properties.name} has {shared_bytes // 1024} KiB"
        )
    if find_spec("cuda") is None or find_spec("cuda.core") is None or find_spec("cuda.bindings") is None:
        return "it needs cuda-core to compile its kernels: pip install 'small-transformer-zoo[fused]'"
    return None


def misfits(spec: TransformerSpec) -> list[str]:
    """What the kernels cannot take of a transformer, e.g. "it takes at most 4 blocks, this one has 6"."""
    sizes = [(name, limit, getattr(spec, name)) for name, limit in LIMITS.items()]
    found = [f"it takes at most {limit} {name}, this one has {size}" for name, limit, size in sizes if size > limit]
    if other := unlike(AGNEWS if spec.patch_size is None else MNIST, spec):
        found.append(f"it takes the paper's dimensions, this one has {', '.join(other)}")
    return found


def unlike(paper: TransformerSpec, spec: TransformerSpec) -> list[str]:
    """In what a spec differs besides its name and what has a limit, e.g. "heads 4, not 2"."""
    names = [field.name for field in fields(paper) if field.name not in ("task", *LIMITS)]
    pairs = [(name, getattr(paper, name), getattr(spec, name)) for name in names]
    return [f"{name} {actual}, not {expected}" for name, expected, actual in pairs if actual != expected]
