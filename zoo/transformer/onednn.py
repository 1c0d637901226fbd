"""A way around slow matrix products of torch on ARM servers."""

import platform
from collections.abc import Iterator
from contextlib import contextmanager

import torch

AVOIDED = platform.machine() in ("aarch64", "arm64")


@contextmanager
def fast_small_products() -> Iterator[None]:
    """Small batched matrix products at their proper speed on every CPU.

    On 64-bit ARM torch hands them to oneDNN, which takes 145 ms for 256 products [49,16]·[16,49] whose second factor is
    a transposed view; torch's own kernels take 3 ms. Inside the block torch uses its own. Elsewhere nothing changes.
    """
    if not AVOIDED:
        yield
        return
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before
