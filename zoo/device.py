"""The device that a command should use, how work shares the cores of a CPU, and small products at their proper speed.

Threads that share one operation of torch wait for each other at its end. On a computer that is busy with other work one
of them often pauses, and then all do: with two threads, training a predictor on two cores took 0.9 times as long as
with one, but 1.2 and 1.8 times as long beside two busy processes. So an operation has one thread here, and independent
ones run at once.
"""

import platform
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import torch

_SLOW_ONEDNN = platform.machine() in ("aarch64", "arm64")


def choose_device(name: str) -> torch.device:
    """The device of this name; ``auto`` is the GPU where there is one. A device that torch cannot use is an error."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = None
    with suppress(RuntimeError):
        device = torch.device(name)
    if device is None or device.type not in ("cpu", "cuda"):
        raise ValueError(f"unknown device {name!r}: cpu or cuda, or cuda:1 for a second GPU")
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise ValueError(f"there is no device {name!r}: torch sees {count} CUDA devices here, try cpu")
    return device


def name_device(device: torch.device) -> str:
    """The name of a GPU, or how many threads a CPU computes with."""
    gpu = device.type == "cuda"
    return torch.cuda.get_device_name(device) if gpu else f"CPU, {torch.get_num_threads()} threads"


@contextmanager
def one_thread() -> Iterator[None]:
    """Operations of torch that this thread starts inside the ``with`` are computed by one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def single_threaded_workers(count: int) -> ThreadPoolExecutor:
    """Threads for independent work, in each of which an operation of torch is computed by one thread."""
    return ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))


@contextmanager
def fast_small_products() -> Iterator[None]:
    """Small batched matrix products at their proper speed on every CPU.

    On 64-bit ARM torch hands them to oneDNN, which takes 145 ms for 256 products [49,16]·[16,49] whose second factor is
    a transposed view; torch's own kernels take 3 ms. Inside the ``with`` torch uses its own. Elsewhere nothing changes.
    """
    if not _SLOW_ONEDNN:
        yield
        return
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before
