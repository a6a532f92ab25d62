"""What is special to the second-order gradient, through the C ABI, without TensorFlow.

Promised besides what test_every_formula.py holds: statistics from x in training, whatever is given,
also behind an outlier; exact results of a constant channel; statistics of its own type.
"""

from __future__ import annotations

import numpy as np
import pytest
from builds import ISA_BUILDS, assert_right

from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.c_abi import bits
from tf_bn_ops.harness.problems import Problem, random_problem
from tf_bn_ops.spec.ops import BATCH_NORM_GRAD_GRAD


def make_problem(
    view: tuple[int, int, int],
    dtype: str = "float32",
    *,
    is_training: bool = True,
    offset: float = 0.5,
) -> Problem:
    return random_problem(
        view, dtype, formula=BATCH_NORM_GRAD_GRAD, is_training=is_training, offset=offset
    )


@pytest.mark.parametrize("implementation", ISA_BUILDS)
def test_in_training_the_given_statistics_are_not_read(implementation):
    problem = make_problem((40, 5, 7))
    want = c_abi.run(problem, implementation=implementation)
    problem["mean"][:], problem["variance"][:] = np.nan, np.nan
    assert bits(c_abi.run(problem, implementation=implementation)) == bits(want)


@pytest.mark.parametrize("implementation", ISA_BUILDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_first_element_far_from_the_others(implementation, dtype):
    """The element that sums measure x from is the worst there can be: 1e4 against numbers of 1."""
    problem = make_problem((5000, 3, 1), dtype)
    problem["x"][0] = 1e4
    assert_right(c_abi.run(problem, implementation=implementation), problem)


@pytest.mark.parametrize("implementation", ISA_BUILDS)
def test_a_constant_channel_has_no_variance_and_exact_results(implementation):
    """xhat is 0 and rstd 1/sqrt(epsilon) = 4: y_backprop_grad = 4*scale*gx' + go, and so on."""
    view = (16, 3, 2)
    problem = make_problem(view)
    rng = np.random.default_rng(1)
    for name in ("x_backprop_grad", "y_backprop"):
        problem[name] = rng.integers(-8, 8, view).astype(np.float32)
    problem["x"][:] = 0.1
    problem["scale"][:] = [1, 2, -1]
    problem["scale_backprop_grad"][:], problem["offset_backprop_grad"][:] = 0.5, 0.25
    problem.epsilon = 1 / 16
    got = c_abi.run(problem, implementation=implementation)
    gx = problem["x_backprop_grad"] - problem["x_backprop_grad"].mean((0, 2), keepdims=True)
    dy = problem["y_backprop"] - problem["y_backprop"].mean((0, 2), keepdims=True)
    factor = 4 * problem["scale"][:, None]
    np.testing.assert_array_equal(got["y_backprop_grad"], factor * gx + 0.25)
    np.testing.assert_array_equal(got["x_grad"], 2 * dy)
    np.testing.assert_array_equal(got["scale_grad"], 4 * (gx * dy).sum((0, 2)))
