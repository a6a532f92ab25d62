"""Memory filled with a pattern, and the elements of results that still hold it: never written.

glibc's malloc fills what it hands out, and what is freed, with a byte (mallopt's M_PERTURB): also
what posix_memalign and aligned_alloc return, by which TensorFlow allocates tensors, and large
blocks that are mapped. Two runs with two patterns tell an element that was never written, which
holds both, from one whose right value happens to be a pattern. Other allocators (TensorFlow's own
for large tensors where oneDNN is on, those of devices, a preloaded one) ignore the option, so who
relies on it tests it first: `holds`.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence

import numpy as np

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
    """Within it, memory that malloc hands out is filled with the byte `pattern`.

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
