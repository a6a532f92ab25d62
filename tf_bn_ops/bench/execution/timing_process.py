"""The process of one implementation.

usage: python -m tf_bn_ops.bench.execution.timing_process FD NAME THREADS

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
from tf_bn_ops.bench.bench_rows import Row
from tf_bn_ops.harness import processes
from tf_bn_ops.harness.problems import VIEW_ROLES

# Least length of a sample: the clock's resolution and an interrupt are small against it.
_SAMPLE_SECONDS = 2e-3
# Read before a cold call: more than an L2 holds.
_EVICTING_BYTES = 16 << 20
_EMPTY_SAMPLES = 100
# A call this long is not warmed up: its own data evicts whatever was in the caches.
_NO_WARM_UP_SECONDS = 0.05
# After a visit the process is idle when it has used less processor time than this share of a
# millisecond. Threads of OpenMP (PyTorch's) spin for 4 to 6 ms after a call, on a processor that
# the next process would have to share; those of TensorFlow's pool for less than 0.1 ms.
_IDLE_POLL_SECONDS = 1e-3
_IDLE_SHARE = 0.1
_MOST_IDLE_POLLS = 100


class _Timer:
    """Times a call; keeps an estimate of how long it takes."""

    def __init__(self, call: implementations.Call):
        self._call = call
        self.seconds = 0.0

    def calibrate(self) -> None:
        """Warms it up: the first calls compile, allocate and start threads."""
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
        """Samples: each the mean of the calls that fill _SAMPLE_SECONDS; at least one."""
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


def _wait_until_idle() -> None:
    """Returns when the threads of this process no longer spin."""
    for _ in range(_MOST_IDLE_POLLS):
        before = time.process_time()
        time.sleep(_IDLE_POLL_SECONDS)
        if time.process_time() - before < _IDLE_SHARE * _IDLE_POLL_SECONDS:
            return


class Server:
    """The requests of workers.Worker; each public method is one."""

    def __init__(self, name: str, threads: int):
        self._name = name
        self._implementation = implementations.ENTRIES[name].make(threads)
        self._loaded: tuple[tuple[str, ...], str, int] | None = None
        self._timers: dict[str, _Timer] = {}

    def facts(self) -> dict[str, str]:
        return self._implementation.facts()

    def _load(self, row: Row) -> None:
        wanted = (row.inputs, row.dtype, row.elements)
        if self._loaded != wanted:
            self._loaded = None
            tensors = (data.flat(role, row.dtype, row.elements) for role in row.inputs)
            self._implementation.load(*tensors)
            self._loaded = wanted

    def prepare(self, row: Row) -> None:
        """Loads the tensors of a row and warms its call up."""
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

    def prepare_bandwidth(self, row: Row, kinds: list[str]) -> None:
        """As prepare, for memory bandwidth; of the two store policies, the faster one."""
        assert isinstance(self._implementation, implementations.MemoryBandwidth)
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
        """Seconds per call; one list for each kind of call. Leaves the processors idle."""
        samples = {kind: timer.visit(seconds) for kind, timer in self._timers.items()}
        _wait_until_idle()
        return samples

    def eager_us(self) -> dict[str, float]:
        """The field of that name in results.py."""
        assert isinstance(self._implementation, implementations.TensorFlow)
        call = self._implementation.empty_call()
        evicting = np.ones(_EVICTING_BYTES // 8)
        clock = time.perf_counter
        samples: dict[str, list[float]] = {"warm": [], "cold": []}
        for kind, seconds in samples.items():
            for _ in range(_EMPTY_SAMPLES):
                if kind == "cold":
                    evicting.sum()
                start = clock()
                call()
                seconds.append(clock() - start)
        return {kind: stats.spread(seconds).median * 1e6 for kind, seconds in samples.items()}

    def result(self, row: Row, channels: np.ndarray) -> dict[str, np.ndarray]:
        """Outputs of one more call by role, of some channels; those of the shape of x as
        [outer, channels, inner]."""
        assert self._call is not None
        some = {}
        for role, array in self._implementation.outputs(self._call()).items():
            if role not in VIEW_ROLES:
                some[role] = array[channels]
                continue
            if array.shape != row.dims:
                raise ValueError(f"{role} has shape {array.shape}")
            some[role] = array.reshape(row.view)[:, channels]
        return some

    def forget(self) -> None:
        """Frees the tensors."""
        self._timers = {}
        self._call = self._loaded = None
        empty = np.zeros(1, np.float32)
        self._implementation.load(empty, empty)
        gc.collect()


def maker(
    server_class: type[Server],
) -> Callable[[str, str], tuple[dict[str, str], Callable[[Any], Any]]]:
    """What processes.serve makes of a process's arguments: the facts and the answers."""

    def make(name: str, threads: str) -> tuple[dict[str, str], Callable[[Any], Any]]:
        if hasattr(os, "sched_setaffinity"):  # JAX has no other setting.
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(threads)])
        server = server_class(name, int(threads))
        return server.facts(), lambda request: getattr(server, request[0])(*request[1:])

    return make


if __name__ == "__main__":
    processes.serve(sys.argv, maker(Server))
