"""The CPU backend through the C ABI, without TensorFlow.

Promised: results within a few roundings of the output type of the formula in float64; sums exact
where the terms are; bitwise identical for every ISA build, thread count, alignment, and in place;
the documented errors.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from builds import (
    IMPLEMENTATIONS,
    ISA_BUILDS,
    assert_builds_are_right_and_bitwise_identical,
    beyond_the_llc,
    swept,
)

from tf_bn_ops import _loader
from tf_bn_ops.conformance.models import oracle
from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.c_abi import bits, shifted
from tf_bn_ops.harness.problems import Problem, random_problem
from tf_bn_ops.spec import DTYPES
from tf_bn_ops.spec.ops import BATCH_NORM_GRAD_GRAD

# Views with sizes at the boundaries of cases in the code: vector widths (4 to 16 lanes, two or
# four vectors a step), 8 rows, runs of 64 columns, 1024 columns a row, chains of 1024 rows, 2^15
# elements for threads, 2^16 for a second block.
VIEWS = [
    (1, 1, 1),
    (2, 1, 1),
    (7, 1, 1),
    (129, 1, 1),
    (1, 5, 1),
    (9, 2, 1),
    (100, 3, 1),
    (67, 4, 1),
    (33, 7, 1),
    (40, 15, 1),
    (41, 16, 1),
    (23, 17, 1),
    (31, 33, 1),
    (19, 63, 1),
    (18, 64, 1),
    (17, 65, 1),
    (11, 127, 1),
    (5, 1000, 1),
    (9, 1025, 1),
    (3, 2100, 1),
    (1500, 48, 1),
    (4000, 40, 1),
    (8, 3, 2),
    (9, 5, 49),
    (10, 40, 49),
    (8, 2, 1024),
    (9, 2, 1025),
    (2, 3, 63),
    (2, 3, 64),
    (2, 3, 65),
    (1, 3, 200),
    (3, 2, 4099),
    (1, 1, 70001),
    (40, 3, 1300),
    (70000, 1, 1),
    (1100, 64, 1),
    (8000, 300, 1),
    (70, 1, 3000),
]


def is_quick(view: tuple[int, int, int], dtype: str) -> bool:
    """Millions of elements in every type are for the long tier: the oracle takes a second each."""
    return np.prod(view) < 1 << 20 or dtype == "float32"


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize(("view", "dtype"), swept(VIEWS, DTYPES, at_once=is_quick))
def test_every_build_is_right_and_all_are_bitwise_identical(view, is_training, dtype):
    assert_builds_are_right_and_bitwise_identical(
        random_problem(view, dtype, is_training=is_training)
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("view", [(4000, 40, 1), (9000, 3, 1), (8, 300, 49), (3, 7, 9000)])
def test_bitwise_identical_for_any_number_of_threads(view, dtype):
    problem = random_problem(view, dtype)
    assert len({bits(c_abi.run(problem, threads=n)) for n in (1, 2, 3, 7, 16)}) == 1


@pytest.mark.parametrize("view", VIEWS)
def test_in_place_over_y_backprop_and_over_x(view):
    problem = random_problem(view)
    want = c_abi.run(problem)
    for name in ("y_backprop", "x"):
        copy = random_problem(view)
        got = c_abi.run(copy, outputs={"x_backprop": copy[name]}, threads=2)
        assert bits(got) == bits(want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [1, 3])
def test_any_alignment_of_the_elements(dtype, offset):
    view = (9, 5, 1300)
    problem = random_problem(view, dtype)
    want = c_abi.run(problem)
    for name in ("y_backprop", "x", "scale", "mean", "variance"):
        problem[name] = shifted(problem[name], offset)
    got = c_abi.run(problem, outputs={"x_backprop": shifted(np.zeros_like(problem["x"]), offset)})
    assert bits(got) == bits(want)


# Beyond the LLC size that counts (cc/cpu/cache_sizes.cc), so that full cache lines of results get
# non-temporal stores: rows that begin and end within a line, rows of full lines, runs, folded
# rows. Sizes for half; other types have as many bytes.
@pytest.mark.parametrize("dtype", ["float32", "half", "float64"])
@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize(
    "view", [(64, 2000, 49), (96000, 65, 1), (96000, 64, 1), (5, 8, 160001), (2100001, 3, 1)]
)
def test_non_temporal_stores(view, is_training, dtype):
    """Bitwise identical to temporal stores, which a call in place uses; nothing else is written."""
    view = beyond_the_llc(view, dtype)
    problem = random_problem(view, dtype, is_training=is_training)
    assert 3 * problem["x"].nbytes > 32 << 20
    for name in ISA_BUILDS:
        copy = problem.copy()
        want = bits(
            c_abi.run(copy, outputs={"x_backprop": copy["x"]}, threads=2, implementation=name)
        )
        for offset in (0, 5):
            store = np.full(problem["x"].size + 64, 7, problem["x"].dtype)
            begin = 32 - store.ctypes.data % 64 // store.itemsize + offset
            x_backprop = store[begin : begin + problem["x"].size].reshape(view)
            got = c_abi.run(
                problem, outputs={"x_backprop": x_backprop}, threads=2, implementation=name
            )
            assert bits(got) == want
            assert (store[:begin] == 7).all()
            assert (store[begin + problem["x"].size :] == 7).all()


@pytest.mark.parametrize(("view", "dtype"), swept(VIEWS, DTYPES, at_once=is_quick))
def test_sums_of_small_integers_are_exact(view, dtype):
    """Integers up to 3 and integer means: every partial sum is exact, so no order can differ."""
    rng = np.random.default_rng(list(view))
    problem = random_problem(view, dtype)
    problem["y_backprop"] = rng.integers(-3, 4, view).astype(problem["x"].dtype)
    problem["x"] = rng.integers(-3, 4, view).astype(problem["x"].dtype)
    problem["mean"] = rng.integers(-2, 3, view[1]).astype(problem["mean"].dtype)
    problem["variance"] = np.full_like(problem["variance"], 0.25)
    problem.epsilon = 0.0  # rstd = 2
    dy, centered = problem["y_backprop"].astype(int), problem["x"].astype(int)
    centered = centered - problem["mean"].astype(int)[:, np.newaxis]
    for name in IMPLEMENTATIONS:
        result = c_abi.run(problem, implementation=name, threads=2)
        np.testing.assert_array_equal(result["offset_backprop"], dy.sum((0, 2)))
        np.testing.assert_array_equal(result["scale_backprop"], 2 * (dy * centered).sum((0, 2)))


def test_a_large_gradient_mean_costs_no_accuracy():
    """The sums of the built-in lose 1e-3 here (float32, y_backprop around 1e3)."""
    problem = random_problem((3000, 8, 1), offset=1e3)
    problem["x"] = (problem["x"] + 1e3).astype(np.float32)
    problem["mean"] = problem["x"].mean((0, 2), dtype=np.float64).astype(np.float32)
    right = oracle.Oracle(problem)
    result = c_abi.run(problem)
    error = np.abs(result["scale_backprop"] / right.scale_backprop - 1)
    assert error.max() < 2 * DTYPES["float32"].unit_roundoff


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["y_backprop", "x", "variance"])
def test_nan_and_infinity_stay_in_their_channel(implementation, where, bad):
    problem = random_problem((50, 5, 3))
    problem[where][(7, 2, 1) if where != "variance" else 2] = bad
    result = c_abi.run(problem, implementation=implementation)
    for output in (result["x_backprop"].swapaxes(0, 1), result["scale_backprop"]):
        finite = [bool(np.isfinite(output[c]).all()) for c in range(5)]
        # An infinite variance is a rstd of 0, a finite answer.
        assert finite == [True, True, where == "variance" and bad == np.inf, True, True]


@pytest.mark.parametrize("dtype", ["float32", "half", "bfloat16"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
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
def test_every_16_bit_value_is_read_and_written_as_the_reference_does(dtype, implementation):
    """All 65536 patterns through the frozen formula with factor 1, and with one that rounds."""
    element = DTYPES[dtype].numpy
    values = np.arange(1 << 16, dtype=np.uint16).view(element).reshape(1 << 14, 1, 4)
    one = np.ones(1, np.float32)
    for scale in (1.0, 1 / 3, 1e-6, 1e6):
        arrays = {"y_backprop": values, "x": values, "mean": 0 * one, "variance": one}
        problem = Problem({**arrays, "scale": np.float32(scale) * one}, 0.0, is_training=False)
        want, got = (
            c_abi.run(problem, implementation=name)["x_backprop"]
            for name in ("reference", implementation)
        )
        is_nan = np.isnan(want.astype(np.float32))
        np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), is_nan)
        if dtype == "bfloat16":  # Subnormal floats are flushed, as TensorFlow's threads do.
            tiny = np.abs(want.astype(np.float32)) <= DTYPES[dtype].smallest_normal
            tiny |= np.abs(values.astype(np.float32)) <= DTYPES[dtype].smallest_normal
            is_nan |= tiny
        np.testing.assert_array_equal(
            np.where(is_nan, 0, got.view(np.uint16)), np.where(is_nan, 0, want.view(np.uint16))
        )


@pytest.mark.parametrize("view", [(0, 3, 1), (5, 3, 0), (0, 0, 0), (4, 0, 2)])
def test_empty_views_give_zero_sums(view):
    result = c_abi.run(random_problem(view))
    assert not result["scale_backprop"].any() and not result["offset_backprop"].any()
    assert result["scale_backprop"].shape == (view[1],)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"outer": -1}, "outer, channels and inner must not be negative"),
        ({"outer": 1 << 62}, "outer * channels * inner is larger than any memory"),
        ({"outer": 0, "channels": 1 << 62}, "channels is larger than any memory"),
        ({"dtype": 9}, "dtype must be one of the TFBN_ element types"),
        ({"stat_dtype": -1}, "stat_dtype must be one of the TFBN_ element types"),
        ({"x": None}, "x must not be NULL"),
        ({"mean": None}, "mean must not be NULL"),
        ({"formula": 3}, "formula must be TFBN_FORWARD, TFBN_GRADIENT or TFBN_SECOND_ORDER"),
        ({"threads": 0}, "threads must be at least 1"),
        (
            {"implementation": "mmx"},
            f'there is no CPU implementation "mmx"; this build has '
            f"{', '.join(name for name, _ in c_abi.implementations())}",
        ),
    ],
)
def test_errors_are_one_sentence(overrides, sentence):
    with pytest.raises(ValueError) as error:
        c_abi.run(random_problem((2, 3, 1)), **overrides)
    assert str(error.value) == sentence


def _addresses(struct):
    return [name for name, kind in struct._fields_ if kind is ctypes.c_void_p]


@pytest.mark.parametrize("role", _addresses(c_abi.Call))
def test_arrays_that_begin_within_an_element_are_refused(role):
    """Whole vectors are loaded and stored past the caches there, which ends the process."""
    problem = random_problem((1, 1, 1), formula=BATCH_NORM_GRAD_GRAD)
    memory = np.zeros(64)
    with pytest.raises(ValueError, match=rf"^{role} must be aligned to its element type"):
        c_abi.run(problem, **{role: memory.ctypes.data + 1})


@pytest.mark.parametrize("role", _addresses(c_abi.GatherStats))
def test_statistics_that_begin_within_an_element_are_refused(role):
    memory = np.zeros(64)
    fields = dict.fromkeys(_addresses(c_abi.GatherStats), memory.ctypes.data)
    fields[role] += 1
    with pytest.raises(ValueError, match=rf"^{role} must be aligned to its element type"):
        c_abi.run_gather_stats(c_abi.GatherStats(1, 1, **fields))


# The workspace of the first does not fit into what is left, threads of the second do not start: a
# thread's stack takes 8 MB of address space.
SHORT_OF_MEMORY = """
import resource, sys
sys.path[:0] = sys.argv[1:]
from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.c_abi import bits
from tf_bn_ops.harness.problems import random_problem

wide, tall = random_problem((1, 1 << 22, 1)), random_problem((4000, 40, 1))
out = c_abi.run(wide)
want = bits(c_abi.run(tall))
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
unlimited = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used + (40 << 20), unlimited[1]))
result = [None] * 2
try:
    c_abi.run(wide, outputs={"x_backprop": out["x_backprop"]})
except (ValueError, MemoryError) as error:
    result[0] = str(error)
result[1] = bits(c_abi.run(tall, threads=200)) == want
resource.setrlimit(resource.RLIMIT_AS, unlimited)
print(*result, sep="\\n")
"""


@pytest.mark.skipif(not pathlib.Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""), reason="AddressSanitizer reserves address space"
)
def test_without_memory_there_is_a_sentence_and_without_threads_still_a_result():
    folder = pathlib.Path(__file__).parent
    package = pathlib.Path(_loader.__file__).parent.parent
    run = subprocess.run(
        [sys.executable, "-c", SHORT_OF_MEMORY, str(folder), str(package)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == ["the system refused: std::bad_alloc", "True"]
