"""Time inside this library's kernels: `python -m tf_bn_ops.bench.execution.kernel_time FD NAME
THREADS`.

The process of timing_process.py with TF_BN_OPS_VERBOSE=1, which prints each call's time from plan
to last task: without TensorFlow's dispatch, allocation of outputs, and Python. It is measured
apart, since to print a line takes a few microseconds.
"""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO

from tf_bn_ops.bench import implementations
from tf_bn_ops.bench.bench_rows import FORWARD, GRADIENT, Row
from tf_bn_ops.bench.execution import timing_process
from tf_bn_ops.bench.execution.timing_workers import MALLOC_SETTINGS, CallError, Worker
from tf_bn_ops.bench.results import LIMIT_BYTES, Measurement
from tf_bn_ops.harness import processes

_CALLS = 31
_STDERR = 2
_TIME = re.compile(rb"^tf_bn_ops_verbose,v\d+,exec,.*,time_ms:([\d.]+)", re.MULTILINE)


@contextlib.contextmanager
def _captured_stderr() -> Iterator[IO[bytes]]:
    """The file that takes what this process writes to its standard error."""
    with tempfile.TemporaryFile() as file:
        saved = os.dup(_STDERR)
        os.dup2(file.fileno(), _STDERR)
        try:
            yield file
        finally:
            os.dup2(saved, _STDERR)
            os.close(saved)


class Server(timing_process.Server):
    """Answers `kernel_us`."""

    def kernel_us(self, row: Row) -> float:
        """Median over calls of one op.

        Raises:
          ValueError: not every call has printed one line.
        """
        self.prepare(row)
        assert self._call is not None
        with _captured_stderr() as lines:
            for _ in range(_CALLS):
                self._call()
            lines.seek(0)
            found = _TIME.findall(lines.read())
        if len(found) != _CALLS:
            raise ValueError(f"{len(found)} lines for {_CALLS} calls")
        return statistics.median(float(ms) * 1e3 for ms in found)


def measure(measured: Sequence[Measurement], threads: int) -> None:
    """Sets `kernel_us` of the measured rows of one op. Beyond LIMIT_BYTES, where the dispatch does
    not show, there is none."""
    rows = [
        m
        for m in measured
        if m.own_us and m.row.call in (FORWARD, GRADIENT) and m.row.bytes <= LIMIT_BYTES
    ]
    if not rows:
        return
    entry = implementations.ENTRIES[implementations.CANDIDATE]
    environment = {**MALLOC_SETTINGS, "TF_BN_OPS_VERBOSE": "1"}
    process = Worker(entry, threads, environment, "tf_bn_ops.bench.execution.kernel_time")
    try:
        for m in rows:
            with contextlib.suppress(CallError):  # Its time was measured, this is an addition.
                m.kernel_us = process.ask("kernel_us", m.row)
    finally:
        process.close()


if __name__ == "__main__":
    processes.serve(sys.argv, timing_process.maker(Server))
