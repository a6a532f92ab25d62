"""The process that one implementation runs in: `python -m tf_bn_ops.bench.worker FD NAME THREADS`.

NAME is a key of implementations.ENTRIES. A request (processes.py) is a tuple of a method's name
and its arguments.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tf_bn_ops.bench import data, implementations, stats
from tf_bn_ops.bench.shapes import Row
from tf_bn_ops.harness import processes

# A sample is at least this long, so that the clock and a stray interrupt do not matter.
_SAMPLE_SECONDS = 2e-3
# What goes through the caches before a call with caches swept: more than any second level holds.
_SWEPT_BYTES = 16 << 20
_FLOOR_SAMPLES = 100
# A call this long needs no warming up: what it finds in caches is its own doing.
_NO_WARM_UP_SECONDS = 0.05


class _Timer:
    """Times one call; remembers how long it takes."""

    def __init__(self, call: implementations.Call):
        self._call = call
        self.seconds = 0.0

    def calibrate(self) -> None:
        """Calls it until it has settled: the first call may compile, allocate, start threads."""
        clock = time.perf_counter
        begin = clock()
        self._call()
        for _ in range(3):
            start = clock()
            self._call()
            end = clock()
            self.seconds = max(end - start, 1e-7)
            if end - begin > 0.2:
                break

    def visit(self, seconds: float) -> list[float]:
        """Samples, each the mean of as many calls as fill it; at least one."""
        call, clock = self._call, time.perf_counter_ns
        begin = clock()
        if self.seconds < _NO_WARM_UP_SECONDS:
            call()
        samples = []
        gc.disable()
        try:
            while True:
                inner = range(max(1, round(_SAMPLE_SECONDS / self.seconds + 0.5)))
                start = clock()
                for _ in inner:
                    call()
                end = clock()
                self.seconds = max((end - start) * 1e-9 / len(inner), 1e-7)
                samples.append(self.seconds)
                if (end - begin) * 1e-9 + self.seconds * len(inner) > seconds:
                    return samples
        finally:
            gc.enable()


class Server:
    """The requests of workers.Worker; each public method is one."""

    def __init__(self, name: str, threads: int):
        self._name = name
        self._implementation = implementations.ENTRIES[name].make(threads)
        self._loaded: tuple[str, int] | None = None
        self._timers: dict[str, _Timer] = {}

    def facts(self) -> dict[str, str]:
        return self._implementation.facts()

    def _load(self, row: Row) -> None:
        wanted = (row.dtype, row.elements)
        if self._loaded != wanted:
            self._loaded = None
            roles = ("y_backprop", "x")
            self._implementation.load(*(data.flat(role, *wanted) for role in roles))
            self._loaded = wanted

    def prepare(self, row: Row) -> None:
        """Gets a row ready and its caller warm."""
        self._timers = {}
        self._call: implementations.Call | None = None
        self._load(row)
        self._call = self._implementation.bind(row, data.statistics(row.channels))
        timer = _Timer(self._call)
        timer.calibrate()
        self._timers["call"] = timer
        if row.section == "latency" and self._name == implementations.CANDIDATE:
            assert isinstance(self._implementation, implementations.TensorFlow)
            self._timers["empty"] = _Timer(self._implementation.empty_call())
            self._timers["empty"].calibrate()

    def prepare_stream(self, row: Row, kinds: list[str]) -> None:
        """The same for the traffic alone; of two ways the faster one is kept."""
        assert isinstance(self._implementation, implementations.Stream)
        self._load(row)
        self._timers = {}
        for variant, call in self._implementation.variants().items():
            kind = variant.split()[0]
            if kind not in kinds:
                continue
            timer = _Timer(call)
            timer.calibrate()
            timer.seconds = min(timer.visit(0.01))
            if kind not in self._timers or timer.seconds < self._timers[kind].seconds:
                self._timers[kind] = timer

    def time(self, seconds: float) -> dict[str, list[float]]:
        """Seconds per call; one list for each kind of call."""
        return {kind: timer.visit(seconds) for kind, timer in self._timers.items()}

    def eager_floor(self) -> dict[str, float]:
        """The field of that name in results.py."""
        assert isinstance(self._implementation, implementations.TensorFlow)
        call = self._implementation.empty_call()
        swept = np.ones(_SWEPT_BYTES // 8)
        clock = time.perf_counter
        samples: dict[str, list[float]] = {"warm_s": [], "swept_s": []}
        for kind, seconds in samples.items():
            for _ in range(_FLOOR_SAMPLES):
                if kind == "swept_s":
                    swept.sum()
                start = clock()
                call()
                seconds.append(clock() - start)
        return {kind: stats.spread(seconds).median for kind, seconds in samples.items()}

    def result(self, row: Row, channels: np.ndarray) -> tuple[np.ndarray, ...]:
        """The outputs of one more call: some channels as [outer, channels, inner], both sums."""
        assert self._call is not None
        outputs = self._implementation.outputs(self._call())
        x_backprop, scale_backprop, offset_backprop = outputs
        if x_backprop.shape != row.dims:
            raise ValueError(f"x_backprop has shape {x_backprop.shape}")
        view = x_backprop.reshape(row.view)
        return view[:, channels], scale_backprop[channels], offset_backprop[channels]

    def forget(self) -> None:
        """Frees the tensors."""
        self._timers = {}
        self._call = self._loaded = None
        empty = np.zeros(1, np.float32)
        self._implementation.load(empty, empty)
        gc.collect()


def _make(name: str, threads: str) -> tuple[dict[str, str], Callable[[Any], Any]]:
    if hasattr(os, "sched_setaffinity"):  # For libraries that have no other way to say it.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(threads)])
    server = Server(name, int(threads))
    return server.facts(), lambda request: getattr(server, request[0])(*request[1:])


if __name__ == "__main__":
    processes.serve(sys.argv, _make)
