"""Times a call, for the processes of implementations and for two builds of the core library."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from typing import Any

# Least length of a sample: the clock's resolution and an interrupt are small against it.
_SAMPLE_SECONDS = 2e-3
# A call this long is not warmed up: its own data evicts whatever was in the caches.
_NO_WARM_UP_SECONDS = 0.05


class Timer:
    """A call, and an estimate of how long it takes."""

    def __init__(self, call: Callable[[], Any]):
        """Warms it up: the first calls allocate and start threads."""
        self._call, end = call, time.perf_counter() + 0.2
        for _ in range(4):
            self._seconds = 1.0  # One call is a sample.
            self.sample()
            if time.perf_counter() > end:
                break

    def sample(self) -> float:
        """Seconds per call: the mean of the calls that fill _SAMPLE_SECONDS."""
        call, clock = self._call, time.perf_counter
        inner = range(math.ceil(_SAMPLE_SECONDS / self._seconds))
        start = clock()
        for _ in inner:
            call()
        self._seconds = max((clock() - start) / len(inner), 1e-7)
        return self._seconds

    def visit(self, seconds: float) -> list[float]:
        """As many samples as fit, at least one."""
        if self._seconds < _NO_WARM_UP_SECONDS:
            self._call()
        end, samples = time.perf_counter() + seconds, []
        gc.disable()
        try:
            while not samples or time.perf_counter() + self._seconds < end:
                samples.append(self.sample())
        finally:
            gc.enable()
        return samples
