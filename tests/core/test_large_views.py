"""Views of more than 2^31 elements in some megabytes: few blocks of memory, mapped again and again.

Promised: each formula takes elements beyond 2^31 for what they are, in rows of channels, in long
channels and in channels that begin beyond them, wherever it reads, sums and writes.

A batch that has every sample n times has the statistics, y and gradients by x of the batch that has
them once, and n times its sums. So the large call is held to a small one, of the same two blocks of
each channel; the last block of an output, beyond 2^31, has memory of its own.
"""

from __future__ import annotations

import ctypes
import dataclasses
import datetime
import mmap
import os
from collections.abc import Iterable

import numpy as np
import pytest
from builds import FORMULAS, View, problem_of

from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.problems import VIEW_ROLES

# Elements of a block, 2 MiB of bfloat16; 2048 of them are 2^31.
BLOCK = 1 << 20
# A small view, and how often it has each of its two blocks of a channel, or of all.
VIEWS: list[tuple[View, int]] = [
    ((2 * BLOCK // 64, 64, 1), 1025),
    ((2 * BLOCK // 1024, 16, 64), 1025),
    ((1, 1, 2 * BLOCK), 1025),
    ((1, 3, 2 * BLOCK), 342),
]
# Outputs that grow with the number of samples.
SUMS = {
    *("scale_backprop", "offset_backprop", "scale_grad", "local_count", "local_m2"),
    *("local_sum_dy", "local_sum_dy_xmu"),
}
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000  # <sys/mman.h> of Linux


def mapped(blocks: Iterable[tuple[np.ndarray, int]]) -> np.ndarray:
    """One array of blocks, each so many times, which are the same memory."""
    blocks = list(blocks)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    rights, size = mmap.PROT_READ | mmap.PROT_WRITE, blocks[0][0].nbytes
    number = sum(times for _, times in blocks)
    anywhere = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    at = begin = libc.mmap(None, number * size, 0, anywhere, -1, 0)
    for block, times in blocks:
        file = os.memfd_create("block")
        os.write(file, block.tobytes())
        for _ in range(times):
            assert libc.mmap(at, size, rights, mmap.MAP_SHARED | _MAP_FIXED, file, 0) == at
            at += size
        os.close(file)
    memory = (ctypes.c_uint8 * (number * size)).from_address(begin)
    return np.frombuffer(memoryview(memory), blocks[0][0].dtype)


def unmap(array: np.ndarray) -> None:
    libc = ctypes.CDLL(None)
    libc.munmap(ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes))


def assert_large_is_small(formula: str, mode: str, view: View, times: int) -> None:
    small = problem_of(formula, view, "bfloat16", mode, seed=0)  # Vectors in float32.
    small = dataclasses.replace(small, bessel_correction=False)
    views = {role: small[role] for role in small.values if role in VIEW_ROLES}
    for array in views.values():  # A second block that is not the first one's like.
        array.reshape(-1, BLOCK)[1::2] *= array.dtype.type(0.5)
    want = c_abi.run(small)

    large_view = (
        (view[0] * times, view[1], view[2]) if view[0] > 1 else (*view[:2], view[2] * times)
    )
    large = dataclasses.replace(small, values=dict(small.values))
    for role, array in views.items():
        blocks = [(block, times) for block in array.reshape(-1, BLOCK)]
        large[role] = mapped(blocks).reshape(large_view)
    assert large["x"].size > 1 << 31
    outputs = {}
    for role in c_abi.required_outputs(small):
        if role in VIEW_ROLES:
            empty = np.full(BLOCK, np.nan, large["x"].dtype)
            blocks = [(empty, times)] * (small["x"].size // BLOCK - 1)
            outputs[role] = mapped([*blocks, (empty, times - 1), (empty, 1)]).reshape(large_view)
    try:
        found = c_abi.run(large, threads=2, outputs=outputs)
        for role, array in found.items():
            right = want[role].astype(np.float64)
            if role in VIEW_ROLES:
                ends = array.reshape(-1, BLOCK)[times - 1 :: times]  # The last of each block.
                right = right.reshape(ends.shape)
                before = array.reshape(-1, BLOCK)[-2:-1]
                ends, right = np.concatenate([ends, before]), np.concatenate([right, right[-1:]])
                near = {"rtol": 2.0**-6, "atol": 2.0**-6 * right.std()}
                np.testing.assert_allclose(ends.astype(np.float64), right, **near, err_msg=role)
            else:
                right *= times if role in SUMS else 1
                near = {"rtol": 1e-5, "atol": 1e-5 * np.abs(right).max()}
                np.testing.assert_allclose(array, right, **near, err_msg=role)
    finally:
        for array in (*(large[role] for role in views), *outputs.values()):
            unmap(array)


CASES = [(*case, *view) for case in FORMULAS for view in VIEWS]


def _parameters() -> list:
    """Some a day belong to the long tier, in turn; all to the release tier."""
    today = datetime.date.today().toordinal() % 8
    return [
        pytest.param(
            *case,
            id=f"{case[0]}-{case[1]}-{case[2][1]}-{case[3]}",
            marks=[pytest.mark.release] * (i % 8 != today),
        )
        for i, case in enumerate(CASES)
    ]


@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="it would take an hour")
@pytest.mark.long
@pytest.mark.parametrize(("formula", "mode", "view", "times"), _parameters())
def test_elements_beyond_2_to_the_31(formula, mode, view, times):
    assert_large_is_small(formula, mode, view, times)
