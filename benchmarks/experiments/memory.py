"""The most memory that a piece of work took beyond what there was when it began."""

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
    """Megabytes, known when the block has ended; None where the system does not tell."""

    megabytes: float | None = None


@contextmanager
def measured_memory(device: torch.device) -> Iterator[PeakMemory]:
    """On a GPU the device's memory, on a CPU the process's (Linux alone says)."""
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
    """Makes the kernel count the process's peak anew, after what earlier work freed has been given back to it."""
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
