"""The peak memory of a piece of work, above what was in use when it began."""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass
class PeakMemory:
    """Megabytes, known when the block has ended; None if the system does not report them."""

    megabytes: float | None = None


@contextmanager
def measured_memory(device: torch.device) -> Iterator[PeakMemory]:
    """On a GPU the memory of the device, on a CPU that of the process (reported by Linux only)."""
    peak = PeakMemory()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield peak
        peak.megabytes = (torch.cuda.max_memory_allocated(device) - before) / 2**20
        return
    before = resident("VmRSS") if reset() else None
    yield peak
    after = resident("VmHWM") if before is not None else None
    if before is not None and after is not None:
        peak.megabytes = max(0.0, after - before)


def reset() -> bool:
    """Makes the kernel count the peak of the process from here on, after returning memory that earlier work freed."""
    try:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        RESET.write_text("5")
    except (OSError, AttributeError):
        return False
    return True


def resident(name: str) -> float | None:
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    return None
