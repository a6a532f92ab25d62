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


def check(
    kernel: Kernel, block: int = BLOCK, repeats: int = REPEATS, is_forward: bool = False
) -> str:
    """How the kernel fails on `repeats` equal blocks and one more; "" if it does not. All of a
    gradient, or the statistics of batch normalization itself and y of the first and last block."""
    rng = np.random.default_rng(0)
    inputs = {role: Repeated(block, repeats) for role in ("y_backprop", "x")[is_forward:]}
    output = "y" if is_forward else "x_backprop"
    elements = Repeated(block, repeats)
    for part in ("first", "last"):
        for tensor in inputs.values():
            # Who takes the last block for the first one gets other sums.
            shift = 1 + is_forward if part == "last" else 0
            getattr(tensor, part)[:] = rng.integers(-3, 4, block) + shift
        getattr(elements, part)[:] = np.nan
    shape = ((repeats + 1) * (block // _CHANNELS), _CHANNELS, 1)
    values = {role: tensor.array.reshape(shape) for role, tensor in inputs.items()}
    for role in ("scale", "mean", "variance", *(["offset"] if is_forward else [])):
        values[role] = np.full(_CHANNELS, role in ("scale", "variance"), np.float32)
    problem = Problem(values, epsilon=1e-3 if is_forward else 0.0)
    result = kernel(problem, outputs={output: elements.array.reshape(shape)})

    parts = {
        part: [
            getattr(tensor, part).astype(np.float64).reshape(-1, _CHANNELS)
            for tensor in inputs.values()
        ]
        for part in ("first", "last")
    }
    sums = [
        repeats * of(parts["first"]).sum(axis=0) + of(parts["last"]).sum(axis=0)
        for of in (lambda of_part: of_part[0], lambda of_part: of_part[0] * of_part[-1])
    ]
    means = [total / shape[0] for total in sums]
    if is_forward:
        variance = means[1] - means[0] ** 2
        wanted = {"saved_mean": means[0], "saved_variance": variance}
    else:
        wanted = {"offset_backprop": sums[0], "scale_backprop": sums[1]}
    for role, total in wanted.items():
        right = total.astype(np.float32)
        # Sums are rounded once, statistics more often.
        wrong = ~(np.abs(result[role] - right) <= 2.0**-22 * np.abs(right) * is_forward)
        if wrong.any():
            c = int(np.argmax(wrong))
            return f"{role}[{c}] is {result[role][c]:.9g} instead of {right[c]:.9g}"
    for part, of_part in parts.items():
        if is_forward:
            rstd = 1 / np.sqrt(variance + problem.epsilon)
            terms = [of_part[0] * rstd, -means[0] * rstd]
        else:
            terms = [of_part[0], -means[0], -of_part[1] * means[1]]
        right = sum(terms)
        # One rounding to bfloat16 of the result, some of float32 of the terms.
        bound = 2.0**-8 * np.abs(right) + 2.0**-20 * sum(map(np.abs, terms))
        given = getattr(elements, part).astype(np.float64).reshape(right.shape)
        wrong = ~(np.abs(given - right) <= bound)
        if wrong.any():
            return f"{output} is wrong in {np.count_nonzero(wrong)} elements of the {part} block"
    return ""


def main() -> None:
    formula = spec.OPS[sys.argv[1]].formula if sys.argv[1:] else spec.ops.BATCH_NORM_GRAD
    failure = check(
        lambda *args, **kwargs: c_abi.run(*args, threads=_THREADS, **kwargs),
        is_forward=formula == spec.ops.BATCH_NORM,
    )
    print(f"1 a view of more than 2^31 elements: {failure}" if failure else "1")


if __name__ == "__main__":
    main()
