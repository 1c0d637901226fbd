"""Whether the fused kernels can train a population on a device.

A sample has four warps with 16 token rows each, and logits are one tile of 16 columns. Other dimensions are those that
divide into tiles of 16, up to what a warp's registers hold of its 16 rows and shared memory of a sample. Four heads and
four blocks were tried, not more.
"""

from collections.abc import Sequence
from importlib.util import find_spec

import torch

from generation.fused.shared_memory import TILE, features, inner
from generation.fused.variants import OLDEST, Variant, best_variant, smallest_variant
from generation.protocol import RunConfig
from zoo.transformer.spec import TransformerSpec

SAMPLES_AT_ONCE = 16  # the classifier's gradients are made of this many samples at a time
LARGEST_BATCH = 1 << 16
LIMITS = {"tokens": 64, "classes": 16, "blocks": 4, "heads": 4}
TILED_LIMITS = {"dim": 64, "key_dim": 64, "hidden_dim": 128}
LARGEST_PATCH = LARGEST_INNER = 64  # numbers of a patch, and of a token's heads side by side


def obstacle(
    spec: TransformerSpec, configs: Sequence[RunConfig], device: torch.device, variant: Variant | None = None
) -> str | None:
    """Why the kernels cannot train these runs of this transformer on this device, in one line; None if they can.

    In the best variant, unless one is given.
    """
    batch = configs[0].protocol.batch_size
    if found := misfits(spec):
        return "; ".join(found)
    if batch % SAMPLES_AT_ONCE or batch >= LARGEST_BATCH:
        return f"it needs a batch size that is a multiple of {SAMPLES_AT_ONCE} below {LARGEST_BATCH}, got {batch}"
    if device.type != "cuda":
        return f"it needs a CUDA device, got {device}"
    properties = torch.cuda.get_device_properties(device)
    capability, shared_bytes = (properties.major, properties.minor), properties.shared_memory_per_block_optin
    if capability < OLDEST:
        needed = ".".join(map(str, OLDEST))
        return f"it needs compute capability {needed}, {properties.name} has {properties.major}.{properties.minor}"
    if best_variant(spec, shared_bytes, capability) is None:
        least = smallest_variant(spec)
        assert least is not None, "whatever is within the limits fits the largest"
        return (
            f"it needs {least.shared_kibibytes} KiB of shared memory per block for this transformer, "
            f"{properties.name} has {shared_bytes // 1024} KiB"
        )
    if variant is not None and not variant.fits(spec, shared_bytes, capability):
        return f"its {variant.name} variant does not fit this transformer or {properties.name}"
    return missing_compiler()


def missing_compiler() -> str | None:
    """What to install where NVIDIA's runtime compiler is not; None where it is."""
    if find_spec("cuda") is None or find_spec("cuda.core") is None or find_spec("cuda.bindings") is None:
        return "it needs cuda-core to compile its kernels: pip install 'small-transformer-zoo[fused]'"
    return None


def misfits(spec: TransformerSpec) -> list[str]:
    """What the kernels cannot take of a transformer, e.g. "it takes at most 4 blocks, this one has 6"."""
    sizes = [(name, limit, getattr(spec, name)) for name, limit in LIMITS.items()]
    found = [f"it takes at most {limit} {name}, this one has {size}" for name, limit, size in sizes if size > limit]
    tiled = [(f"a {name} that is", limit, getattr(spec, name)) for name, limit in TILED_LIMITS.items()]
    if spec.patch_size is not None:
        tiled.append(("patches whose channels × pixels are", LARGEST_PATCH, features(spec)))
    found += [
        f"it takes {what} a multiple of {TILE} up to {limit}, this one has {size}"
        for what, limit, size in tiled
        if size % TILE or size > limit
    ]
    if spec.value_dim != spec.key_dim:
        found.append(f"it takes a value_dim that is the key_dim, this one has {spec.value_dim} and {spec.key_dim}")
    elif inner(spec) > LARGEST_INNER and not found:
        found.append(f"it takes heads of {LARGEST_INNER} together at most, this one has {spec.heads} of {spec.key_dim}")
    if spec.residual:
        found.append("it takes no residual connections, this one has them")
    return found
