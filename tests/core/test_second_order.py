"""The second-order gradient on the CPU through the C ABI, without TensorFlow.

Promised: results within the bounds of conformance/models/batch_norm_grad_grad.py; exact where the
terms are; bitwise identical for every ISA build, thread count, alignment, and in place;
statistics from x in training, whatever is given; the documented errors.
"""

from __future__ import annotations

import numpy as np
import pytest
from builds import (
    IMPLEMENTATIONS,
    ISA_BUILDS,
    assert_builds_are_right_and_bitwise_identical,
    assert_right,
)

from tf_bn_ops.harness import c_abi
from tf_bn_ops.harness.c_abi import bits, shifted
from tf_bn_ops.harness.problems import Problem, random_problem
from tf_bn_ops.spec import DTYPES
from tf_bn_ops.spec.ops import BATCH_NORM_GRAD_GRAD

# Boundaries of cases in the code, see VIEWS in test_cpu.py. A step has one vector here.
VIEWS = [
    (1, 1, 1),
    (2, 1, 1),
    (129, 1, 1),
    (9, 2, 1),
    (100, 3, 1),
    (33, 7, 1),
    (41, 16, 1),
    (23, 17, 1),
    (18, 64, 1),
    (11, 127, 1),
    (9, 1025, 1),
    (4000, 40, 1),
    (8, 3, 2),
    (9, 5, 49),
    (9, 2, 1025),
    (2, 3, 65),
    (3, 2, 4099),
    (1, 1, 70001),
    (70000, 1, 1),
]
TENSORS = ("x_backprop_grad", "y_backprop", "x")


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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("view", VIEWS)
def test_every_build_is_right_and_all_are_bitwise_identical(view, is_training, dtype):
    assert_builds_are_right_and_bitwise_identical(
        make_problem(view, dtype, is_training=is_training)
    )


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("view", [(4000, 40, 1), (9000, 3, 1), (8, 300, 49), (3, 7, 9000)])
def test_bitwise_identical_for_any_number_of_threads(view, is_training):
    problem = make_problem(view, is_training=is_training)
    runs = {bits(c_abi.run(problem, threads=n)) for n in (1, 2, 3, 7, 16)}
    assert len(runs) == 1


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("view", [(4000, 40, 1), (9, 5, 49), (3, 2, 4099)])
@pytest.mark.parametrize(
    "inputs", [("x_backprop_grad", "x"), ("x", "y_backprop"), ("y_backprop", "x_backprop_grad")]
)
def test_in_place_over_any_two_inputs(inputs, view, is_training):
    want = c_abi.run(make_problem(view, is_training=is_training))
    problem = make_problem(view, is_training=is_training)
    outputs = dict(zip(("y_backprop_grad", "x_grad"), map(problem.values.get, inputs), strict=True))
    got = c_abi.run(problem, outputs=outputs, threads=2)
    assert bits(got) == bits(want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_alignment_of_the_elements(dtype):
    view, offset = (9, 5, 1300), 3
    problem = make_problem(view, dtype)
    want = c_abi.run(problem)
    for name, array in problem.values.items():
        problem[name] = shifted(array, offset)
    outputs = {"x_grad": shifted(np.zeros_like(problem["x"]), offset)}
    assert bits(c_abi.run(problem, outputs=outputs)) == bits(want)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_in_training_the_given_statistics_are_not_read(implementation):
    problem = make_problem((40, 5, 7))
    want = c_abi.run(problem, implementation=implementation)
    problem["mean"][:], problem["variance"][:] = np.nan, np.nan
    assert bits(c_abi.run(problem, implementation=implementation)) == bits(want)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_large_means_cost_no_accuracy(implementation, dtype):
    """All three tensors around 1e3: differences keep every digit that the elements have."""
    problem = make_problem((3000, 8, 1), dtype, offset=1e3)
    assert_right(c_abi.run(problem, implementation=implementation), problem)


@pytest.mark.parametrize("implementation", ISA_BUILDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_first_element_far_from_the_others(implementation, dtype):
    """The element that sums measure x from is the worst there can be: 1e4 against numbers of 1."""
    problem = make_problem((5000, 3, 1), dtype)
    problem["x"][0] = 1e4
    assert_right(c_abi.run(problem, implementation=implementation), problem)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
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


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", TENSORS)
def test_nan_and_infinity_stay_in_their_channel(implementation, where, bad):
    problem = make_problem((50, 5, 3))
    problem[where][7, 2, 1] = bad
    got = c_abi.run(problem, implementation=implementation)
    for name, output in got.items():
        by_channel = output.swapaxes(0, 1) if output.ndim == 3 else output
        finite = [bool(np.isfinite(by_channel[c]).all()) for c in range(5)]
        # y_backprop enters x_backprop linearly: its own gradient does not depend on it.
        independent = (where, name) == ("y_backprop", "y_backprop_grad")
        assert finite == [True, True, independent, True, True], name


@pytest.mark.parametrize("view", [(0, 3, 1), (5, 3, 0), (0, 0, 0), (4, 0, 2)])
def test_empty_views_give_a_zero_scale_grad(view):
    got = c_abi.run(make_problem(view))
    np.testing.assert_array_equal(got["scale_grad"], np.zeros(view[1]))


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"outer": -1}, "outer, channels and inner must not be negative"),
        ({"dtype": 9}, "dtype must be one of the TFBN_ element types"),
        ({"x_grad": None}, "x_grad must not be NULL"),
        ({"scale_backprop_grad": None}, "scale_backprop_grad must not be NULL"),
        ({"float64_statistics": 1}, "float64_statistics must be 0 in the second order"),
        ({"threads": 0}, "threads must be at least 1"),
    ],
)
def test_errors_are_one_sentence(overrides, sentence):
    with pytest.raises(ValueError) as error:
        c_abi.run(make_problem((2, 3, 1)), **overrides)
    assert str(error.value) == sentence
