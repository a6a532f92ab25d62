"""The process of one implementation, and its handle in the parent process.

A request (tf_bn_ops/harness/processes.py) is a tuple of the name of a method of `Server` and its
arguments.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bench.libraries import ENTRIES, Timer
from bench.rows import Row
from tf_bn_ops.harness import processes
from tf_bn_ops.harness.processes import WorkerError

ROOT = pathlib.Path(__file__).resolve().parents[2]
_TIMEOUT = 300.0
_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": None,
    # Freed memory stays in the process: malloc would unmap a large tensor and fault it in again
    # page by page at every call, which costs about as much as the call itself, equally for all
    # implementations. Huge pages, which NumPy requests anyway: with 4 KiB pages in a virtual
    # machine, page walks can take longer than the computation, and vary from minute to minute.
    "MALLOC_ARENA_MAX": "1",  # Other arenas ignore the two below.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
# After a visit the process is idle when it has used less processor time than this share of a
# millisecond. Threads of OpenMP (PyTorch's) spin for 4 to 6 ms after a call, on a processor that
# the next process would have to share; threads of TensorFlow's pool for less than 0.1 ms.
_IDLE_POLL_SECONDS, _IDLE_SHARE, _MOST_IDLE_POLLS = 1e-3, 0.1, 100


class CallError(RuntimeError):
    """A request that failed: the op refuses it, or the process died."""


class Worker:
    """One implementation in one process, which is started again when it dies."""

    def __init__(
        self,
        name: str,
        threads: int,
        environment: Mapping[str, str] | None = None,
        module: str = "bench.bench_worker",
    ):
        """Starts the process; does not wait for it."""
        self.name = name
        path = os.pathsep.join((str(ROOT), str(ROOT / "tools"), os.environ.get("PYTHONPATH", "")))
        variables = {**_ENVIRONMENT, "PYTHONPATH": path, **(environment or {})}
        self.process = processes.Process(name, module, [name, str(threads)], variables)

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


def _wait_until_idle() -> None:
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
        self.facts = self._implementation.facts
        self._loaded: Any = None

    def prepare(self, row: Row) -> None:
        """Loads the tensors of a row, unless they are there, and warms its call up."""
        wanted = (row.call.adds, row.dtype, row.tensor_bytes)
        if self._loaded != wanted:
            self._loaded = None
            self._implementation.load(row.tensors())
            self._loaded = wanted
        self._call = self._implementation.bind(row, row.statistics())
        self._timer = Timer(self._call)

    def time(self, seconds: float) -> list[float]:
        """Seconds per call. Leaves the processors idle."""
        samples = self._timer.visit(seconds)
        _wait_until_idle()
        return samples

    def result(self, row: Row, channels: np.ndarray) -> dict[str, np.ndarray]:
        """Outputs of one more call, of some channels; tensors as [outer, channels, inner]."""
        return {
            role: array[channels] if array.ndim == 1 else array.reshape(row.view)[:, channels]
            for role, array in self._implementation.outputs(self._call()).items()
        }


def serve(make: Callable[[str, int], Any]) -> None:
    """The process: answers requests with the methods of what `make` returns."""

    def start(name: str, threads: str) -> tuple[dict[str, str], Callable[[Any], Any]]:
        with contextlib.suppress(AttributeError):  # Linux alone has it.
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(threads)])
        server = make(name, int(threads))
        return server.facts, lambda request: getattr(server, request[0])(*request[1:])

    processes.serve(sys.argv, start)


if __name__ == "__main__":
    serve(Server)
