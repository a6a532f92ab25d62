"""Calls at random addresses, through the C ABI, without TensorFlow.

Promised: no bit depends on where an array begins, on the ISA build, or on the number of threads.
Each case calls one formula on a random view several times, with every array of view shape at
another distance from a cache line; the views are below and beyond L2, so that rows and runs,
temporal and non-temporal stores, pipelines and first passes that store all occur.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
from builds import ISA_BUILDS, View
from test_batch_norm_grad_ex import make_problem
from test_replicas import parts_of

from tf_bn_ops import spec
from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.problems import (
    RELU,
    VIEW_ROLES,
    Problem,
    random_forward_problem,
    random_problem,
)

# A fault that cut two-level sums by alignment differed in 1 of 35 random cases of all dtypes, and
# in more of those of 16-bit types.
CASES, LONG_CASES = 12, 60
CALLS = 5
LINE = 64  # Elements of a cache line at most, which are bytes.


def _gradient(view: View, dtype: str, is_training: bool) -> list[Problem]:
    return [random_problem(view, dtype, is_training=is_training)]


def _second_order(view: View, dtype: str, is_training: bool) -> list[Problem]:
    formula = spec.ops.BATCH_NORM_GRAD_GRAD
    return [random_problem(view, dtype, formula=formula, is_training=is_training)]


def _forward(view: View, dtype: str, is_training: bool) -> list[Problem]:
    return [
        random_forward_problem(
            view, dtype, side_input=side_input, is_training=is_training, activation=RELU
        )
        for side_input in (False, True)
    ]


def _fused_gradient(view: View, dtype: str, is_training: bool) -> list[Problem]:
    return [
        make_problem(view, dtype, is_training=is_training, side_input=side_input)
        for side_input in (False, True)
    ]


def _parts(view: View, dtype: str, is_training: bool) -> list[Problem]:
    del is_training  # They are those of training.
    return parts_of(view, dtype, RELU)


FORMULAS = [_gradient, _second_order, _forward, _fused_gradient, _parts]


def random_view(rng: np.random.Generator) -> View:
    """Of 2^12 to 2^21 elements: channels-last, channels-first, or rows of few outer indices."""
    size = int(2 ** rng.uniform(12, 21))
    kind = rng.integers(3)
    if kind == 0:
        channels = int(2 ** rng.uniform(0, 10))
        return max(1, size // channels), channels, 1
    inner = int(2 ** rng.uniform(3, 14))
    if kind == 1:
        channels = int(2 ** rng.uniform(0, 9))
        return max(1, min(size // (channels * inner), 64)), channels, inner
    outer = int(rng.integers(1, 4))
    return outer, max(1, size // (outer * inner)), inner


def _moved(arrays: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """With those of view shape at random alignments: each its own, or all the same."""
    offsets = rng.integers(LINE, size=len(arrays))
    if rng.random() < 0.5:
        offsets[:] = offsets[0]
    return {
        role: c_abi.shifted(array, int(offset)) if role in VIEW_ROLES else array
        for (role, array), offset in zip(arrays.items(), offsets, strict=True)
    }


def bits_of_a_call(problem: Problem, rng: np.random.Generator) -> bytes:
    moved = copy.copy(problem)
    arrays = {**problem.values, **c_abi.new_outputs(problem)}
    placed = _moved(arrays, rng)
    moved.values = {role: placed[role] for role in problem.values}
    outputs = {role: array for role, array in placed.items() if role not in problem.values}
    how = {"implementation": str(rng.choice(ISA_BUILDS)), "threads": int(rng.choice([1, 2, 3, 5]))}
    return c_abi.bits(c_abi.run(moved, outputs=outputs, **how))


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("dtype", ["float32", "half", "bfloat16", "float64"])
@pytest.mark.parametrize("cases", [CASES, pytest.param(LONG_CASES, marks=pytest.mark.long)])
def test_no_bit_depends_on_addresses(
    cases: int, dtype: str, formula: Callable[[View, str, bool], list[Problem]]
):
    rng = np.random.default_rng([cases, *dtype.encode(), *formula.__name__.encode()])
    for _ in range(cases):
        view, is_training = random_view(rng), bool(rng.random() < 0.75)
        for problem in formula(view, dtype, is_training):
            bits = {bits_of_a_call(problem, rng) for _ in range(CALLS)}
            assert len(bits) == 1, (view, is_training, sorted(problem.values))


# Beyond the L2 of one core, where results are stored non-temporally: rows that are near each other,
# a page apart, and far apart (by a multiple of a page and not); runs.
STORED_VIEWS = [(20000, 70, 1), (700, 2048, 1), (32, 64, 784), (16, 128, 1024), (8, 60, 3136)]


@pytest.mark.long
@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("dtype", ["float32", "half", "bfloat16"])
@pytest.mark.parametrize("view", STORED_VIEWS)
def test_no_bit_depends_on_how_rows_are_taken(
    view: View, dtype: str, formula: Callable[[View, str, bool], list[Problem]]
) -> None:
    """How many rows and vectors a step has, and whether sums and results share a loop, depends on
    the ISA, the distance of rows, and the stores."""
    rng = np.random.default_rng(5)

    def placed(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """At cache lines, anywhere in a page."""
        return {
            role: c_abi.placed(array, LINE * int(rng.integers(LINE)))
            if role in VIEW_ROLES
            else array
            for role, array in arrays.items()
        }

    for is_training in (True, False):
        for problem in formula(view, dtype, is_training):
            moved = copy.copy(problem)
            moved.values = placed(problem.values)
            results = set()
            for implementation in ISA_BUILDS:
                outputs = placed(c_abi.new_outputs(problem))
                found = c_abi.run(moved, outputs=outputs, implementation=implementation)
                results.add(c_abi.bits(found))
            assert len(results) == 1
