"""Starts each implementation in a process of its own and sends it requests, one at a time."""

from __future__ import annotations

import importlib.util
from typing import Any

from tf_bn_ops.bench import implementations
from tf_bn_ops.harness import processes
from tf_bn_ops.harness.processes import WorkerError

__all__ = ["MALLOC_SETTINGS", "CallError", "Worker", "WorkerError", "is_installed"]

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


class CallError(RuntimeError):
    """A request that failed: the op refuses it, or the process died."""


def is_installed(entry: implementations.Entry) -> bool:
    """Whether the library can be found, without importing it."""
    return importlib.util.find_spec(entry.module) is not None


class Worker:
    """One implementation in one process, which is started again when it dies."""

    def __init__(
        self,
        entry: implementations.Entry,
        threads: int,
        environment: dict[str, str] | None = None,
        module: str = "tf_bn_ops.bench.execution.timing_process",
    ):
        """Starts the process; does not wait for it."""
        self.entry = entry
        self.name = entry.name
        self.process = processes.Process(
            self.name,
            module,
            [self.name, str(threads)],
            {
                "CUDA_VISIBLE_DEVICES": "-1",
                "TF_CPP_MIN_LOG_LEVEL": "3",
                **(MALLOC_SETTINGS if environment is None else environment),
                **self.entry.environment,
            },
        )

    @property
    def facts(self) -> dict[str, str]:
        """Versions that the process has reported; empty before it is ready."""
        return self.process.facts or {}

    def wait_until_ready(self) -> None:
        """Waits for the process to have loaded its library.

        Raises:
          WorkerError: it could not.
        """
        self.process.wait_until_ready()

    def ask(self, method: str, *arguments: Any) -> Any:
        """Calls a method of worker.Server.

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

    def close(self) -> None:
        """Ends the process."""
        self.process.close()
