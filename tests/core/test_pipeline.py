"""The pipeline over channel groups (cc/cpu/isa/pipeline.h), through the C ABI, without TensorFlow.

Promised of every formula: it changes no bit. A channel's results are bitwise those of a call with
this channel alone, which has no group to overlap with, in every build, for any number of threads,
at any alignment, in place, and whatever other channels hold; nothing is written beside the outputs.
Which calls are pipelined, and why, is in the plan.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
from builds import (
    FORMULAS,
    ISA_BUILDS,
    Outputs,
    View,
    has_view_outputs,
    in_place_choices,
    repeated,
    run_at,
    run_over,
)

from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.problems import Problem
from tf_bn_ops.spec import DTYPES
from tf_bn_ops.spec.ops import BATCH_NORM_GRAD

MACHINE = c_abi.explain(BATCH_NORM_GRAD, (1, 1, 1)).machine
L2, LLC = (int(MACHINE[name]) for name in ("l2_bytes", "llc_bytes"))
THREADS = 2
TRAINING = [f for f, mode in FORMULAS if mode == "training" and has_view_outputs(f, mode)]


def packed_view(outer: int, inner: int, element_bytes: int = 4) -> View:
    """With the fewest channels that exceed the L2 of all threads."""
    tensors = 2 * element_bytes * outer * inner  # Those of the forward op, which has the fewest.
    return outer, max(4 * THREADS, THREADS * L2 // tensors + 1), inner


# Whole segments and part of one; rows that begin at no cache line; shorter than a stage; two and
# more blocks; several channels in a group; an inner dimension in blocks. A channel of two blocks is
# packed where it takes at most half of L2.
PACKED = [
    packed_view(outer, inner)
    for outer, inner in ((9, 1088), (8, 1099), (50, 1500), (3, 70), (2, 40000))
    if 2 * 4 * outer * inner <= L2 // 2
]
# A channel's inputs exceed the scratch, a tensor the LLC.
DIRECT = (5, max(4 * THREADS, LLC // (4 * 5 * (L2 // 40)) + 1), L2 // 40)


def channel_of(problem: Problem, c: int) -> Problem:
    """The problem of channel c alone."""
    one = copy.copy(problem)
    one.values = {
        role: np.ascontiguousarray(a[:, c : c + 1] if a.ndim == 3 else a[..., c : c + 1])
        if a.shape
        else a
        for role, a in problem.values.items()
    }
    return one


def assert_channels_are_those_of_calls_alone(problem: Problem, *results: Outputs) -> None:
    channels = problem["x"].shape[1]
    for c in {0, 1, 2, channels // 2, channels - 1}:
        want = c_abi.run(channel_of(problem, c))
        for got in results:
            for role, array in got.items():
                of_channel = array[:, c : c + 1] if array.ndim == 3 else array[..., c : c + 1]
                assert of_channel.tobytes() == want[role].tobytes(), (role, c)


def assert_pipelined(view: View, how: str, dtype: str = "float32") -> None:
    for threads in (1, THREADS):
        plan = c_abi.explain(BATCH_NORM_GRAD, view, dtype=dtype, threads=threads)
        assert plan["pipeline"] == how
    assert c_abi.explain(BATCH_NORM_GRAD, (view[0], 1, view[2]), dtype=dtype)["pipeline"] == "none"


def assert_it_changes_no_bit(problem: Problem, builds: list[str]) -> None:
    *_, over = in_place_choices(problem)
    results = [run_over(problem, over, threads=THREADS)]
    for at, name in enumerate(builds):
        how = {"implementation": name, "threads": (THREADS, 1, 5)[at % 3]}
        results.append(run_at(problem, lambda at=at: 20 * at, **how))
    assert_channels_are_those_of_calls_alone(problem, *results)


@pytest.mark.parametrize("view", [*PACKED, DIRECT])
def test_it_changes_no_bit(view):
    assert_pipelined(view, "direct" if view == DIRECT else "packed")
    problem = repeated(BATCH_NORM_GRAD, view, seed=1)
    # A channel that is bad spoils itself alone.
    problem["x"][view[0] - 1, 1, 7], problem["y_backprop"][0, 2, 0] = np.nan, np.inf
    assert_it_changes_no_bit(problem, ISA_BUILDS if view != DIRECT else ISA_BUILDS[:1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("formula", TRAINING)
def test_of_every_formula_and_type(formula, dtype):
    view = packed_view(9, 1111, DTYPES[dtype].numpy.itemsize)
    assert_pipelined(view, "packed", dtype)
    assert_it_changes_no_bit(repeated(formula, view, dtype, seed=2), ISA_BUILDS)


# The segments of a row end within a two-level sum (cc/core/two_level_sum.h), and the results up to
# the first full cache line leave one segment less to the results than to the sums.
@pytest.mark.parametrize("implementation", ISA_BUILDS)
@pytest.mark.parametrize("dtype", ["half", "bfloat16"])
def test_two_level_sums_do_not_end_where_alignment_says(dtype, implementation):
    view = packed_view(1, 12 * 64 + 14, 2)
    assert_pipelined(view, "packed", dtype)
    problem = repeated(BATCH_NORM_GRAD, view, dtype)
    how = {"implementation": implementation, "threads": THREADS}
    results = [run_at(problem, lambda at=2 * offset: at, **how) for offset in range(0, 32, 3)]
    assert len({c_abi.bits(result) for result in results}) == 1
    assert_channels_are_those_of_calls_alone(problem, results[0])
