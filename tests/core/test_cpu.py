"""What the CPU backend does with single numbers, and without memory or threads.

Promised: NaN of any payload stays NaN; every 16-bit value is read, and rounded to nearest even;
kernels flush subnormal numbers, and no caller's thread; what the system refuses is a sentence or
costs time alone.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import platform

import build_helpers
import numpy as np
import pytest
from builds import ISA_BUILDS

from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.problems import Problem, random_problem
from tf_bn_ops.spec import DTYPES

STATM = pathlib.Path("/proc/self/statm")


@pytest.mark.parametrize("dtype", ["float32", "half", "bfloat16"])
@pytest.mark.parametrize("implementation", ISA_BUILDS)
@pytest.mark.parametrize("payload", [0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0xFFC00000])
def test_nan_of_any_payload_stays_nan(payload, implementation, dtype):
    """Also where rounding to a narrower type would carry into the exponent, or cut the payload."""
    for role in ("scale", "variance", "mean"):
        problem = random_problem((70, 64, 1), dtype)
        problem[role].view(np.uint32)[3] = payload
        got = c_abi.run(problem, implementation=implementation)["x_backprop"].astype(np.float32)
        assert np.isnan(got[:, 3]).all()
        assert np.isfinite(np.delete(got, 3, axis=1)).all()


@pytest.mark.parametrize("dtype", ["half", "bfloat16"])
@pytest.mark.parametrize("implementation", ISA_BUILDS)
def test_every_16_bit_value_is_read_and_rounded_to_nearest_even(dtype, implementation):
    """All 65536 patterns through the frozen formula with factor 1, with one that makes ties, and
    with others that round. What is right is the conversion of NumPy and ml_dtypes."""
    element = DTYPES[dtype].numpy
    values = np.arange(1 << 16, dtype=np.uint16).view(element).reshape(1 << 14, 1, 4)
    one = np.ones(1, np.float32)
    for scale in np.float32([1, 1.5, 1 / 3, 1e-6, 1e6]):
        arrays = {"y_backprop": values, "x": values, "mean": 0 * one, "variance": one}
        problem = Problem({**arrays, "scale": scale * one}, 0.0, is_training=False)
        got = c_abi.run(problem, implementation=implementation)["x_backprop"]
        with np.errstate(over="ignore", invalid="ignore"):
            want = (values.astype(np.float32) * scale).astype(element)
        not_compared = np.isnan(want.astype(np.float32))
        np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), not_compared)
        if dtype == "bfloat16":  # Subnormal floats are flushed, as TensorFlow's threads do.
            for array in (want, values):
                not_compared |= np.abs(array.astype(np.float32)) <= DTYPES[dtype].smallest_normal
        np.testing.assert_array_equal(
            np.where(not_compared, 0, got.view(np.uint16)),
            np.where(not_compared, 0, want.view(np.uint16)),
        )


@pytest.mark.parametrize("implementation", ISA_BUILDS)
def test_a_product_just_below_the_smallest_normal_number(implementation):
    """By less than a quarter of a unit in the last place: x86 rounds before it looks whether the
    result is subnormal, Arm looks before it rounds. The caller's thread flushes nothing."""
    rng = np.random.default_rng(0)
    a = rng.uniform(1, 2, 1 << 20).astype(np.float32)
    b = (1 / a.astype(np.float64)).astype(np.float32)
    product = a.astype(np.float64) * b  # Exact.
    a, b = (v[(product < 1) & (product >= 1 - 2.0**-25)][:64] for v in (a, b))
    one, least = np.ones_like(a), np.float32(np.finfo(np.float32).smallest_normal)
    y_backprop = (a * least).reshape(1, -1, 1)
    values = {"y_backprop": y_backprop, "x": 0 * y_backprop, "scale": b}
    problem = Problem({**values, "mean": 0 * one, "variance": one}, 0.0, is_training=False)
    assert len(a) == 64
    found = c_abi.run(problem, implementation=implementation)["x_backprop"]
    assert np.all(found == (least if platform.machine() == "x86_64" else 0))
    assert least / np.float32(4) != 0


def _addresses(struct):
    return [name for name, kind in struct._fields_ if kind is ctypes.c_void_p]


@pytest.mark.parametrize("role", _addresses(c_abi.GatherStats))
def test_statistics_that_begin_within_an_element_are_refused(role):
    memory = np.zeros(64)
    fields = dict.fromkeys(_addresses(c_abi.GatherStats), memory.ctypes.data)
    fields[role] += 1
    with pytest.raises(ValueError, match=rf"^{role} must be aligned to its element type"):
        c_abi.run_gather_stats(c_abi.GatherStats(1, 1, **fields))


def short_of_memory():
    """The error of a call whose workspace does not fit into what is left, and whether another has
    its result whose threads do not start: a thread's stack takes 8 MB of address space."""
    import resource

    wide, tall = random_problem((1, 1 << 22, 1)), random_problem((4000, 40, 1))
    out, want = c_abi.run(wide), c_abi.bits(c_abi.run(tall))
    used = int(STATM.read_text().split()[0]) * resource.getpagesize()
    unlimited = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (40 << 20), unlimited[1]))
    try:
        c_abi.run(wide, outputs={"x_backprop": out["x_backprop"]})
        sentence = ""
    except (ValueError, MemoryError) as error:
        sentence = str(error)
    is_same = c_abi.bits(c_abi.run(tall, threads=200)) == want
    resource.setrlimit(resource.RLIMIT_AS, unlimited)
    return sentence, is_same


@pytest.mark.skipif(not STATM.exists(), reason="needs /proc")
@pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""), reason="AddressSanitizer reserves address space"
)
def test_without_memory_there_is_a_sentence_and_without_threads_still_a_result():
    assert build_helpers.call(short_of_memory) == ["the system refused: std::bad_alloc", True]
