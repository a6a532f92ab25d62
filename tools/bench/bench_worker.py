"""The process of one implementation, and its handle in the parent process.

A request (tf_bn_ops/harness/processes.py) is a tuple of the name of a method of `Server` and its
arguments.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import pathlib
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bench import bench_inputs
from bench.libraries import ENTRIES, Call, Entry
from bench.rows import Row
from tf_bn_ops.harness import processes
from tf_bn_ops.harness.processes import WorkerError

ROOT = pathlib.Path(__file__).resolve().parents[2]
_TIMEOUT = 300.0
# Freed memory stays in the process: malloc would unmap a large tensor and fault it in again page by
# page at every call, which costs about as much as the call itself, equally for all implementations.
# Huge pages, which NumPy requests anyway: with 4 KiB pages in a virtual machine, page walks can
# take longer than the computation, and vary from minute to minute.
MALLOC_SETTINGS = {
    "MALLOC_ARENA_MAX": "1",  # Other arenas ignore the two below.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
# Least length of a sample: the clock's resolution and an interrupt are small against it.
_SAMPLE_SECONDS = 2e-3
# A call this long is not warmed up: its own data evicts whatever was in the caches.
_NO_WARM_UP_SECONDS = 0.05
# After a visit the process is idle when it has used less processor time than this share of a
# millisecond. Threads of OpenMP (PyTorch's) spin for 4 to 6 ms after a call, on a processor that
# the next process would have to share; those of TensorFlow's pool for less than 0.1 ms.
_IDLE_POLL_SECONDS, _IDLE_SHARE, _MOST_IDLE_POLLS = 1e-3, 0.1, 100


class CallError(RuntimeError):
    """A request that failed: the op refuses it, or the process died."""


def is_installed(entry: Entry) -> bool:
    """Whether the library can be found, without importing it."""
    return importlib.util.find_spec(entry.module) is not None


class Worker:
    """One implementation in one process, which is started again when it dies."""

    def __init__(
        self,
        entry: Entry,
        threads: int,
        environment: Mapping[str, str] = MALLOC_SETTINGS,
        module: str = "bench.bench_worker",
    ):
        """Starts the process; does not wait for it."""
        self.entry, self.name = entry, entry.name
        path = os.pathsep.join((str(ROOT), str(ROOT / "tools"), os.environ.get("PYTHONPATH", "")))
        quiet = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": path}
        variables = {**quiet, **environment, **entry.environment}
        self.process = processes.Process(self.name, module, [self.name, str(threads)], variables)

    def ask(self, method: str, *arguments: Any) -> Any:
        """Calls a method of Server.

        Raises:
          CallError: it raised an exception, crashed or hung.
        """
        try:
            if not self.process.is_alive:
                self.process.start()
            self.process.wait_until_ready()
            self.process.send((method, *arguments))
            state, content = self.process.receive(_TIMEOUT)
        except (processes.Died, WorkerError) as e:
            raise CallError(str(e)) from None
        if state == "error":
            raise CallError(content)
        return content


# ---- In the process ------------------------------------------------------------------------------


class _Timer:
    """Times a call; keeps an estimate of how long it takes."""

    def __init__(self, call: Call):
        """Warms it up: the first calls allocate and start threads."""
        self._call = call
        begin = time.perf_counter()
        call()
        for _ in range(3):
            start = time.perf_counter()
            call()
            end = time.perf_counter()
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


def wait_until_idle() -> None:
    """Returns when the threads of this process no longer spin."""
    for _ in range(_MOST_IDLE_POLLS):
        before = time.process_time()
        time.sleep(_IDLE_POLL_SECONDS)
        if time.process_time() - before < _IDLE_SHARE * _IDLE_POLL_SECONDS:
            return


class Server:
    """Each public method is a request."""

    def __init__(self, name: str, threads: int):
        self._implementation = ENTRIES[name].make(threads)
        self._loaded: Any = None

    def facts(self) -> dict[str, str]:
        return self._implementation.facts()

    def _load(self, row: Row) -> None:
        wanted = (row.inputs, row.dtype, row.elements)
        if self._loaded != wanted:
            self._loaded = None
            tensors = {
                role: bench_inputs.flat(role, row.dtype, row.elements) for role in row.inputs
            }
            self._implementation.load(tensors)
            self._loaded = wanted

    def _bind(self, row: Row) -> Call:
        self._load(row)
        return self._implementation.bind(row, bench_inputs.statistics(row.channels))

    def prepare(self, row: Row) -> None:
        """Loads the tensors of a row and warms its call up."""
        self._timers: dict[str, _Timer] = {}
        self._call = self._bind(row)
        self._timers["call"] = _Timer(self._call)

    def prepare_bandwidth(self, row: Row, kinds: list[str]) -> None:
        """As prepare, for memory bandwidth; of the two store policies, the faster one."""
        self._load(row)
        passes = self._implementation.passes()
        self._timers = {}
        for kind in set(kinds):
            timers = [_Timer(call) for call in passes[kind]]
            self._timers[kind] = min(timers, key=lambda timer: min(timer.visit(0.01)))

    def time(self, seconds: float) -> dict[str, list[float]]:
        """Seconds per call; one list for each kind of call. Leaves the processors idle."""
        samples = {kind: timer.visit(seconds) for kind, timer in self._timers.items()}
        wait_until_idle()
        return samples

    def result(self, row: Row, channels: np.ndarray) -> dict[str, np.ndarray]:
        """Outputs of one more call by role, of some channels; tensors as [outer, channels, inner].

        Raises:
          ValueError: a tensor has another shape.
        """
        some = {}
        for role, array in self._implementation.outputs(self._call()).items():
            if array.ndim > 1:
                if array.shape != row.dims:
                    raise ValueError(f"{role} has shape {array.shape}")
                array = array.reshape(row.view).swapaxes(0, 1)
            some[role] = array[channels] if array.ndim == 1 else array[channels].swapaxes(0, 1)
        return some


def serve(make: Callable[[str, int], Any]) -> None:
    """The process: answers requests with the methods of what `make` returns."""

    def start(name: str, threads: str) -> tuple[dict[str, str], Callable[[Any], Any]]:
        with contextlib.suppress(AttributeError):  # Linux alone has it.
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(threads)])
        server = make(name, int(threads))
        return server.facts(), lambda request: getattr(server, request[0])(*request[1:])

    processes.serve(sys.argv, start)


if __name__ == "__main__":
    serve(Server)
