"""Peak extra memory of one call, measured: `python -m tf_bn_ops.bench.memory FD NAME THREADS`.

The same protocol as worker.py. The process makes the tensors, resets the system's mark of its
peak resident set (/proc/self/clear_refs), makes one call, and reads the mark: what it grew by,
less the outputs, is what the call used for itself. A call on a small tensor comes first, so that
threads and tables that last are not counted. Every case has a process of its own, so that no
freed memory lies ready. The system counts pages, in batches per processor: the figure may be off
by some 100 KiB. With oneDNN TensorFlow keeps a pool of its own, which rounds the outputs up by
megabytes; this library's op is measured without it.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import pathlib
import re
import sys
from collections.abc import Callable
from typing import Any

from tf_bn_ops.bench import data, implementations, shapes
from tf_bn_ops.bench.shapes import Row
from tf_bn_ops.bench.workers import CallError, Worker
from tf_bn_ops.harness import processes

# Pages of 2 MiB would blur the figures: none for the C library, and none after the imports.
_SMALL_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}
_PR_SET_THP_DISABLE = 41  # <sys/prctl.h>
# <malloc.h>: every block of 64 KiB is a mapping of its own, and goes back when it is freed.
_MALLOC_OPTIONS = {"M_MMAP_THRESHOLD": (-3, 1 << 16), "M_TRIM_THRESHOLD": (-1, 0)}


def _resident(field: str) -> int:
    """Bytes of "VmRSS" or "VmHWM" (the peak)."""
    status = pathlib.Path("/proc/self/status").read_text(encoding="utf-8")
    match = re.search(rf"^{field}:\s*(\d+) kB", status, re.MULTILINE)
    assert match
    return int(match.group(1)) << 10


def is_possible() -> bool:
    """Whether the system can do it (Linux)."""
    return pathlib.Path("/proc/self/clear_refs").exists()


class Server:
    """Answers `extra`."""

    def __init__(self, name: str, threads: int):
        self._implementation = implementations.ENTRIES[name].make(threads)
        # After the imports, which would take three times as long.
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)
        for option, value in _MALLOC_OPTIONS.values():
            libc.mallopt(option, value)

    def _call(self, row: Row) -> implementations.Call:
        tensors = (data.flat(role, row.dtype, row.elements) for role in ("y_backprop", "x"))
        self._implementation.load(*tensors)
        return self._implementation.bind(row, data.statistics(row.channels))

    def extra(self, row: Row, small: Row) -> int:
        """Bytes."""
        for _ in range(3):
            self._call(small)()
        call = self._call(row)
        gc.collect()
        pathlib.Path("/proc/self/clear_refs").write_text("5")
        before = _resident("VmRSS")
        result = call()
        peak = _resident("VmHWM")
        del result
        return peak - before - row.tensor_bytes - 8 * row.channels


def measure(
    names: list[str], threads: int, quick: bool
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The field "memory" of the results, and why implementations are not in it."""
    measured: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    for name in names:
        entry = implementations.ENTRIES[name]
        candidate = name == implementations.CANDIDATE
        if candidate:
            entry = dataclasses.replace(entry, environment={"TF_ENABLE_ONEDNN_OPTS": "0"})
        for shape in shapes.MEMORY[: 1 if quick or not candidate else None]:
            for layout in shapes.layouts(shape):
                row = Row("memory", "", shape, layout, "float32", "training", threads)
                small = Row("", "", (64, 8, 8, 8), layout, "float32", "training", threads)
                worker = Worker(entry, threads, _SMALL_PAGES, "tf_bn_ops.bench.memory")
                try:
                    extra = worker.ask("extra", row, small)
                except CallError as e:
                    failed[name] = str(e)
                    continue
                finally:
                    worker.close()
                measured.append(
                    {
                        "implementation": name,
                        "shape": list(row.dims),
                        "layout": layout,
                        "dtype": row.dtype,
                        "mode": row.mode,
                        "threads": threads,
                        "channels": row.channels,
                        "extra_bytes": extra,
                        "allowed_bytes": (1 << 20) + 64 * row.channels * threads,
                    }
                )
    return measured, failed


def _make(name: str, threads: str) -> tuple[dict[str, str], Callable[[Any], Any]]:
    server = Server(name, int(threads))
    return {}, lambda request: server.extra(*request[1:])


if __name__ == "__main__":
    processes.serve(sys.argv, _make)
