"""How long a piece of work took from its start to its end on a device, measured without making the device wait."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


class Stopwatch:
    """Adds up the time of what is done inside ``running()``, its preparation on the host included."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._spans: list[Callable[[], float]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        if self.device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record(torch.cuda.current_stream(self.device))
            yield
            end.record(torch.cuda.current_stream(self.device))
            self._spans.append(lambda: start.elapsed_time(end) / 1e3)
        else:
            before = time.perf_counter()
            yield
            passed = time.perf_counter() - before
            self._spans.append(lambda: passed)

    def seconds(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return sum(span() for span in self._spans)
