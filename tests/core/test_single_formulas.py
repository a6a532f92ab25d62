"""What is special to batch normalization itself and to its second-order gradient.

Through the C ABI, without TensorFlow.

Promised besides what test_every_formula.py holds: the bounds of
tf_bn_ops/conformance/models/batch_norm.py are 8u (|x - mean| rstd |scale| + |offset|) for y and
2u and 4u for mean and variance, at any mean; averages in place; a constant channel has exact
results; of the second order in training, statistics from x, whatever is given, also behind an
outlier.
"""

from __future__ import annotations

import numpy as np
import pytest
from builds import ISA_BUILDS, assert_right, problem_of

from tf_bn_ops.conformance.models import batch_norm, bounds, inputs
from tf_bn_ops.conformance.models.measure import assembled
from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.c_abi import bits
from tf_bn_ops.harness.problems import RELU, Problem, random_forward_problem, random_problem
from tf_bn_ops.spec import DTYPES
from tf_bn_ops.spec.ops import (
    BATCH_NORM_GRAD,
    BATCH_NORM_GRAD_EX,
    BATCH_NORM_GRAD_GRAD,
    BATCH_NORM_STATS,
)

STATISTICS = ("batch_mean", "batch_variance", "saved_mean", "saved_variance")
U = DTYPES["float32"].unit_roundoff


@pytest.mark.parametrize("is_training", [True, False])
def test_averages_in_place_over_the_given_ones(is_training):
    fields = {"is_training": is_training, "exponential_avg_factor": 0.1}
    want = c_abi.run(random_forward_problem((9, 70, 5), **fields))
    problem = random_forward_problem((9, 70, 5), **fields)
    outputs = {"batch_mean": problem["mean"], "batch_variance": problem["variance"]}
    assert bits(c_abi.run(problem, outputs=outputs)) == bits(want)


# ---- Accuracy ------------------------------------------------------------------------------------


def expected(problem: Problem, field: str) -> dict[str, np.ndarray]:
    """By role, "value" or "bound" of the model: the right answer, and how far off one may be."""
    parts = list(batch_norm.expected(problem, bounds.PROFILES["strict"]))
    shapes = {"y": problem.view} | dict.fromkeys(STATISTICS, (problem.view[1],))
    return {role: assembled(parts, role, field, shape) for role, shape in shapes.items()}


