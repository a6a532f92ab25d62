"""Peak extra memory of one call: `python -m tf_bn_ops.bench.execution.memory FD NAME THREADS`.

The protocol is that of timing_process.py. The process creates the tensors, resets its peak resident
set size (/proc/self/clear_refs), calls the op once, and reads the peak: its growth less the outputs
is the extra memory of the call. Calls on a small tensor come first, so that threads and lasting
tables do not count. Every row has a process of its own, so that no freed memory is reused. Linux
counts pages in batches per CPU: the result is off by up to some 100 KiB. With oneDNN, TensorFlow
keeps a memory pool, which rounds the outputs up by megabytes; this library's op is measured without
it.
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

from tf_bn_ops.bench import bench_rows, data, implementations
from tf_bn_ops.bench.bench_rows import Row
from tf_bn_ops.bench.execution.timing_workers import CallError, Worker
from tf_bn_ops.harness import processes

# No huge pages: they would round the result to 2 MiB.
_SMALL_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}
_PR_SET_THP_DISABLE = 41  # <sys/prctl.h>
# <malloc.h>: a block of 64 KiB or more is a mapping, and is unmapped when it is freed.
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
        # After the imports, which take three times as long without huge pages.
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)
        for option, value in _MALLOC_OPTIONS.values():
            libc.mallopt(option, value)

    def _call(self, row: Row) -> implementations.Call:
        tensors = (data.flat(role, row.dtype, row.elements) for role in row.inputs)
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
        for shape in bench_rows.MEMORY[: 1 if quick or not candidate else None]:
            for layout in bench_rows.layouts(shape):
                row = Row("memory", "", shape, layout, "float32", "training", threads)
                small = Row("", "", (64, 8, 8, 8), layout, "float32", "training", threads)
                worker = Worker(entry, threads, _SMALL_PAGES, "tf_bn_ops.bench.execution.memory")
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
                        "shape": "x".join(map(str, row.dims)),
                        "layout": layout,
                        "dtype": row.dtype,
                        "mode": row.mode,
                        "threads": threads,
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
