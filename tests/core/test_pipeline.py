"""The pipeline over channel groups (cc/cpu/isa/pipeline.h), through the C ABI, without TensorFlow.

Promised: it changes no bit. A channel's results are bitwise those of a call with this channel
alone, which has no group to overlap with, in every build, for any number of threads, at any
alignment, in place, and whatever other channels hold; nothing is written beside the outputs. Which
calls are pipelined, and why, is in the plan.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
from builds import ISA_BUILDS

from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.problems import Problem, random_forward_problem, random_problem
from tf_bn_ops.spec import DTYPES
from tf_bn_ops.spec.ops import BATCH_NORM_GRAD, BATCH_NORM_GRAD_GRAD

MACHINE = c_abi.explain(BATCH_NORM_GRAD, (1, 1, 1)).machine
L2, LLC = (int(MACHINE[name]) for name in ("l2_bytes", "llc_bytes"))
THREADS = 2


def packed_view(outer: int, inner: int, element_bytes: int = 4) -> tuple[int, int, int]:
    """With the fewest channels that exceed the L2 of all threads."""
    tensors = 2 * element_bytes * outer * inner  # Those of the forward op, which has the fewest.
    return outer, max(4 * THREADS, THREADS * L2 // tensors + 1), inner


# Whole runs and part of one; rows that begin at no cache line; shorter than a stage; two and more
# blocks; several channels in a group; an inner dimension in blocks. A channel of two blocks is
# packed where it takes at most half of L2.
PACKED = [
    pytest.param(
        packed_view(outer, inner),
        marks=pytest.mark.skipif(
            2 * 4 * outer * inner > L2 // 2, reason="one channel takes over half of this L2"
        ),
    )
    for outer, inner in ((9, 1088), (8, 1099), (50, 1500), (3, 70), (2, 40000))
]
# A channel's inputs exceed the scratch, a tensor the LLC.
DIRECT = (5, max(4 * THREADS, LLC // (4 * 5 * (L2 // 40)) + 1), L2 // 40)


def channel_of(problem: Problem, c: int) -> Problem:
    """The problem of channel c alone."""
    one = copy.copy(problem)
    at = (Ellipsis, slice(c, c + 1))
    one.values = {
        role: np.ascontiguousarray(a[:, c : c + 1] if a.ndim == 3 else a[at])
        for role, a in problem.values.items()
    }
    return one


def assert_channels_are_those_of_calls_alone(problem: Problem, got: dict[str, np.ndarray]) -> None:
    channels = problem["x"].shape[1]
    for c in {0, 1, channels // 2, channels - 1}:
        want = c_abi.run(channel_of(problem, c))
        for role, array in got.items():
            of_channel = array[:, c : c + 1] if array.ndim == 3 else array[..., c : c + 1]
            assert of_channel.tobytes() == want[role].tobytes(), (role, c)


def assert_pipelined(view: tuple[int, int, int], how: str, dtype: str = "float32") -> None:
    for threads in (1, THREADS):
        plan = c_abi.explain(BATCH_NORM_GRAD, view, dtype=dtype, threads=threads)
        assert plan["pipeline"] == how
    assert c_abi.explain(BATCH_NORM_GRAD, (view[0], 1, view[2]), dtype=dtype)["pipeline"] == "none"


@pytest.mark.parametrize("implementation", ISA_BUILDS)
@pytest.mark.parametrize("view", PACKED)
def test_packed_it_changes_no_bit(view, implementation):
    assert_pipelined(view, "packed")
    problem = random_problem(view)
    for threads in (1, THREADS, 5):
        got = c_abi.run(problem, implementation=implementation, threads=threads)
        assert_channels_are_those_of_calls_alone(problem, got)


def test_uncopied_it_changes_no_bit():
    assert_pipelined(DIRECT, "direct")
    problem = random_problem(DIRECT)
    for threads in (1, THREADS):
        got = c_abi.run(problem, threads=threads)
        assert_channels_are_those_of_calls_alone(problem, got)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "float32"])
def test_of_every_element_type(dtype):
    view = packed_view(9, 1111, DTYPES[dtype].store(np.zeros(1)).itemsize)
    assert_pipelined(view, "packed", dtype)
    problem = random_problem(view, dtype)
    assert_channels_are_those_of_calls_alone(problem, c_abi.run(problem, threads=THREADS))


@pytest.mark.parametrize("implementation", ISA_BUILDS)
@pytest.mark.parametrize("formula", ["forward", "forward of a sum", "second order"])
def test_of_every_formula(formula, implementation):
    view = packed_view(9, 1111)
    if formula == "second order":
        problem = random_problem(view, formula=BATCH_NORM_GRAD_GRAD)
    else:
        problem = random_forward_problem(view, side_input="sum" in formula, activation="Relu")
    got = c_abi.run(problem, implementation=implementation, threads=THREADS)
    assert_channels_are_those_of_calls_alone(problem, got)


@pytest.mark.parametrize("view", [packed_view(8, 1099), DIRECT])
@pytest.mark.parametrize("over", ["y_backprop", "x"])
def test_in_place(over, view):
    problem = random_problem(view)
    want = c_abi.run(problem)
    for threads in (1, THREADS):
        again = random_problem(view)
        got = c_abi.run(again, outputs={"x_backprop": again[over]}, threads=threads)
        assert c_abi.bits(got) == c_abi.bits(want)


@pytest.mark.parametrize("view", [packed_view(9, 1088), packed_view(8, 1099)])
@pytest.mark.parametrize("offset", [1, 5, 15])
def test_at_any_alignment_nothing_else_is_written(offset, view):
    problem = random_problem(view)
    size = problem["x"].size
    around = np.full(size + 64, -7.0, np.float32)
    begin = (-around.ctypes.data // 4) % 16 + offset
    dx = around[begin : begin + size].reshape(view)
    got = c_abi.run(problem, outputs={"x_backprop": dx}, threads=THREADS)
    assert_channels_are_those_of_calls_alone(problem, got)
    assert np.all(around[:begin] == -7) and np.all(around[begin + size :] == -7)


# The runs of a row end within a two-level sum (cc/core/two_level_sum.h), and the results up to the
# first full cache line leave one run less to the results than to the sums.
@pytest.mark.parametrize("implementation", ISA_BUILDS)
@pytest.mark.parametrize("dtype", ["half", "bfloat16"])
def test_two_level_sums_do_not_end_where_alignment_says(dtype, implementation):
    outer, channels, inner = packed_view(1, 12 * 64 + 14, 2)
    assert_pipelined((outer, channels, inner), "packed", dtype)
    problem = random_problem((outer, channels, inner), dtype)
    bits = set()
    for offset in range(0, 32, 3):
        outputs = {"x_backprop": c_abi.shifted(problem["x"], offset)}
        got = c_abi.run(problem, implementation=implementation, threads=THREADS, outputs=outputs)
        bits.add(c_abi.bits(got))
    assert len(bits) == 1
    assert_channels_are_those_of_calls_alone(problem, got)


def test_a_bad_channel_spoils_itself_alone():
    problem = random_problem(packed_view(9, 1088))
    problem["x"][3, 1, 77] = np.nan
    problem["y_backprop"][0, 2, 0] = np.inf
    got = c_abi.run(problem, threads=THREADS)
    assert_channels_are_those_of_calls_alone(problem, got)
    bad = np.isnan(got["x_backprop"]).any(axis=(0, 2))
    assert bad[1] and bad[2] and not bad[[0, *range(3, bad.size)]].any()
