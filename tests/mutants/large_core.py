"""Judges the core library on a view of more than 2^31 elements that takes little memory.

usage: python large_core.py [OP]

The formula is that of OP, a first-order gradient without. Its inputs of view shape are one block of
numbers, mapped again and again (the same pages at many addresses), and at the end, beyond 2^31, a
block of other numbers; the output is mapped alike. All numbers are small integers, so that the sums
are exact. Prints 1, and how it failed if it did, which run.py reads.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Callable

import numpy as np

from tf_bn_ops import spec
from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.problems import Problem

_THREADS = 2
_CHANNELS = 64
# 32 MiB of bfloat16; 128 of them have 2^31 elements.
BLOCK, REPEATS = 1 << 24, 128
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000  # <sys/mman.h> on Linux

# Problem and outputs to write to -> all outputs, by role.
Kernel = Callable[..., dict[str, np.ndarray]]


class Repeated:
    """An array of bfloat16: one block `repeats` times over the same memory, then a last one."""

    def __init__(self, block: int, repeats: int):
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.restype = ctypes.c_void_p
        integers = [ctypes.c_int] * 3
        self._libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *integers, ctypes.c_long]
        dtype = spec.DTYPES["bfloat16"].numpy
        size = block * dtype.itemsize
        total = (repeats + 1) * size
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        begin = self._map(None, total, 0, flags, -1)
        for blocks in (range(repeats), range(repeats, repeats + 1)):
            file = os.memfd_create("block")
            os.ftruncate(file, size)
            for i in blocks:
                where = begin + i * size
                rights = mmap.PROT_READ | mmap.PROT_WRITE
                self._map(where, size, rights, mmap.MAP_SHARED | _MAP_FIXED, file)
            os.close(file)
        memory = (ctypes.c_uint16 * (total // 2)).from_address(begin)
        self.array = np.frombuffer(memory, np.uint16).view(dtype)
        self.first, self.last = self.array[:block], self.array[-block:]

    def _map(self, where: int | None, size: int, rights: int, flags: int, file: int) -> int:
        begin = self._libc.mmap(where, size, rights, flags, file, 0)
        if begin in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), "mmap failed")
        return int(begin)


def check(kernel: Kernel, block: int = BLOCK, repeats: int = REPEATS) -> str:
    """How the kernel fails on `repeats` equal blocks and one more; "" if it does not."""
    rng = np.random.default_rng(0)
    dy, x, x_backprop = (Repeated(block, repeats) for _ in range(3))
    for part in ("first", "last"):
        shift = 1 if part == "last" else 0  # Who takes one for the other gets other sums.
        getattr(dy, part)[:] = rng.integers(-3, 4, block) + shift
        getattr(x, part)[:] = rng.integers(-3, 4, block) + shift
        getattr(x_backprop, part)[:] = np.nan
    shape = ((repeats + 1) * (block // _CHANNELS), _CHANNELS, 1)
    ones, zeros = np.ones(_CHANNELS, np.float32), np.zeros(_CHANNELS, np.float32)
    arrays = {"y_backprop": dy.array.reshape(shape), "x": x.array.reshape(shape)}
    problem = Problem({**arrays, "scale": ones, "mean": zeros, "variance": ones}, 0.0)
    result = kernel(problem, outputs={"x_backprop": x_backprop.array.reshape(shape)})

    parts = {
        part: [getattr(a, part).astype(np.float64).reshape(-1, _CHANNELS) for a in (dy, x)]
        for part in ("first", "last")
    }
    sums = [
        repeats * of(*parts["first"]).sum(axis=0) + of(*parts["last"]).sum(axis=0)
        for of in (lambda dy, x: dy, lambda dy, x: dy * x)
    ]
    for name, total in zip(("offset_backprop", "scale_backprop"), sums, strict=True):
        given, wanted = result[name], total.astype(np.float32)
        if not np.array_equal(given, wanted):
            c = int(np.argmax(given != wanted))
            return f"{name}[{c}] is {given[c]:.9g} instead of {wanted[c]:.9g}"
    for part, (dy_part, x_part) in parts.items():
        terms = [dy_part, sums[0] / shape[0], x_part * (sums[1] / shape[0])]
        wanted = terms[0] - terms[1] - terms[2]
        # One rounding to bfloat16 of the result, some of float32 of the terms.
        bound = 2.0**-8 * np.abs(wanted) + 2.0**-20 * sum(map(np.abs, terms))
        given = getattr(x_backprop, part).astype(np.float64).reshape(wanted.shape)
        wrong = ~(np.abs(given - wanted) <= bound)
        if wrong.any():
            return f"x_backprop is wrong in {np.count_nonzero(wrong)} elements of the {part} block"
    return ""


def check_forward(kernel: Kernel, block: int = BLOCK, repeats: int = REPEATS) -> str:
    """The same of batch normalization: its statistics, and y of the first and the last block."""
    rng = np.random.default_rng(0)
    x, y = Repeated(block, repeats), Repeated(block, repeats)
    for part in ("first", "last"):
        getattr(x, part)[:] = rng.integers(-3, 4, block) + (2 if part == "last" else 0)
        getattr(y, part)[:] = np.nan
    shape = ((repeats + 1) * (block // _CHANNELS), _CHANNELS, 1)
    ones, zeros = np.ones(_CHANNELS, np.float32), np.zeros(_CHANNELS, np.float32)
    problem = Problem({"x": x.array.reshape(shape), "scale": ones, "offset": zeros})
    problem.values |= {"mean": zeros, "variance": ones}
    result = kernel(problem, outputs={"y": y.array.reshape(shape)})

    parts = [
        getattr(x, part).astype(np.float64).reshape(-1, _CHANNELS) for part in ("first", "last")
    ]
    sums = [
        repeats * of(parts[0]).sum(axis=0) + of(parts[1]).sum(axis=0)
        for of in (lambda x: x, lambda x: x * x)
    ]
    mean = sums[0] / shape[0]
    variance = sums[1] / shape[0] - mean**2
    for name, wanted in (("saved_mean", mean), ("saved_variance", variance)):
        wrong = ~(np.abs(result[name] - wanted) <= 2.0**-22 * np.abs(wanted))
        if wrong.any():
            c = int(np.argmax(wrong))
            return f"{name}[{c}] is {result[name][c]:.9g} instead of {wanted[c]:.9g}"
    for part, of_part in zip(("first", "last"), parts, strict=True):
        wanted = (of_part - mean) / np.sqrt(variance + problem.epsilon)
        given = getattr(y, part).astype(np.float64).reshape(wanted.shape)
        wrong = ~(np.abs(given - wanted) <= 2.0**-8 * np.abs(wanted) + 2.0**-20)
        if wrong.any():
            return f"y is wrong in {np.count_nonzero(wrong)} elements of the {part} block"
    return ""


def main() -> None:
    formula = spec.OPS[sys.argv[1]].formula if sys.argv[1:] else spec.ops.BATCH_NORM_GRAD
    run = check_forward if formula == spec.ops.BATCH_NORM else check
    failure = run(lambda *args, **kwargs: c_abi.run(*args, threads=_THREADS, **kwargs))
    print(f"1 a view of more than 2^31 elements: {failure}" if failure else "1")


if __name__ == "__main__":
    main()
