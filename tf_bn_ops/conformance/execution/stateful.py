"""Execution modes that look for state: what a kernel leaves unwritten, keeps between calls, or
shares between concurrent ones.

Each takes a callable that runs an op (a request -> its outputs as arrays) and a request
(worker.py); Executor has the methods.

**Poison.** glibc's malloc fills each block that it allocates or frees with a byte (mallopt's
M_PERTURB), also for posix_memalign and aligned_alloc, by which TensorFlow allocates tensors, and
for large blocks that are mapped. Two runs with two patterns tell an element that was never
written, which holds both, from one whose right value happens to be a pattern. Other allocators
(TensorFlow's own for large tensors where oneDNN is on, a device's, a preloaded one) ignore
the option, so who relies on it tests it first: `holds`.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tf_bn_ops.conformance.execution.answer import Answer, identical
from tf_bn_ops.harness.processes import in_threads

Call = Callable[[Any], list[np.ndarray]]
# A request -> the same call, ready to be made again and again.
Prepare = Callable[[Mapping[str, Any]], Callable[[], list[np.ndarray]]]
# The same with the memory of its inputs, whose numbers may be replaced between two calls.
PrepareInPlace = Callable[
    [Mapping[str, Any]], tuple[Mapping[str, np.ndarray], Callable[[], list[np.ndarray]]]
]

# Threads that call one kernel at the same time, and how often each calls it: for some time.
THREADS = 4
_LEAST_CALLS, _MOST_CALLS = 8, 400
_SECONDS = 0.02
# Before `poisoned` is relied on, a tensor of so many bytes is probed, and one of each input's size:
# allocators have thresholds (malloc maps from 128 KiB on; TensorFlow's own, with oneDNN, begins at
# 256 KiB).
_SMALL_BYTES = 64

# Bytes. Of the first, every number is large (half 203, bfloat16 and float32 1.5e16): what is added
# to it is wrong by far. Of the second all are near 0.
PATTERNS = (0x5A, 0xA5)
_M_PERTURB = -6  # <malloc.h>


class PoisonError(RuntimeError):
    """Memory cannot be filled here; the message says why."""


def _set(byte: int) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or not mallopt(_M_PERTURB, byte):
        raise PoisonError("the C library has no mallopt(M_PERTURB)")


@contextlib.contextmanager
def filled(pattern: int) -> Iterator[None]:
    """Fills memory that malloc allocates inside it with the byte `pattern`.

    Raises:
      PoisonError: the C library cannot.
    """
    _set(pattern ^ 0xFF)  # glibc fills with the complement, and what is freed with the byte itself.
    try:
        yield
    finally:
        _set(0)


def holds(memory: np.ndarray, pattern: int) -> np.ndarray:
    """Which elements consist of the pattern alone."""
    plain = np.ascontiguousarray(memory).reshape(-1).view(np.uint8)
    return (plain == pattern).reshape(*memory.shape, memory.itemsize).all(axis=-1)


def unwritten(results: Sequence[Sequence[np.ndarray]]) -> dict[int, str]:
    """Output -> how many of its elements were never written and where the first is, of the results
    of one call with memory filled with each of PATTERNS."""
    found = {}
    for index, arrays in enumerate(zip(*results, strict=True)):
        if len({array.shape for array in arrays}) > 1 or not arrays[0].size:
            continue
        left = np.ones(arrays[0].shape, bool)
        for array, pattern in zip(arrays, PATTERNS, strict=True):
            left &= holds(array, pattern)
        if left.any():
            first = [int(i[0]) for i in np.nonzero(np.atleast_1d(left))]
            found[index] = f"{np.count_nonzero(left)} elements, first at {first}"
    return found


def why_not_poisonable(empty: Callable[[int], np.ndarray], request: Mapping[str, Any]) -> str:
    """Why the memory of a call's tensors cannot be filled with a pattern in this process, or "";
    outputs are as large as inputs. `empty`: the memory of a new tensor of so many bytes that
    nothing was written to."""
    sizes = {_SMALL_BYTES, *(value.nbytes for value in request.get("inputs", {}).values())}
    for size, pattern in itertools.product(sorted(sizes), PATTERNS):
        try:
            with filled(pattern):
                memory = empty(size)
        except PoisonError as error:
            return str(error)
        if not holds(memory, pattern).all():
            return "tensors of this size do not come from the C library's malloc"
    return ""


def poisoned(call: Call, request: Mapping[str, Any]) -> Answer:
    """Answers with all memory filled with one pattern, then with another: what holds both was never
    written. What merely depends on it differs from the other modes: of the first pattern, whose
    numbers are large, the outputs are the answer."""
    results = []
    for pattern in PATTERNS:
        with filled(pattern):
            results.append(call(request))
    is_comparable = len(results[0]) == len(results[1])
    return Answer(results[0], unwritten=unwritten(results) if is_comparable else {})


def after_others(
    call: Call, prepare: PrepareInPlace, request: Mapping[str, Any]
) -> list[np.ndarray]:
    """Answers after the calls of request["before"], whatever becomes of them, and after one with
    other numbers alone, at the same addresses: as a network's variables and buffers have them."""
    for earlier in request.get("before", ()):
        with contextlib.suppress(Exception):
            call(earlier)
    inputs, again = prepare(request)
    _write(inputs, _rolled(request, 1))
    with contextlib.suppress(Exception):
        again()
    _write(inputs, request)
    return again()


def _write(inputs: Mapping[str, np.ndarray], request: Mapping[str, Any]) -> None:
    for name, memory in inputs.items():
        memory[...] = request["inputs"][name]


def concurrent(prepare: Prepare, request: Mapping[str, Any]) -> list[np.ndarray]:
    """Answers while other threads call the same kernel with other numbers; every thread also calls
    it with the request's. The answer is the first that differs from the one with one thread."""
    call = prepare(request)
    alone = call()
    start = threading.Barrier(THREADS)
    found: list[Any] = [None] * THREADS

    def work(thread: int) -> None:
        try:
            other = prepare(_rolled(request, thread + 1))
            start.wait()
            end = time.monotonic() + _SECONDS
            for i in range(_MOST_CALLS):
                outputs = call() if (i + thread) % 2 else other()
                if (i + thread) % 2 and not identical(outputs, alone):
                    found[thread] = outputs
                if found[thread] is not None or (i > _LEAST_CALLS and time.monotonic() > end):
                    return
        except Exception as error:  # It is the answer, in the thread that waits.
            found[thread] = error
            start.abort()

    in_threads(work, THREADS)
    outcomes = [outcome for outcome in found if outcome is not None]
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return outcomes[0] if outcomes else alone


def _rolled(request: Mapping[str, Any], by: int) -> dict[str, Any]:
    """The request with the numbers of every input rotated: valid ones, in another order."""
    inputs: Mapping[str, Sequence[Any]] = request["inputs"]
    return {**request, "inputs": {name: np.roll(value, by) for name, value in inputs.items()}}