def promised(problem: Problem, right: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The accuracy that is promised, written out anew: what the harness allows must not be more."""
    x = problem["x"].astype(np.float64)
    mean, variance = right["saved_mean"], right["saved_variance"]
    rstd = 1 / np.sqrt(variance + problem.epsilon)
    column = (1, -1, 1)
    scaled = np.abs(x - mean.reshape(column)) * (rstd * np.abs(problem["scale"])).reshape(column)
    y = 8 * U * (scaled + np.abs(problem["offset"]).reshape(column)) + U * np.abs(right["y"])
    of_mean, squares = 2 * U * np.abs(mean), (x**2).mean((0, 2))
    of_variance = 4 * U * variance + 2.0**-48 * squares
    return {"y": y, "saved_mean": of_mean, "saved_variance": of_variance}


@pytest.mark.parametrize("offset", [0.5, 1e2, 1e3, 1e5, 1e7])
def test_what_the_harness_allows_is_what_is_promised(offset):
    """With room for what the promise leaves out: 10^-5 of it for the sums, whose own error is
    2^-44, and for y the 2^-47 of a mean in two parts, which shows where |x - mean| is tiny."""
    problem = random_forward_problem((3000, 8, 1), offset=offset)
    right, allowed = expected(problem, "value"), expected(problem, "bound")
    for role, most in promised(problem, right).items():
        room = 2.0**-47 * offset * np.abs(problem["scale"]).max() if role == "y" else 0
        assert (allowed[role] <= most * (1 + 1e-5) + room).all(), role


@pytest.mark.parametrize("implementation", ISA_BUILDS)
def test_a_constant_channel_has_no_variance(implementation):
    """Not even a rounding error: y is the offset."""
    problem = random_forward_problem((1000, 3, 7))
    problem["x"][:] = np.float32(0.1)
    got = c_abi.run(problem, implementation=implementation)
    np.testing.assert_array_equal(got["saved_mean"], np.full(3, 0.1, np.float32))
    np.testing.assert_array_equal(got["saved_variance"], np.zeros(3))
    np.testing.assert_array_equal(
        got["y"], np.broadcast_to(problem["offset"][:, None], (1000, 3, 7))
    )


# ---- Statistics ----------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ISA_BUILDS)
def test_cudnn_s_convention_saves_rstd_in_training(implementation):
    """Gradients are given it in the place of the variance."""
    problem = random_forward_problem((40, 5, 7), saves_rstd=True)
    assert_right(c_abi.run(problem, implementation=implementation), problem)
    for formula in (BATCH_NORM_GRAD, BATCH_NORM_GRAD_EX):
        problem = problem_of(formula, (40, 5, 7))
        want = c_abi.run(problem, implementation=implementation)["x_backprop"]
        del problem.values["forward_coefficients"]
        rstd = 1 / np.sqrt(problem["variance"].astype(np.float64) + problem.epsilon)
        problem["variance"], problem.variance_is_rstd = rstd.astype(np.float32), True
        got = c_abi.run(problem, implementation=implementation)
        assert_right(got, problem)
        np.testing.assert_allclose(got["x_backprop"], want, rtol=1e-4, atol=1e-6)


# 16-bit elements: outlier, value of the others.
PAIRS = ((100, 0.1), (1, 0.1), (3, 0.7), (300, 0.3), (50, 0.03), (1000, 0.7))


@pytest.mark.parametrize("dtype", ["half", "bfloat16"])
@pytest.mark.parametrize("view", [(1 << 18, 1), (1 << 12, 1), (5, 7777)], ids=str)
@pytest.mark.parametrize("places", ["centers", "first", "two of three"])
def test_outliers_that_sums_are_around(places, view, dtype):
    """Of sums in two levels the variance is at most 2^-14 off, relatively, whatever the others are
    and however many."""
    outer, inner = view
    x = np.empty((outer, len(PAIRS), inner), np.float32)
    x[...] = np.array([value for _, value in PAIRS])[:, None]
    chosen = inputs.center_places(x.shape)
    for o, i in {"centers": chosen, "first": [(0, 0)], "two of three": chosen[1:]}[places]:
        x[o, :, i] = [outlier for outlier, _ in PAIRS]
    stored = DTYPES[dtype].store(x)
    found = c_abi.run(Problem({"x": stored}, part=BATCH_NORM_STATS))
    variance = DTYPES[dtype].widen(stored, np.float64).var((0, 2))
    assert np.max(np.abs(found["local_m2"] / stored[:, 0].size - variance) / variance) < 2.0**-14


# ---- Activation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ISA_BUILDS)
def test_an_element_at_the_mean_with_offset_0_is_exactly_0(implementation):
    """The kink of the ReLU: a gradient that masks by y > 0 finds the same elements everywhere."""
    problem = random_forward_problem((30, 4, 8), activation=RELU)
    problem["x"] = np.tile(np.float32([-1, 0, 1]), 320).reshape(30, 4, 8)
    problem["offset"][:] = 0
    x = problem["x"].astype(np.float64)
    centered = np.abs(x - x.mean((0, 2), keepdims=True)) < 1e-12
    got = c_abi.run(problem, implementation=implementation)["y"]
    assert not got[centered].any()
    assert_right({"y": got}, problem)


# ---- Second order --------------------------------------------------------------------------------


def second_order_problem(view: tuple[int, int, int], dtype: str = "float32") -> Problem:
    return random_problem(view, dtype, formula=BATCH_NORM_GRAD_GRAD, offset=0.5)


@pytest.mark.parametrize("implementation", ISA_BUILDS)
def test_in_training_the_given_statistics_are_not_read(implementation):
    problem = second_order_problem((40, 5, 7))
    want = c_abi.run(problem, implementation=implementation)
    problem["mean"][:], problem["variance"][:] = np.nan, np.nan
    assert bits(c_abi.run(problem, implementation=implementation)) == bits(want)


@pytest.mark.parametrize("implementation", ISA_BUILDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_first_element_far_from_the_others(implementation, dtype):
    """The element that sums measure x from is the worst there can be: 1e4 against numbers of 1."""
    problem = second_order_problem((5000, 3, 1), dtype)
    problem["x"][0] = 1e4
    assert_right(c_abi.run(problem, implementation=implementation), problem)


@pytest.mark.parametrize("implementation", ISA_BUILDS)
def test_a_constant_channel_has_no_variance_and_exact_results(implementation):
    """xhat is 0 and rstd 1/sqrt(epsilon) = 4: y_backprop_grad = 4*scale*gx' + go, and so on."""
    view = (16, 3, 2)
    problem = second_order_problem(view)
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
